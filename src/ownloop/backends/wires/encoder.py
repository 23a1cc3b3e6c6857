"""What the request encoders of all wires share: the memo, the ids and names on the wire, the tools. Pure.

The invariant: what was sent for a message never changes while the conversation grows (servers cache prompts by their
prefix), so an encoder may memoise by the identity of the immutable messages, and a request costs what is new.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ownloop.backends.profiles import GENERIC, Profile
from ownloop.core.backend import ModelRequest
from ownloop.core.codec import dumps, loads
from ownloop.core.messages import (
    BlobBlock,
    Json,
    Message,
    ResultContent,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    calls_of,
)
from ownloop.core.toolspec import ToolSpec

REMEMBERED_MESSAGES: Final = 4096
"""An encoder keeps the encodings of up to twice as many messages, over all sessions; older ones are made again."""

FAILED: Final = "ERROR: "
"""Opens the result of a failed call: for wires that have no flag for it."""

_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A request as it goes out. Not to be changed: the encoder shares its parts."""

    body: Json
    """All but the model's name and the wish for a stream, which belong to the transport."""
    names: Mapping[str, str]
    """Our name of each tool by its name on the wire."""


@dataclass(frozen=True, slots=True)
class _Memo:
    message: Message
    calls: tuple[ToolCallBlock, ...]
    ids: tuple[str, ...]
    """The ids on the wire of its calls or results: the one thing that depends on the rest of the conversation."""
    body: tuple[Json, ...]


class Encoder(ABC):
    """Encode requests to one model on one provider; holds nothing but the memo, so sessions may share it.

    `provider` and `model` say whose own fields and blocks may go back.
    """

    def __init__(self, provider: str = "", model: str = "", profile: Profile = GENERIC) -> None:
        self._provider = provider
        self._model = model
        self._profile = profile
        self._call_ids = re.compile(profile.call_ids)
        # Two generations: what was not asked for while the young one filled up is forgotten.
        self._young: dict[int, _Memo] = {}
        self._old: dict[int, _Memo] = {}
        self._tools: tuple[tuple[ToolSpec, ...], list[Json], dict[str, str]] = ((), [], {})

    # --- what a wire says ---

    @abstractmethod
    def _body(self, request: ModelRequest, messages: list[Json], tools: list[Json]) -> Json:
        """Put a request together; `tools` may be empty, and the key is left out then: servers refuse an empty list."""

    @abstractmethod
    def _user(self, blocks: Sequence[ResultContent], blobs: Mapping[str, bytes]) -> Iterable[Json]:
        """Encode what a person said."""

    @abstractmethod
    def _assistant(self, message: Message, ids: Sequence[str]) -> Iterable[Json]:
        """Encode what the model said; `ids` are the wire ids of its calls, in order."""

    @abstractmethod
    def _results(self, results: Sequence[tuple[str, ToolResultBlock]], blobs: Mapping[str, bytes]) -> Iterable[Json]:
        """Encode the results of one turn, each with the wire id of its call."""

    @abstractmethod
    def _tool(self, spec: ToolSpec) -> Json: ...

    # --- the conversation ---

    def encode(self, request: ModelRequest) -> Encoded:
        """Raises ValueError if the bytes of a blob are not in the request."""
        out: list[Json] = []
        wire_ids: dict[str, str] = {}
        used: set[str] = set()
        for message in request.messages:
            memo = self._young.get(id(message)) or self._old.get(id(message))
            calls = memo.calls if memo is not None else calls_of(message.blocks)
            if message.role == "tool":
                results = [block for block in message.blocks if isinstance(block, ToolResultBlock)]
                ids = tuple(wire_ids.get(result.call_id, "") for result in results)
            elif calls:
                ids = tuple(self._wire_id(call, used) for call in calls)
                wire_ids.update(zip((call.call_id for call in calls), ids, strict=True))
            else:
                ids = ()
            if memo is None or memo.ids != ids:
                memo = _Memo(message, calls, ids, tuple(self._encode_message(message, ids, request.blobs)))
            self._remember(memo)
            out.extend(memo.body)
        tools, names = self._encode_tools(request.tools)
        body = self._body(request, out, tools)
        for key in ("model", "stream"):  # among the extra fields
            body.pop(key, None)
        return Encoded(body, names)

    def _encode_message(self, message: Message, ids: Sequence[str], blobs: Mapping[str, bytes]) -> Iterable[Json]:
        match message.role:
            case "user":
                said = [block for block in message.blocks if isinstance(block, TextBlock | BlobBlock)]
                return self._user(said, blobs)
            case "assistant":
                return self._assistant(message, ids)
            case "tool":
                results = [block for block in message.blocks if isinstance(block, ToolResultBlock)]
                # A result without its call is refused; whatever trimmed the call has trimmed the exchange.
                return self._results([(id, result) for id, result in zip(ids, results, strict=True) if id], blobs)

    def _is_own(self, message: Message) -> bool:
        """Whether this very model on this provider wrote a message, so that its own fields may go back."""
        return message.provider == self._provider and message.model == self._model

    def _remember(self, memo: _Memo) -> None:
        self._young[id(memo.message)] = memo  # the memo holds the message, so its id cannot be given to another one
        if len(self._young) >= REMEMBERED_MESSAGES:
            self._old, self._young = self._young, {}

    def _wire_id(self, call: ToolCallBlock, used: set[str]) -> str:
        """Return the provider's own id where it is legal and new in this conversation, else a stable replacement."""
        for candidate in _candidates(call):
            if candidate not in used and self._call_ids.fullmatch(candidate):
                used.add(candidate)
                return candidate
        raise AssertionError  # the candidates do not end

    def _encode_tools(self, specs: Sequence[ToolSpec]) -> tuple[list[Json], dict[str, str]]:
        known = self._tools[0]
        if len(known) != len(specs) or any(a is not b for a, b in zip(known, specs, strict=True)):
            tools = [self._tool(spec) for spec in specs]
            self._tools = (tuple(specs), tools, {wire_name(spec.name): spec.name for spec in specs})
        return self._tools[1:]

    def _can_read(self, block: BlobBlock) -> bool:
        readable = block.media_type.startswith("image/") or block.media_type == "application/pdf"
        return readable and self._profile.attachments


