"""What a person can do about a run that failed, by the error's code. Pure."""

from __future__ import annotations

from ownloop.core.events import ErrorInfo

_KEPT = "What you said is kept: say “go on” "
_IN_CHAT = {
    "auth": "`ownloop models` says where the key comes from. With another one, start the chat again; or take another "
    "model: /model.",
    "bad_request": "The same request will be refused again. Say it otherwise, or take another model: /model.",
    "context_length": "/new begins a new session. Or take a model with a longer context: /model.",
    "unavailable": f"Look whether the server runs and its address is right. {_KEPT}then. Or take another model: "
    "/model.",
    "rate_limited": f"{_KEPT}{{wait}}. Or take another model: /model.",
    "overloaded": f"{_KEPT}in a moment. Or take another model: /model.",
    "provider_error": f"{_KEPT}in a moment.",
    "stream_interrupted": f"{_KEPT}in a moment.",
    "timeout": f"{_KEPT}in a moment.",
}
_ALONE = {
    "auth": "`ownloop models` says where the key comes from.",
    "unavailable": "Look whether the server runs and its address is right.",
    "rate_limited": "Try again {wait}.",
    "overloaded": "Try again in a moment.",
    "provider_error": "Try again in a moment.",
    "stream_interrupted": "Try again in a moment.",
    "timeout": "Try again in a moment.",
}


def advice(error: ErrorInfo, *, in_chat: bool) -> str:
    """Return what to do about an error; "" where its own words say it, or nobody knows."""
    seconds = round(error.retry_after_ms / 1000) if error.retry_after_ms else 0
    words = (_IN_CHAT if in_chat else _ALONE).get(error.code, "")
    return words.format(wait=f"in {seconds} s" if seconds else "in a moment")
