import pytest

from ownloop.backends.wires.provider_errors import MAX_DETAIL_CHARS, provider_error, redact, retry_after_s
from ownloop.errors import (
    AuthError,
    BackendTimeoutError,
    BadRequestError,
    ContextLengthError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
)

VLLM = "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": {"message": VLLM, "type": "BadRequestError", "code": 400}}, ContextLengthError),
        (400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": "too big"}}, ContextLengthError),
        (400, {"error": {"code": "context_length_exceeded", "message": "x"}}, ContextLengthError),
        (400, {"error": {"message": "unknown field"}}, BadRequestError),
        (400, {"error": {"code": "tool_use_failed", "message": "x"}}, ProviderError),
        (400, [{"error": {"code": 400, "message": "Gemini says no", "status": "INVALID_ARGUMENT"}}], BadRequestError),
        (401, {"detail": "no key"}, AuthError),
        (402, "pay first", AuthError),
        (403, "", AuthError),
        (404, {"object": "error", "message": "no such model", "code": 404}, BadRequestError),
        (408, "", BackendTimeoutError),
        (413, "Payload Too Large", BadRequestError),
        (429, {"error": {"message": "slow down", "code": 429}}, RateLimitedError),
        (429, {"error": {"message": "no credit", "code": "insufficient_quota"}}, AuthError),
        (500, "context window of the world", ProviderError),
        (502, "<html>bad gateway</html>", ProviderError),
        (503, {"error": {"message": "Loading model"}}, OverloadedError),
        (504, "", BackendTimeoutError),
        (529, "", OverloadedError),
        (None, {"error": {"code": 502, "message": "upstream"}}, ProviderError),
        (None, {"error": {"code": "429", "message": "upstream"}}, RateLimitedError),
        (None, {"error": {"type": "overloaded_error"}}, OverloadedError),
        (None, None, ProviderError),
    ],
)
def test_status_and_words_decide_the_kind(status: int | None, body: object, kind: type[ProviderError]) -> None:
    assert type(provider_error("p", body, status=status)) is kind


def test_an_error_tells_status_id_wait_and_the_providers_words() -> None:
    headers = {"x-request-id": "r1", "retry-after": "7"}
    error = provider_error("p", '{"error": {"message": "slow down"}}', status=429, headers=headers)
    assert (error.status, error.request_id, error.retry_after_s, error.detail) == (429, "r1", 7.0, "slow down")
    assert str(error) == "'p' limits the rate of requests (status 429): slow down"
    assert error.retryable


def test_a_key_does_not_go_out_with_the_words() -> None:
    error = provider_error(
        "p", {"error": "Incorrect key sk-1234 given"}, status=401, secrets=["sk-1234"], key_hint="see $K"
    )
    assert "sk-1234" not in str(error) + str(error.detail)
    assert str(error).endswith("Incorrect key [key] given; see $K")
    assert redact("a", [""]) == "a"


def test_long_pages_are_cut() -> None:
    error = provider_error("p", "x" * 100_000, status=500)
    assert len(error.detail or "") == MAX_DETAIL_CHARS


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "200", "retry-after": "9"}, 0.2),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Sun, 29 Nov 2026 10:00:30 GMT", "date": "Sun, 29 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Sun, 29 Nov 2026 09:00:00 GMT", "date": "Sun, 29 Nov 2026 10:00:00 GMT"}, 0.0),
        ({"retry-after": "Sun, 29 Nov 2026 10:00:30 GMT"}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], wait_s: float | None) -> None:
    assert retry_after_s(headers) == wait_s