def wire_name(name: str) -> str:
    """Return a tool's name as every wire allows it, the same for the same name in every conversation.

    A name with other characters, or with more than 64, is rewritten and told apart by a digest of the original.
    """
    if _LEGAL_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:55]}_{digest}"


def unread(block: BlobBlock) -> str:
    """Return what the model is told instead of an attachment that it cannot read."""
    return f"[an attachment of type {block.media_type} that this model cannot read]"


def see_next_message(attached: Sequence[BlobBlock]) -> str:
    """Return what a result says whose attachments follow in a message of their own."""
    return f"See the {'attachment' if len(attached) == 1 else 'attachments'} in the next message."


def returned_by(result: ToolResultBlock, id: str) -> str:
    """Return what introduces the attachments of a result there."""
    return f"Returned by {wire_name(result.name)} (call {id}):"


def base64_of(block: BlobBlock, blobs: Mapping[str, bytes]) -> str:
    """Raises ValueError if the bytes are not there."""
    body = blobs.get(block.digest)
    if body is None:
        raise ValueError(f"the bytes of blob {block.digest!r} are not in the request")
    return base64.b64encode(body).decode("ascii")


def data_url(block: BlobBlock, blobs: Mapping[str, bytes]) -> str:
    """Raises ValueError if the bytes are not there."""
    return f"data:{block.media_type};base64,{base64_of(block, blobs)}"


def paragraphs(blocks: Sequence[ResultContent]) -> str:
    """Join the text of `blocks`; the empty ones are dropped."""
    return "\n\n".join(block.text for block in blocks if isinstance(block, TextBlock) and block.text)


def object_schema(spec: ToolSpec) -> Json:
    """Return a tool's schema with what chat templates read without asking whether it is there."""
    return {"type": "object", "properties": {}, **spec.input_schema}


def call_arguments(call: ToolCallBlock) -> str:
    """Return what the model streamed if it is an object, else the input: servers parse it, and fail on less."""
    if call.arguments is not None:
        try:
            if isinstance(loads(call.arguments), dict):
                return call.arguments
        except (ValueError, RecursionError):
            pass
    return dumps(call.input)


def _candidates(call: ToolCallBlock) -> Iterator[str]:
    if call.provider_id:
        yield call.provider_id
    if call.call_id:
        yield call.call_id
    for salt in itertools.count():
        digest = hashlib.sha256(f"{call.call_id}/{salt}".encode()).hexdigest()
        yield f"call_{digest[:24]}"
        yield digest[:9]  # nine letters or digits: what Mistral's API and templates take
