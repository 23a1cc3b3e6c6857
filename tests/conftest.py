"""Settings for all tests."""

from collections.abc import Generator

import pytest
from hypothesis import settings

# Two busy cores make single examples slow by chance; the suite's own timeout still ends what hangs.
settings.register_profile("ownloop", deadline=None)
settings.load_profile("ownloop")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Clean what a test logged: half a character in it could not be sent from one of several processes to the first."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "replace").decode()) for name, text in report.sections]
    return report
