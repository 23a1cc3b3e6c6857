"""`ownloop models`: what a model may be, what is configured for it, what is missing, and which servers listen here.

Never shows a key, nor the part of a URL that may hold one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ownloop.backends.model_forms import FORMS, ModelForm
from ownloop.backends.models import key_variable
from ownloop.backends.profiles import HOSTS
from ownloop.backends.server_probe import FoundServer, find_servers
from ownloop.backends.transport import http_url
from ownloop.backends.weights import DEFAULT_WEIGHTS, fetched_model
from ownloop.cli.columns import GAP, filled, widths, wrapped
from ownloop.cli.harmless import harmless
from ownloop.cli.lines import Lines
from ownloop.cli.output import Output
from ownloop.cli.pipes import own_stdout
from ownloop.cli.place import shown
from ownloop.core.messages import Json
from ownloop.errors import ConfigError

SHORTEST_TEXT = 34
"""Columns for the words beside a form; with fewer they stand below it."""
LISTED = 20
"""Models of a server that a person is shown."""


async def show_models(*, as_json: bool) -> int:
    """Show what there is; return the exit code."""
    forms = [_Form(form, os.environ) for form in FORMS]
    servers = await find_servers(os.environ)
    if as_json:
        with own_stdout() as file:
            Lines(file).object("models", **_as_json(forms, servers))
        return 0
    output = Output(sys.stdout, sys.stdout)
    _show_forms(output, [form.row() for form in forms])
    output.line()
    output.line(output.bold("Servers on this machine"))
    _show_servers(output, servers)
    output.line()
    output.prose('Use one: Agent("name", model="…")')
    return 0


@dataclass(frozen=True, slots=True)
class _Row:
    model: str
    state: str
    is_ready: bool
    text: str
    """What it is; what there is for it, or what is to be done."""


@dataclass(frozen=True, slots=True)
class _Form:
    """A form, looked at in this environment."""

    form: ModelForm
    env: Mapping[str, str]

    @property
    def has_key(self) -> bool:
        return bool(self.form.key_variable and self.env.get(self.form.key_variable))

    @property
    def is_ready(self) -> bool:
        return not self.form.missing and (self.form.key_variable is None or self.has_key) and self.host != "?"

    @property
    def host(self) -> str | None:
        """The host that is set in the place of the usual one; "?" if what is set is no usable URL."""
        url = self.env.get(self.form.url_variable) if self.form.url_variable else None
        try:
            return (urlsplit(http_url(url)).hostname or "?") if url else None
        except ConfigError:
            return "?"

    @property
    def _lack(self) -> str:
        if self.form.missing:
            return "not installed"
        return "no key" if not self.has_key else "wrong URL"

    def row(self) -> _Row:
        form = self.form
        state = "ready" if self.is_ready else self._lack
        notes: list[str] = []
        if form.missing:
            notes.append(f"pip install 'ownloop[{form.extra}]'")
        if form.key_variable is not None:
            notes.append(f"the key is in {form.key_variable}" if self.has_key else f"set {form.key_variable}")
        if self.host == "?":
            notes.append(f"{form.url_variable} holds no usable URL")
        elif self.host is not None:
            notes.append(f"goes to {harmless(self.host)} (by {form.url_variable})")
        notes.extend(_MORE.get(form.example, _nothing)(self.env))
        return _Row(form.example, state, self.is_ready, " · ".join([form.what, *notes]))

    def as_json(self) -> Json:
        form = self.form
        found: Json = {
            "model": form.example,
            "what": form.what,
            "ready": self.is_ready,
            "extra": form.extra,
            "missing_packages": form.missing,
        }
        if form.key_variable is not None:
            found |= {"key_variable": form.key_variable, "key_set": self.has_key}
        return found | ({"host": self.host} if self.host is not None else {})


def _nothing(env: Mapping[str, str]) -> Iterable[str]:
    del env
    return ()


def _local(env: Mapping[str, str]) -> Iterable[str]:
    del env
    path = fetched_model()
    megabytes = f"{DEFAULT_WEIGHTS.size // 1_000_000} MB"
    if path is None:
        yield f"{DEFAULT_WEIGHTS.title} is fetched with the first use: {megabytes}"
    else:
        yield f"{DEFAULT_WEIGHTS.title}, {megabytes}, in {harmless(shown(str(path.parent)))}"


def _own_servers(env: Mapping[str, str]) -> Iterable[str]:
    keys = sorted(name for name, value in env.items() if name.startswith("OWNLOOP_API_KEY_") and value)
    if keys:
        yield f"keys are in {', '.join(keys)}"


def _hosts(env: Mapping[str, str]) -> Iterable[str]:
    set_here = [name for name in _host_keys() if env.get(name)]
    if set_here:
        yield f"keys are in {', '.join(set_here)}"
    if others := [name for name in _host_keys() if name not in set_here]:
        yield f"{'others' if set_here else 'keys'}: {', '.join(others)}"


def _host_keys() -> list[str]:
    """Return the variables of hosts that have no form of their own."""
    own = {form.key_variable for form in FORMS}
    return [host.key_variable for host in HOSTS.values() if host.key_variable not in own]


_MORE = {
    "local": _local,
    "http://HOST:PORT/v1#NAME": _own_servers,
    "https://HOST/v1#NAME": _hosts,
}


def _show_forms(output: Output, rows: Sequence[_Row]) -> None:
    """Write a table; where it has no room for sentences, each form with its sentence below it."""
    models, states = widths([(row.model, row.state) for row in rows])
    indent = models + states + 2 * GAP
    is_beside = output.width - indent >= SHORTEST_TEXT
    if not is_beside:
        indent = GAP
    for row in rows:
        state = filled(row.state, states + GAP) if is_beside else row.state
        head = output.bold(filled(row.model, models + GAP)) + output.style("32" if row.is_ready else "33", state)
        lines = wrapped(row.text, output.width - indent)
        output.line(head + lines.pop(0) if is_beside else head)
        for line in lines:
            output.line(" " * indent + line)


def _show_servers(output: Output, servers: Sequence[FoundServer]) -> None:
    found = [server for server in servers if server.status in ("up", "key")]
    for one in found:
        output.line(one.server.title)
        for model in one.strings[:LISTED]:
            output.line("  " + harmless(model))
        if one.status == "key":
            output.prose(f"wants a key: set {key_variable(one.server.base_url)}", "  ")
        elif not one.models:
            output.prose("has no model yet", "  ")
        elif len(one.models) > LISTED:
            output.prose(f"and {len(one.models) - LISTED} more", "  ")
    silent = [one for one in servers if one not in found]
    if silent:
        ports = ", ".join(f"{one.server.title} ({urlsplit(one.server.base_url).port})" for one in silent)
        # A name and its port stay together.
        ports = ports.replace(" ", "\u00a0").replace(",\u00a0", ", ")
        output.prose(f"None at the {'other ' if found else ''}usual ports: {ports}")


def _as_json(forms: Sequence[_Form], servers: Sequence[FoundServer]) -> Json:
    path = fetched_model()
    return {
        "forms": [form.as_json() for form in forms],
        "local_model": {
            "name": DEFAULT_WEIGHTS.title,
            "bytes": DEFAULT_WEIGHTS.size,
            "fetched": path is not None,
            **({} if path is None else {"path": str(path)}),
        },
        "hosts": [
            {"host": name, "key_variable": host.key_variable, "key_set": bool(os.environ.get(host.key_variable))}
            for name, host in HOSTS.items()
        ],
        "servers": [
            {
                "name": found.server.title,
                "base_url": found.server.base_url,
                "status": found.status,
                "models": found.strings,
            }
            for found in servers
        ],
    }
