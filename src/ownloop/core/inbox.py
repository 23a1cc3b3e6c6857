"""What everybody but the owner may say to a session: rows of its inbox, a closed set (docs/design.md, The machine).

A row is durable before its sender is told so; the owner turns rows into facts, in the transaction that takes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from ownloop.core.codec import digest, dumps, loads, misfit
from ownloop.core.events import InputMode, ToolStatus
from ownloop.core.interactions import Answer
from ownloop.core.messages import BlobBlock, Json, TextBlock
from ownloop.errors import InvalidRequestError

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Input:
    input_id: str
    run_id: str
    """The run it starts, if it starts one: minted by the sender."""
    mode: InputMode
    blocks: tuple[TextBlock | BlobBlock, ...]
    deny_open: bool = False
    """Refuse the open approvals, with this text as the reason."""
    reject_busy: bool = False
    type: str = "message"
    """Another type, and `data`, go verbatim to a foreign agent."""
    data: Any = None
    kind: ClassVar[str] = "input"


@dataclass(frozen=True, slots=True)
class Withdraw:
    input_id: str
    kind: ClassVar[str] = "withdraw"


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    request_id: str
    answer: Answer
    kind: ClassVar[str] = "answer"


@dataclass(frozen=True, slots=True)
class Cancel:
    run_id: str | None = None
    """None: whatever run is live when the row is taken."""
    kind: ClassVar[str] = "cancel"


@dataclass(frozen=True, slots=True)
class Stop:
    kind: ClassVar[str] = "stop"


@dataclass(frozen=True, slots=True)
class Config:
    patch: Json
    kind: ClassVar[str] = "config"


@dataclass(frozen=True, slots=True)
class RevokeRule:
    rule_id: str
    kind: ClassVar[str] = "revoke_rule"


@dataclass(frozen=True, slots=True)
class LateResult:
    """A tool returned after its segment had ended (a thread that could not be stopped)."""

    run_id: str
    call_id: str
    attempt: int
    status: ToolStatus
    blocks: tuple[TextBlock | BlobBlock, ...]
    elapsed_ms: int = 0
    kind: ClassVar[str] = "late_result"


@dataclass(frozen=True, slots=True)
class Log:
    """What a foreign agent logged."""

    entries: tuple[Any, ...]
    kind: ClassVar[str] = "log"


@dataclass(frozen=True, slots=True)
class Request:
    """What a foreign agent asks of a person."""

    request_id: str
    type: str
    data: Any
    kind: ClassVar[str] = "request"


InboxBody: TypeAlias = (
    Input | Withdraw | AnswerRequest | Cancel | Stop | Config | RevokeRule | LateResult | Log | Request
)
INBOX: dict[str, type[InboxBody]] = {cls.kind: cls for cls in get_args(InboxBody)}


@dataclass(frozen=True, slots=True)
class InboxItem:
    """One row to be posted."""

    body: InboxBody
    at_ms: int
    principal: str = "local"
    idem_key: str | None = None
    origin: Literal["person", "system"] = field(default="person")

    @property
    def content_digest(self) -> str:
        """Two posts under one key are the same if this is; ids that the sender minted do not count."""
        content = loads(dump_item(self.body))
        for minted in ("input_id", "run_id") if isinstance(self.body, Input) else ():
            content.pop(minted, None)
        return digest([self.body.kind, content])


@dataclass(frozen=True, slots=True)
class InboxRow:
    """A row as the owner finds it."""

    id: int
    item: InboxItem


@cache
def _adapter(kind: str) -> TypeAdapter[InboxBody]:
    from pydantic import TypeAdapter

    return TypeAdapter(INBOX[kind])


def dump_item(body: InboxBody) -> str:
    """Return the JSON of a row's body.

    Raises:
        InvalidRequestError: its owner could not read it back, and would stumble over it for ever.
    """
    try:
        text = dumps(_adapter(body.kind).dump_python(body, mode="json", warnings="none"))
        load_item(body.kind, text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"this {body.kind} cannot be kept: {misfit(error)}") from error
    return text


def load_item(kind: str, text: str | bytes) -> InboxBody:
    """Read a row's body. Raises `ValueError` if it does not fit."""
    return _adapter(kind).validate_json(text, strict=True, extra="forbid")
