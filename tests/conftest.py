"""Settings for all tests."""

from hypothesis import settings

# Two busy cores make single examples slow by chance; the suite's own timeout still ends what hangs.
settings.register_profile("ownloop", deadline=None)
settings.load_profile("ownloop")
