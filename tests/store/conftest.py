import pytest

pytest.register_assert_rewrite("ownloop.testing.store_conformance")
