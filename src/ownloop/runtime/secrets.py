"""Secrets by name, from the environment. What was handed out once is redacted from every text that passes `redact`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ownloop.core.ports import Secrets
from ownloop.errors import ConfigError

MIN_REDACTED = 6
"""Shorter values ("1", "true", "local") stand in too many texts that are no secrets."""


class EnvSecrets:
    """Hand out the secrets that were declared, and no other variable.

    `names` lists variables, or maps each secret's name to its variable. `environ` stands in for the environment.
    """

    def __init__(self, names: Iterable[str] | Mapping[str, str] = (), environ: Mapping[str, str] | None = None) -> None:
        self._variable_of: dict[str, str] = {
            name: names[name] if isinstance(names, Mapping) else name for name in names
        }
        self._environ = os.environ if environ is None else environ
        self._name_of: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def get(self, name: str) -> str:
        variable = self._variable_of.get(name)
        if variable is None:
            known = ", ".join(map(repr, sorted(self._variable_of))) or "none"
            raise ConfigError(f"secret {name!r} was not declared; declared are: {known}")
        value = self._environ.get(variable, "")
        if not value:
            raise ConfigError(f"secret {name!r} is missing: set the environment variable {variable}")
        if len(value) >= MIN_REDACTED and value not in self._name_of:
            self._name_of[value] = name
            # The longest first: a secret that begins with another one is replaced as a whole.
            longest_first = sorted(self._name_of, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        return value

    def redact(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: f"[{self._name_of[found[0]]}]", text)


if TYPE_CHECKING:
    _fits: type[Secrets] = EnvSecrets
