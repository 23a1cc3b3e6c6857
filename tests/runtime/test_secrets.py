import pytest

from ownloop.errors import ConfigError
from ownloop.runtime.secrets import EnvSecrets

ENVIRON = {
    "API_KEY": "sk-123456",
    "LONG_KEY": "sk-123456-and-more",
    "PIN": "12345",
    "EMPTY": "",
    "OTHER": "not declared",
}


def test_a_declared_secret_comes_from_its_variable():
    assert EnvSecrets(["API_KEY"], ENVIRON).get("API_KEY") == "sk-123456"
    assert EnvSecrets({"key": "API_KEY"}, ENVIRON).get("key") == "sk-123456"


def test_the_environment_is_read_when_the_secret_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    secrets = EnvSecrets(["OWNLOOP_TEST_KEY"])
    monkeypatch.setenv("OWNLOOP_TEST_KEY", "later on")
    assert secrets.get("OWNLOOP_TEST_KEY") == "later on"


@pytest.mark.parametrize("variable", ["EMPTY", "MISSING"])
def test_a_missing_secret_names_the_variable_to_set(variable: str):
    with pytest.raises(ConfigError, match=f"secret 'key' is missing: set the environment variable {variable}"):
        EnvSecrets({"key": variable}, ENVIRON).get("key")


def test_what_was_not_declared_is_not_handed_out():
    with pytest.raises(ConfigError, match="secret 'OTHER' was not declared; declared are: 'API_KEY', 'PIN'") as caught:
        EnvSecrets(["PIN", "API_KEY"], ENVIRON).get("OTHER")
    assert "not declared" not in str(caught.value).replace("was not declared", "")


def test_every_secret_handed_out_is_redacted_and_no_other():
    secrets = EnvSecrets(["API_KEY", "LONG_KEY", "PIN"], ENVIRON)
    text = "sk-123456, sk-123456-and-more, 12345"
    assert secrets.redact(text) == text
    secrets.get("API_KEY")
    assert secrets.redact(text) == "[API_KEY], [API_KEY]-and-more, 12345"
    secrets.get("LONG_KEY")
    secrets.get("PIN")
    assert secrets.redact(text) == "[API_KEY], [LONG_KEY], 12345", "the longest first; five characters are too common"
