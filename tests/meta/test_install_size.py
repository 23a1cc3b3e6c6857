import pytest

from scripts.measure_install import measure_core_install


@pytest.mark.slow
@pytest.mark.timeout(300)  # it downloads
def test_the_core_installs_as_at_most_18_packages_and_30_mb():
    size = measure_core_install()
    assert {"ownloop", "pydantic"} <= set(size.size_mb_of)
    assert size.packages <= 18, size
    assert size.size_mb <= 30, size
