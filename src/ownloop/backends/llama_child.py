"""The program of the child process that serves a GGUF file: llama.cpp's own HTTP server, on loopback.

Started by `llama_server`, by its path. Imports the standard library and xllamacpp, nothing of ownloop: it starts fast
and shares no state. Invariant: it does not outlive the process that started it.

Standard input: one line of JSON, the settings with the API key; then silence, whose end means that the parent is gone.
Standard output: one line of JSON, `{"url": …}`, once it listens. Everything else it says goes to standard error.

A process of its own because llama.cpp ends the whole process when it meets certain requests (a forced tool choice,
for one) and because loading a model holds Python's global lock.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any, Final

_PARENT_CHECK_S: Final = 2.0


def main() -> None:
    settings: dict[str, Any] = json.loads(_read_line(0))
    _arrange_signals(load_timeout_s=settings["load_timeout_s"])
    # llama.cpp writes to both standard streams; the parent's answer line gets a file of its own.
    answers = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), name="die-with-parent", daemon=True).start()
    try:
        server = _serve(settings)
    except Exception as error:  # noqa: BLE001  the edge of the process; the parent shows this line
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201  standard error is the log
        time.sleep(0.2)  # llama.cpp writes its log from a thread of its own: the reason is on its way
        # Not by raising: llama.cpp's threads may still be there, and an orderly exit would wait for them.
        os._exit(1)
    signal.alarm(0)
    os.write(answers, json.dumps({"url": server.listening_address}).encode() + b"\n")
    os.close(answers)
    signal.sigwait({signal.SIGTERM})
    os._exit(0)  # at once: there is nothing to flush, and llama.cpp would first finish its requests


def _serve(settings: dict[str, Any]) -> Any:
    """Load the model and serve it from threads of llama.cpp; return when it listens. The result must be kept."""
    # Here, so that no log line of its import is lost; and it ships no types.
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params: Any = xllamacpp.CommonParams()
    params.model.path = settings["model_path"]
    params.model_alias = {settings["alias"]}
    params.use_jinja = True  # tools need it
    if settings["template"] is not None:
        params.chat_template = settings["template"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # the system picks a free one, so that there is no race for it
    params.api_keys = [settings["api_key"]]
    params.ui = False
    params.endpoint_slots = False  # it shows other requests' prompts
    params.offline = True
    params.n_ctx = settings["n_ctx"]
    params.n_parallel = settings["n_parallel"]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    return xllamacpp.Server(params)


def _arrange_signals(*, load_timeout_s: int) -> None:
    """Set what signals do. Before any thread exists, so that all threads, llama.cpp's too, inherit the mask."""
    # Ctrl-C in a terminal goes to the parent, which decides; and a reader that went away is no reason to die.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Blocked and waited for: else a SIGTERM would be taken by whichever thread, with the default action.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # Loading holds the global lock, so no thread of Python can watch the parent meanwhile. The kernel's clock can.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(load_timeout_s)


def _die_with_parent(parent: int) -> None:
    """End this process when the parent's end of standard input closes, even by kill -9.

    Not with Linux's PR_SET_PDEATHSIG: it fires when the parent's *thread* that forked us ends, and macOS has no such
    thing. The parent's id is watched too: a process that the parent forked may hold a copy of the pipe's other end.
    """
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], _PARENT_CHECK_S)
        if readable and not os.read(0, 1024):
            break
    os._exit(0)


def _read_line(fd: int) -> bytes:
    """Read the one line that the parent writes. Unbuffered: what comes later is for the watcher to see."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(fd, 65536)
        if not piece:
            os._exit(0)  # the parent is gone already
        line += piece
    return bytes(line)


if __name__ == "__main__":
    main()
