"""The person's own editor, for a text that is too long for a line. Used by `approval`.

The text lies in a file that nobody else may read, and only as long as the editor runs.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from ownloop.cli.prompt import Prompt
from ownloop.cli.signals import Signals

END_S = 2.0
"""How long an editor may take to end when the program ends."""


class EditorError(Exception):
    """The editor gave no text."""


class Editor:
    """What VISUAL, or else EDITOR, names; it may have arguments, as in `code --wait`."""

    def __init__(self, prompt: Prompt, signals: Signals, env: Mapping[str, str] = os.environ) -> None:
        self._prompt = prompt
        self._signals = signals
        self._named = (env.get("VISUAL") or env.get("EDITOR") or "").strip()

    @property
    def is_set(self) -> bool:
        return bool(self._named)

    async def edit(self, text: str, name: str) -> str:
        """Open `text` as a file of this name, and return what it holds when the editor has ended.

        Raises EditorError: it cannot be started, failed, or left no text. Cancelled, it is still waited for, as it has
        the terminal; it is ended only if the program ends.
        """
        try:
            command = shlex.split(self._named)
        except ValueError as error:
            raise EditorError(f"the editor {self._named!r} cannot be read as a command: {error}") from error
        with TemporaryDirectory(prefix="ownloop-") as folder:
            file = _written(Path(folder), name, text)
            with self._prompt.lent(), self._signals.interrupts_go_to(_nothing):
                code = await self._run([*command, str(file)])
            if code != 0:
                raise EditorError(f"the editor {self._named!r} ended with code {code}")
            return _read(file)

    async def _run(self, command: list[str]) -> int:
        try:
            process = await asyncio.create_subprocess_exec(*command)
        except OSError as error:
            raise EditorError(f"the editor {command[0]!r} cannot be started: {error.strerror}") from error
        ended = asyncio.ensure_future(process.wait())
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            while not ended.done():
                if self._signals.exit_code is not None:
                    process.terminate()
                try:
                    await asyncio.wait((ended,), timeout=END_S if self._signals.exit_code is not None else None)
                except asyncio.CancelledError:
                    continue
                if not ended.done():
                    process.kill()
            raise


def _nothing() -> None:
    """Ctrl-C in the editor is meant for the editor."""


def _written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)
    return file


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise EditorError(f"what the editor left cannot be read: {error}") from error
