import importlib.util
from urllib.parse import urlsplit

import pytest

from ownloop.backends.local import LocalAdapter
from ownloop.backends.model_forms import FORMS, ModelForm, forms_as_text
from ownloop.backends.models import check_model, key_variable, open_model
from ownloop.backends.openai_compatible import OpenAICompatibleAdapter
from ownloop.backends.profiles import GENERIC, MISTRAL, OPENAI, OPENROUTER
from ownloop.backends.transport import HttpAdapter
from ownloop.errors import ConfigError


def server(model: str, **env: str) -> OpenAICompatibleAdapter:
    opened = open_model(model, env=env)
    assert isinstance(opened, OpenAICompatibleAdapter)
    return opened


def refusal(model: str, **env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        open_model(model, env=env)
    return str(caught.value)


def key_of(opened: HttpAdapter) -> str | None:
    return next(iter(opened._secrets), None)


def test_local_is_the_tiny_model_and_a_path_any_other() -> None:
    tiny, big = open_model("local"), open_model("local:/models/Qwen3-8B.gguf")
    assert isinstance(tiny, LocalAdapter)
    assert isinstance(big, LocalAdapter)
    assert (tiny.is_tiny, tiny.provider) == (True, "local")
    assert (big.is_tiny, big.model) == (False, "Qwen3-8B.gguf")


def test_openai_takes_the_key_from_its_own_variable() -> None:
    opened = server("openai:gpt-5", OPENAI_API_KEY="sk-1")
    assert (opened.name, opened.base_url, opened.model) == ("openai", "https://api.openai.com/v1", "gpt-5")
    assert opened.profile is OPENAI
    assert key_of(opened) == "sk-1"
    moved = server("openai:gpt-5", OPENAI_API_KEY="sk-1", OPENAI_BASE_URL="https://proxy.example/v1")
    assert moved.base_url == "https://proxy.example/v1"


HOSTED = [form for form in FORMS if form.key_variable is not None]


@pytest.mark.parametrize("form", HOSTED, ids=[form.scheme for form in HOSTED])
def test_a_hosted_model_goes_with_its_own_key_to_its_own_host(form: ModelForm) -> None:
    assert form.key_variable is not None
    others = {other.key_variable: "sk-other" for other in HOSTED if other.key_variable is not None}
    model = f"{form.scheme}:some/model"
    check_model(model)
    opened = open_model(model, env=others | {form.key_variable: "sk-own"})
    assert isinstance(opened, HttpAdapter)
    assert opened.model == "some/model"
    assert key_of(opened) == "sk-own"
    host = urlsplit(opened.base_url).hostname
    assert host in {"api.anthropic.com", "api.openai.com", "router.huggingface.co"}
    del others[form.key_variable]
    assert f"needs a key: set {form.key_variable}" in refusal(model, **others)
    if form.url_variable is not None:
        moved = open_model(model, env={form.key_variable: "sk-own", form.url_variable: "https://proxy.example/v1"})
        assert isinstance(moved, HttpAdapter)
        assert urlsplit(moved.base_url).hostname == "proxy.example"


@pytest.mark.parametrize("form", HOSTED, ids=[form.scheme for form in HOSTED])
def test_a_missing_extra_is_named(form: ModelForm, monkeypatch: pytest.MonkeyPatch) -> None:
    assert form.key_variable is not None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert f"pip install 'ownloop[{form.extra}]'" in refusal(f"{form.scheme}:m", **{form.key_variable: "sk-own"})


def test_a_missing_key_is_named() -> None:
    assert "OPENAI_API_KEY" in refusal("openai:gpt-5")
    assert "OPENROUTER_API_KEY" in refusal("https://openrouter.ai/api/v1#qwen/qwen3")


@pytest.mark.parametrize(
    ("model", "base_url", "name"),
    [
        ("http://localhost:8000/v1#Qwen/Qwen3-8B", "http://localhost:8000/v1", "Qwen/Qwen3-8B"),
        ("http://localhost:8000#m", "http://localhost:8000/v1", "m"),
        ("https://gpu.example/v1/#m:free", "https://gpu.example/v1", "m:free"),
        ("HTTP://gpu.example/v1# m", "http://gpu.example/v1", "m"),
    ],
)
def test_a_url_names_server_and_model(model: str, base_url: str, name: str) -> None:
    opened = server(model)
    assert (opened.base_url, opened.model, opened.profile) == (base_url, name, GENERIC)


def test_a_key_goes_to_its_own_host_only() -> None:
    env = {
        "OPENAI_API_KEY": "sk-openai",
        "OPENROUTER_API_KEY": "sk-router",
        "MISTRAL_API_KEY": "sk-mistral",
        "OWNLOOP_API_KEY_GPU_EXAMPLE": "sk-gpu",
    }
    assert key_of(server("http://localhost:8000/v1#m", **env)) is None
    assert key_of(server("https://gpu.example/v1#m", **env)) == "sk-gpu"
    assert key_of(server("https://evil.gpu.example/v1#m", **env)) is None
    assert key_of(server("https://openrouter.ai/api/v1#m", **env)) == "sk-router"
    assert key_of(server("https://api.mistral.ai/v1#m", **env)) == "sk-mistral"
    assert server("https://openrouter.ai/api/v1#m", **env).profile is OPENROUTER
    assert server("https://api.mistral.ai/v1#m", **env).profile is MISTRAL
    assert key_variable("http://10.0.0.7:8000/v1") == "OWNLOOP_API_KEY_10_0_0_7"


def test_space_around_a_name_is_no_part_of_it() -> None:
    check_model(" openai: gpt-5 ")
    assert open_model(" openai: gpt-5 ", api_key="k", env={}).model == "gpt-5"


def test_a_key_that_is_handed_over_wins() -> None:
    opened = open_model("openai:gpt-5", api_key="sk-arg", env={"OPENAI_API_KEY": "sk-env"})
    assert isinstance(opened, OpenAICompatibleAdapter)
    assert key_of(opened) == "sk-arg"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("claude-sonnet-5", "did you mean 'anthropic:claude-sonnet-5'?"),
        ("antropic:claude-sonnet-5", "did you mean 'anthropic:claude-sonnet-5'?"),
        ("hf:", "did you mean 'hf:NAME'?"),
        ("ollama:qwen3", "did you mean 'http://localhost:11434/v1#qwen3'?"),
        ("locl", "did you mean 'local'?"),
        ("opnai:gpt-5", "did you mean 'openai:gpt-5'?"),
        ("gpt-5", "did you mean 'openai:gpt-5'?"),
        ("o3", "did you mean 'openai:o3'?"),
        ("local:", "did you mean 'local'?"),
        ("openai:", "did you mean 'openai:NAME'?"),
        ("lokal:/a.gguf", "did you mean 'local:/a.gguf'?"),
        ("", forms_as_text()),
        ("something/else", forms_as_text()),
        ("http://localhost:8000/v1", "write http://localhost:8000/v1#NAME"),
        ("http://localhost:8000/v1#", "write http://localhost:8000/v1#NAME"),
        ("http://[::1/v1#m", "base URL"),
        ("http://openrouter.ai/api/v1#m", "https"),
        ("http://#m", "base URL"),
    ],
)
def test_what_is_not_known_is_answered_with_what_to_write(model: str, words: str) -> None:
    assert words in refusal(model)


def test_what_is_like_nothing_gets_no_hint() -> None:
    for model in ("", "something/else", "xyz:abc"):
        assert "did you mean" not in refusal(model)
