"""Every error ownloop raises, as one tree. Imported by everybody; imports nothing of ownloop.

```
OwnloopError                     code              meaning
├── ConfigError                  config            a setting, extra, key or file is missing or wrong
│   └── ToolDefinitionError      tool_definition   a @tool function cannot be offered to a model
├── InvalidRequestError          invalid_request   input from a client that does not fit its schema
│   └── CursorError              cursor            a cursor that nobody here wrote
├── NotFoundError                not_found         no such session, run, request, agent, blob
├── ConflictError                conflict          the same key or request, with other content
│   ├── SessionClosedError       session_closed    the session was stopped; it takes no more input
│   ├── BusyError                busy              a run is live and the caller chose on_busy="reject"
│   └── CursorAheadError         cursor_ahead      a cursor beyond the head of this journal
├── SlowReaderError              slow_reader       a subscriber fell too far behind; resume by its last cursor
├── IllegalFactError             illegal_fact      a fact that its journal does not allow (a bug, or a damaged journal)
├── StoreError                   store             the store failed; nothing of the call was written
│   ├── StoreFullError           store_full        disk full
│   ├── StoreCorruptError        store_corrupt     the file is damaged
│   ├── StoreNewerError          store_newer       written by a newer ownloop
│   ├── StoreInUseError          store_in_use      another process owns it; names its pid
│   ├── FencedError              fenced            a newer owner has the session
│   └── StaleError               stale             somebody answered a request, or wrote, first: look again
└── ProviderError                provider_error    the model's side failed
    ├── StreamInterruptedError   stream_interrupted  the answer broke off
    ├── OverloadedError          overloaded
    ├── RateLimitedError         rate_limited      retry_after_s says when
    ├── BadRequestError          bad_request       the provider refuses the request itself
    │   └── ContextLengthError   context_length    the conversation is too long for the model
    ├── AuthError                auth              key missing, wrong or without rights
    ├── BackendTimeoutError      timeout
    └── BackendUnavailableError  unavailable       nobody listens, or the local server died
```

A tool's failure or a denial is no exception but a result that the model reads. Wrong use by a programmer is plain
`TypeError` or `ValueError`. The cause is always chained.
"""

from __future__ import annotations

from typing import ClassVar


class OwnloopError(Exception):
    """Something went wrong in ownloop."""

    code: ClassVar[str] = "ownloop"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or type(self).__name__).splitlines()[0])

    @property
    def message(self) -> str:
        return str(self)


class ConfigError(OwnloopError):
    """The configuration is not usable."""

    code = "config"


class ToolDefinitionError(ConfigError):
    """This function cannot be offered to a model as a tool."""

    code = "tool_definition"


class InvalidRequestError(OwnloopError):
    """The request does not fit its schema."""

    code = "invalid_request"


class CursorError(InvalidRequestError):
    """The cursor is malformed."""

    code = "cursor"


class NotFoundError(OwnloopError):
    """There is no such thing here."""

    code = "not_found"


class ConflictError(OwnloopError):
    """Something else was said here first."""

    code = "conflict"


class SessionClosedError(ConflictError):
    """The session is closed."""

    code = "session_closed"


class BusyError(ConflictError):
    """A run of this session is live."""

    code = "busy"


class CursorAheadError(ConflictError):
    """The cursor is ahead of the journal."""

    code = "cursor_ahead"


class SlowReaderError(OwnloopError):
    """This reader fell too far behind; subscribe again from its last cursor."""

    code = "slow_reader"


class IllegalFactError(OwnloopError):
    """The journal does not allow this fact here."""

    code = "illegal_fact"


class StoreError(OwnloopError):
    """The store failed; nothing of this call was written."""

    code = "store"


class StoreFullError(StoreError):
    """The store's disk is full; nothing of this call was written."""

    code = "store_full"


class StoreCorruptError(StoreError):
    """The store's file is damaged."""

    code = "store_corrupt"


class StoreNewerError(StoreError):
    """The store was written by a newer ownloop."""

    code = "store_newer"


class StoreInUseError(StoreError):
    """Another process owns this session or store."""

    code = "store_in_use"

    def __init__(self, message: str | None = None, *, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class FencedError(StoreError):
    """A newer owner has this session; this one may write no more."""

    code = "fenced"


class StaleError(StoreError):
    """Somebody else was first; read the inbox and decide again."""

    code = "stale"


class ProviderError(OwnloopError):
    """The provider failed.

    `detail` holds the provider's own words with secrets removed; `status` its HTTP status, if any.
    """

    code = "provider_error"
    retryable: ClassVar[bool] = True
    """Whether the same request may succeed a little later."""

    def __init__(
        self,
        message: str | None = None,
        *,
        status: int | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.detail = detail


class StreamInterruptedError(ProviderError):
    """The provider's answer broke off before its end."""

    code = "stream_interrupted"


class OverloadedError(ProviderError):
    """The provider is overloaded."""

    code = "overloaded"


class RateLimitedError(ProviderError):
    """The provider limits the rate of requests."""

    code = "rate_limited"


class BadRequestError(ProviderError):
    """The provider refuses this request."""

    code = "bad_request"
    retryable = False


class ContextLengthError(BadRequestError):
    """The conversation is longer than the model's context."""

    code = "context_length"


class AuthError(ProviderError):
    """The provider does not accept the key."""

    code = "auth"
    retryable = False


class BackendTimeoutError(ProviderError):
    """The provider did not answer in time."""

    code = "timeout"


class BackendUnavailableError(ProviderError):
    """The provider cannot be reached."""

    code = "unavailable"
