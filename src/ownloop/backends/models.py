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
from ownloop.backends.model_forms import FORMS, USUAL_SERVERS, forms_as_text
from ownloop.backends.openai_compatible import OPENAI_URL, OpenAICompatibleAdapter, normal_base_url
from ownloop.backends.profiles import HOSTS
from ownloop.core.backend import Adapter
from ownloop.errors import ConfigError

_OPENAI_NAMES: Final = re.compile(r"(chatgpt|gpt|o\d)\b")
_CLAUDE_NAMES: Final = re.compile(r"claude\b")


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
    scheme, colon, rest = _split(model)
    if scheme == "local" and (rest or not colon):
        return LocalAdapter(rest, servers=servers, on_progress=on_progress)
    if scheme in ("http", "https"):
        return _server(model.strip(), api_key, env)
    if scheme in _HOSTED and rest:
        return _hosted(scheme, rest, api_key, env)
    raise ConfigError(_no_such_form(model.strip(), scheme, rest))


def check_model(model: str) -> None:
    """Raise ConfigError if `model` has none of the known forms. Keys and files are looked at when it is opened."""
    scheme, colon, rest = _split(model)
    if scheme in ("http", "https"):
        _address(model.strip())
    elif not (scheme == "local" and (rest or not colon)) and not (scheme in _HOSTED and rest):
        raise ConfigError(_no_such_form(model.strip(), scheme, rest))


def _split(model: str) -> tuple[str, str, str]:
    """Return what stands before the first colon, the colon, and what comes after it."""
    scheme, colon, rest = model.strip().partition(":")
    return scheme.lower() if scheme.lower() in ("http", "https") else scheme, colon, rest.strip()


def _address(model: str) -> tuple[str, str]:
    """Return the base URL and the name of a model on a server. Raises ConfigError."""
    url, _, name = model.partition("#")
    base_url = normal_base_url(url)
    name = name.strip()
    if not name:
        raise ConfigError(f"model {model!r} does not say which model the server should use; write {url}#NAME")
    return base_url, name


def key_variable(base_url: str) -> str:
    """Return the name of the environment variable that holds the key for a base URL's host."""
    host = urlsplit(base_url).hostname or ""
    if host in HOSTS:
        return HOSTS[host].key_variable
    return "OWNLOOP_API_KEY_" + re.sub(r"[^A-Z0-9]", "_", host.upper())


def _claude(name: str, key: str, url: str | None, variable: str) -> Adapter:
    from ownloop.backends.anthropic import ANTHROPIC_URL, ClaudeAdapter

    return ClaudeAdapter(name, key, base_url=url or ANTHROPIC_URL, key_variable=variable)


def _openai(name: str, key: str, url: str | None, variable: str) -> Adapter:
    return OpenAICompatibleAdapter(url or OPENAI_URL, name, key, name="openai", key_variable=variable)


def _openai_responses(name: str, key: str, url: str | None, variable: str) -> Adapter:
    from ownloop.backends.openai_responses import OpenAIResponsesAdapter

    return OpenAIResponsesAdapter(url or OPENAI_URL, name, key, key_variable=variable)


def _hugging_face(name: str, key: str, url: str | None, variable: str) -> Adapter:
    from ownloop.backends.huggingface import ROUTER_URL, HuggingFaceAdapter

    return HuggingFaceAdapter(name, key, base_url=url or ROUTER_URL, key_variable=variable)


# Each imports its wire when it is asked for: a program uses one or two of them.
_HOSTED: Final[Mapping[str, Callable[[str, str, str | None, str], Adapter]]] = {
    "anthropic": _claude,
    "openai": _openai,
    "openai-responses": _openai_responses,
    "hf": _hugging_face,
}


def _hosted(scheme: str, name: str, api_key: str | None, env: Mapping[str, str]) -> Adapter:
    form = next(form for form in FORMS if form.scheme == scheme)
    assert form.key_variable is not None
    if form.missing:
        packages = " and ".join(repr(module) for module in form.missing)
        raise ConfigError(
            f"model '{scheme}:{name}' needs the Python package {packages}: pip install 'ownloop[{form.extra}]'"
        )
    key = api_key or env.get(form.key_variable)
    if not key:
        raise ConfigError(
            f"model '{scheme}:{name}' needs a key: set {form.key_variable}, or try model 'local', which needs none"
        )
    return _HOSTED[scheme](name, key, env.get(form.url_variable) if form.url_variable else None, form.key_variable)


def _server(model: str, api_key: str | None, env: Mapping[str, str]) -> Adapter:
    base_url, name = _address(model)
    variable = key_variable(base_url)
    key = api_key or env.get(variable)
    host = HOSTS.get(urlsplit(base_url).hostname or "")
    if host is not None and urlsplit(base_url).scheme != "https":
        raise ConfigError(f"model {model!r} would send its key in the clear; write https://")
    if not key and host is not None:
        raise ConfigError(f"model {model!r} needs a key: set {variable}")
    return OpenAICompatibleAdapter(base_url, name, key, key_variable=variable)


def _no_such_form(model: str, scheme: str, rest: str) -> str:
    name = rest or "NAME"
    server = next((server for server in USUAL_SERVERS if server.name == scheme), None)
    if server is not None:
        meant = f"{server.base_url}#{name}"
    elif not rest and _OPENAI_NAMES.match(model):
        meant = f"openai:{model}"
    elif not rest and _CLAUDE_NAMES.match(model):
        meant = f"anthropic:{model}"
    else:
        meant = next(iter(difflib.get_close_matches(scheme.lower(), ["local", *_HOSTED], n=1)), "")
        if meant and (rest or meant != "local"):
            meant = f"{meant}:{name}"
    hint = f"; did you mean {meant!r}?" if meant else ""
    return f"model {model!r} is not known{hint}\nWhat a model may be:\n{forms_as_text()}"
