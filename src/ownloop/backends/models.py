"""From a model's string to an adapter: what `Agent(model=…)`, the CLI and the servers accept.

The invariant: a key goes only to the host that it belongs to. `OPENAI_API_KEY` belongs to api.openai.com (or to
`OPENAI_BASE_URL`, if that is set), the other vendors' keys to their hosts (`profiles.HOSTS`), and a host of one's own
has a variable with its name in it, `OWNLOOP_API_KEY_` and the host: `OWNLOOP_API_KEY_GPU1_EXAMPLE_COM`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from ownloop.backends.llama_server import LocalServerPool
from ownloop.backends.local import LocalAdapter
from ownloop.backends.openai_compatible import OpenAICompatibleAdapter, normal_base_url
from ownloop.backends.profiles import HOSTS
from ownloop.core.backend import Adapter
from ownloop.errors import ConfigError

OPENAI_URL: Final = "https://api.openai.com/v1"

FORMS: Final = """\
  local                        a tiny model on this machine; no key, nothing to install beside ownloop[local]
  local:/path/to/model.gguf    any GGUF file on this machine
  openai:NAME                  OpenAI; the key in OPENAI_API_KEY
  http://HOST:PORT/v1#NAME     any OpenAI-compatible server: vLLM, SGLang, llama.cpp, Ollama, LM Studio
  https://HOST/v1#NAME         the same, hosted: https://openrouter.ai/api/v1#NAME with OPENROUTER_API_KEY"""

_LATER: Final = {
    "anthropic": "it comes with the next release; today Claude works as https://openrouter.ai/api/v1#anthropic/NAME",
    "hf": "it comes with the next release; today https://router.huggingface.co/v1#NAME works, the token in HF_TOKEN",
}
_SERVERS: Final = {
    "ollama": "http://localhost:11434/v1",
    "vllm": "http://localhost:8000/v1",
    "sglang": "http://localhost:30000/v1",
    "lmstudio": "http://localhost:1234/v1",
    "llamacpp": "http://localhost:8080/v1",
}
"""Where servers listen if nobody says otherwise: for the hint only."""
_OPENAI_NAMES: Final = re.compile(r"(chatgpt|gpt|o\d)\b")


def open_model(
    model: str,
    *,
    api_key: str | None = None,
    env: Mapping[str, str] = os.environ,
    servers: LocalServerPool | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Adapter:
    """Return an adapter for a model's string; nothing is imported or connected before its first use.

    `api_key` wins over the environment. `servers` shares local models between adapters; `on_progress` is told what a
    person is waiting for when a local model is fetched and loaded.

    Raises:
        ConfigError: no such form, or a key is missing; the text says what to write instead.
    """
    scheme, colon, rest = model.strip().partition(":")
    if scheme == "local" and (rest or not colon):
        return LocalAdapter(rest, servers=servers, on_progress=on_progress)
    if scheme in ("http", "https"):
        return _server(model.strip(), api_key, env)
    if scheme == "openai" and rest:
        return _openai(rest, api_key, env)
    raise ConfigError(_no_such_form(model.strip(), scheme, rest))


def check_model(model: str) -> None:
    """Raise ConfigError if `model` has none of the known forms. Keys and files are looked at when it is opened."""
    scheme, colon, rest = model.strip().partition(":")
    if scheme in ("http", "https"):
        _address(model.strip())
    elif not (scheme == "local" and (rest or not colon)) and not (scheme == "openai" and rest):
        raise ConfigError(_no_such_form(model.strip(), scheme, rest))


def _address(model: str) -> tuple[str, str]:
    """Return the base URL and the name of a model on a server. Raises ConfigError."""
    url, _, name = model.partition("#")
    base_url = normal_base_url(url)
    if not name:
        raise ConfigError(f"model {model!r} does not say which model the server should use; write {model}#NAME")
    return base_url, name


def key_variable(base_url: str) -> str:
    """Return the name of the environment variable that holds the key for a base URL's host."""
    host = urlsplit(base_url).hostname or ""
    if host in HOSTS:
        return HOSTS[host].key_variable
    return "OWNLOOP_API_KEY_" + re.sub(r"[^A-Z0-9]", "_", host.upper())


def _openai(name: str, api_key: str | None, env: Mapping[str, str]) -> Adapter:
    key = api_key or env.get("OPENAI_API_KEY")
    if not key:
        raise ConfigError(
            f"model 'openai:{name}' needs a key: set OPENAI_API_KEY, or try model 'local', which needs none"
        )
    url = env.get("OPENAI_BASE_URL") or OPENAI_URL
    return OpenAICompatibleAdapter(url, name, key, name="openai", key_variable="OPENAI_API_KEY")


def _server(model: str, api_key: str | None, env: Mapping[str, str]) -> Adapter:
    base_url, name = _address(model)
    variable = key_variable(base_url)
    key = api_key or env.get(variable)
    host = HOSTS.get(urlsplit(base_url).hostname or "")
    if not key and host is not None:
        raise ConfigError(f"model {model!r} needs a key: set {variable}")
    return OpenAICompatibleAdapter(base_url, name, key, key_variable=variable)


def _no_such_form(model: str, scheme: str, rest: str) -> str:
    name = rest or "NAME"
    if scheme in _LATER:
        return f"model {model!r}: {_LATER[scheme]}".replace("NAME", name)
    if scheme in _SERVERS:
        meant = f"{_SERVERS[scheme]}#{name}"
    elif not rest and _OPENAI_NAMES.match(model):
        meant = f"openai:{model}"
    else:
        meant = next(iter(difflib.get_close_matches(scheme.lower(), ["local", "openai", *_LATER], n=1)), "")
        if meant and (rest or meant != "local"):
            meant = f"{meant}:{name}"
    hint = f"; did you mean {meant!r}?" if meant else ""
    return f"model {model!r} is not known{hint}\nWhat a model may be:\n{FORMS}"
