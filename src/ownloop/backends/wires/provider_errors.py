"""What a provider's refusal means, in our error family. Pure; for the backends.

The invariant: a provider's words are translated here and nowhere else, and no key goes out with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

from ownloop.core.text import clean_text
from ownloop.errors import (
    AuthError,
    BackendTimeoutError,
    BadRequestError,
    ContextLengthError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
)

MAX_DETAIL_CHARS: Final = 2000
"""Error pages of proxies are long, and say what they have to say at their top."""

_BY_WORD: Final[Mapping[str, type[ProviderError]]] = {
    # `code` or `type` of an error object. They say more than the status, which gateways change.
    "context_length_exceeded": ContextLengthError,
    "exceed_context_size_error": ContextLengthError,  # llama.cpp
    "string_above_max_length": ContextLengthError,
    "authentication_error": AuthError,
    "invalid_api_key": AuthError,
    "permission_error": AuthError,
    "billing_error": AuthError,
    # Both come as 429, but no wait helps: an account without credit has a key without rights.
    "insufficient_quota": AuthError,
    "billing_hard_limit_reached": AuthError,
    "rate_limit_error": RateLimitedError,
    "rate_limit_exceeded": RateLimitedError,
    "overloaded_error": OverloadedError,
    "server_is_overloaded": OverloadedError,
    "slow_down": RateLimitedError,
    "timeout_error": BackendTimeoutError,
    # The model's slip, not the request's (Groq): asking again helps.
    "tool_use_failed": ProviderError,
    "output_parse_failed": ProviderError,
    # What a response fails of that will fail again: inside a stream there is no status that would say so.
    **dict.fromkeys(
        (
            *(
                "invalid_prompt",
                "data_residency_mismatch",
                "bio_policy",
                "cyber_policy",
                "misalignment_policy_violation",
            ),
            *("invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_mode", "image_too_large"),
            *("image_too_small", "image_parse_error", "image_content_policy_violation", "image_file_too_large"),
            *("unsupported_image_media_type", "empty_image_file"),
        ),
        BadRequestError,
    ),
}

_BY_STATUS: Final[Mapping[int, type[ProviderError]]] = {
    401: AuthError,
    402: AuthError,
    403: AuthError,
    408: BackendTimeoutError,
    429: RateLimitedError,
    503: OverloadedError,
    504: BackendTimeoutError,
    529: OverloadedError,
}

# For servers that send a bare 400: vLLM, llama.cpp, gateways.
_CONTEXT_PHRASES: Final = (
    "maximum context length",
    "context size",
    "context window",
    "context length",
    "context limit",
    "prompt is too long",
)

_SAYS: Final[Mapping[type[ProviderError], str]] = {
    ContextLengthError: "says that the conversation is too long",
    AuthError: "does not accept the key, or the key may not do this",
    RateLimitedError: "limits the rate of requests",
    OverloadedError: "is overloaded",
    BackendTimeoutError: "gave up waiting",
    BadRequestError: "refuses this request",
    ProviderError: "failed",
}


def redact(text: str, secrets: Sequence[str]) -> str:
    """Return `text` with every secret replaced by `[key]`."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[key]")
    return text


def provider_error(
    provider: str,
    body: object,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
    key_hint: str = "",
) -> ProviderError:
    """Translate an error object, or the body of an HTTP error, into the family.

    `body` is JSON (an object with `error` in it, the error itself, a list of one) or text. Without `status`, as inside
    a stream, a numeric `code` of the error stands for it. `key_hint` tells a person where a refused key came from.
    """
    message, words = _read(body)
    if status is None:
        status = next((int(word) for word in words if word.isdecimal() and 400 <= int(word) <= 599), None)
    kind = _kind(status, message, words)
    detail = redact(clean_text(message.strip()), secrets)[:MAX_DETAIL_CHARS] or None
    told = f"{provider!r} {_SAYS[kind]}" + (f" (status {status})" if status else "") + (f": {detail}" if detail else "")
    if kind is AuthError and key_hint:
        told = f"{told}; {key_hint}"
    headers = headers or {}
    return kind(
        told,
        status=status,
        request_id=redact(headers.get("x-request-id") or headers.get("request-id") or "", secrets) or None,
        retry_after_s=retry_after_s(headers),
        detail=detail,
    )


def _kind(status: int | None, message: str, words: Sequence[str]) -> type[ProviderError]:
    for word in words:
        if word in _BY_WORD:
            return _BY_WORD[word]
    if status is None or 400 <= status < 500:
        lowered = message.lower()
        if status in (None, 400, 413, 422) and any(phrase in lowered for phrase in _CONTEXT_PHRASES):
            return ContextLengthError
    if status is None:
        return ProviderError
    return _BY_STATUS.get(status) or (BadRequestError if 400 <= status < 500 else ProviderError)


def _read(body: object) -> tuple[str, list[str]]:
    """Return the words for a person, and the code and type for the table."""
    if isinstance(body, list) and body:  # Gemini wraps its error object in a list
        body = cast("list[object]", body)[0]
    if isinstance(body, str):
        text = body.strip()
        if text[:1] in ("{", "["):
            try:
                return _read(json.loads(text))
            except (ValueError, RecursionError):
                pass
        return text, []
    if not isinstance(body, dict):
        return "", []
    fields = cast("dict[str, Any]", body)
    inner: object = fields.get("error") or fields
    if isinstance(inner, str):
        return inner, []
    error = cast("dict[str, Any]", inner) if isinstance(inner, dict) else fields
    words = [str(error[key]).lower() for key in ("code", "type") if isinstance(error.get(key), str | int)]
    return _text(error.get("message") or error.get("detail") or fields.get("message") or ""), words


def _text(message: object) -> str:
    if isinstance(message, str):
        return message
    try:
        return json.dumps(message)
    except RecursionError:
        return ""


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read how long the provider asks us to wait; a date counts from the reply's own `Date`."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            wait = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        return wait if 0 <= wait < float("inf") else None
    try:
        until, now = (parsedate_to_datetime(headers[name]) for name in ("retry-after", "date"))
        return max(0.0, (until - now).total_seconds())
    except (KeyError, ValueError, TypeError):
        return None
