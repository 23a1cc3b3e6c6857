"""Decode the body of a streamed OpenAI chat completion: bytes in, parts out. Pure; for the backends of that wire.

The invariant: the parts depend on the bytes alone, never on how the network cut them, and a response counts as complete
only if the provider said so. The rules come from observed servers (tests/cases); the ones that decide most:

- A tool turn is decided by calls that are there, never by the finish word, which servers get wrong both ways.
- Only a call's arguments are a stream; its id is set once; "" means absent.
- A name is complete when it equals a declared tool (and no longer tool begins with it) or when arguments begin. The
  same value again is ignored, another one after an undeclared name is appended.
- An index with a new id is a new call; without an index, a new id opens a call and no id continues the last one.
- The end of the body without a finish reason is an interruption; a bare `[DONE]` after plain text is tolerated.
- Usage is replaced field by field and may come in any chunk, also after the finish reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import orjson

from ownloop.backends.provider_errors import provider_error
from ownloop.backends.sse import SSEEvent, SSEReader, SSETooLargeError
from ownloop.backends.think_tags import Plain, ThinkTags
from ownloop.core.backend import Finish, Part, PartDelta, PartEnd, PartStart, StopReason, UsageSeen
from ownloop.core.codec import dumps
from ownloop.core.messages import Json
from ownloop.core.usage import Usage, merge_counts
from ownloop.errors import ProviderError, StreamInterruptedError

FINISH_WORDS: Final[Mapping[str, StopReason]] = {
    "stop": "end_turn",
    "eos": "end_turn",
    "eos_token": "end_turn",
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "tool_use": "tool_use",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "max_tokens",
}
"""The words of servers; any other one is `other`. `content_filter` has its own rule in `core.turn`."""

_WEIGHT: Final = {"content_filter": 3, "length": 2, "max_tokens": 2, "model_length": 2}
"""Some servers finish twice; a later, lighter word does not take back a heavier one."""
_NAMELESS: Final = "the provider sent this call without a tool name, so it was not run"
_OWN_FIELDS: Final = frozenset({"index", "id", "type", "function"})


class _Call:
    """What is known of one call of the response."""

    __slots__ = ("extra", "id", "name", "part", "pieces")

    def __init__(self, id: str) -> None:
        self.id = id
        self.name = ""
        self.pieces: list[str] = []
        self.part = -1
        """Its index as a part; -1 until it is announced, which needs its name."""
        self.extra: Json = {}

    def is_whole(self) -> bool:
        """Whether the arguments so far are one JSON object, so that more of them can only be another call's."""
        text = "".join(self.pieces)
        if not text.rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads(text, strict=False), dict)
        except (ValueError, RecursionError):
            return False


class Accumulator:
    """Build the parts of one response. Feed the body; stop reading when `done`; then `close`, then look at `error`.

    Nothing raises for what a provider sends: what was shown stays shown, and `error` says why the response is not
    complete. `names` maps the declared tools' names on the wire to ours.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        *,
        provider: str = "openai",
        think_tags: bool = False,
        secrets: Sequence[str] = (),
    ) -> None:
        self.done = False
        """Nothing that follows matters: `[DONE]` or an error was seen."""
        self.error: ProviderError | None = None
        """Why the response is not complete; final after `close`."""
        self.events = 0
        """Events seen so far: the sign of life that a proxy's keep-alive comments are not."""
        self.request_id: str | None = None
        """Set by the transport from the reply's headers."""
        self._names = names
        # A name is sure at once unless a longer declared one begins with it.
        self._sure = frozenset(a for a in names if not any(b != a and b.startswith(a) for b in names))
        self._provider = provider
        self._secrets = secrets
        self._reader = SSEReader()
        self._tags = ThinkTags() if think_tags else None
        self._out: list[Part] = []
        self._next = 0
        self._open: Plain | None = None
        self._open_part = -1
        self._blank: str = ""
        """White space that is text only if more text follows: models write blank lines before a call."""
        self._has_text = False
        self._has_reasoning = False
        self._refused = False
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[tuple[int | None, str], _Call] = {}
        self._word = ""
        self._said_done = False
        self._counts: Json = {}
        self._has_news_of_usage = False

    @property
    def finished(self) -> bool:
        """Whether the provider gave a finish reason: only usage may still come."""
        return bool(self._word)

    def feed(self, data: bytes) -> list[Part]:
        """Take the next bytes of the body; return the parts they complete."""
        if self.done:
            return []
        try:
            for event in self._reader.feed(data):
                self._event(event)
                if self.done:
                    break
        except SSETooLargeError as error:
            self._too_large(error)
        return self._take()

    def lose(self, error: ProviderError) -> None:
        """Say that the connection broke or was given up; that hurts only if the provider had not finished."""
        if not self._word and self.error is None:
            self.error = error
        self.done = True

    def close(self) -> list[Part]:
        """End the response: return the last parts, with `Finish` if it is complete; else `error` is set."""
        if not self.done:
            self._end_body()
            self.done = True
        if self._tags is not None:
            self._plain(self._tags.close())
            self._tags = None
        calls = [call for call in self._calls if call.id or call.name or call.pieces]
        if self.error is None:
            self._judge(calls)
        if self.error is None:
            for call in calls:
                self._announce(call)
            self._end_open()
            for call in sorted(calls, key=lambda call: call.part):
                self._out.append(PartEnd(call.part, call.extra or None, None if call.name else _NAMELESS))
        parts = self._take()
        if self.error is None:
            parts.append(Finish(self._stop_reason(calls), self._raw_stop(), self.request_id))
        return parts

    # --- the body ---

    def _end_body(self) -> None:
        try:
            for event in self._reader.close():
                self._event(event)
        except SSETooLargeError as error:
            self._too_large(error)
        if self._reader.document is not None and self.error is None:
            self._event(SSEEvent("message", self._reader.document))

    def _event(self, event: SSEEvent) -> None:
        self.events += 1
        data = event.data
        if event.event == "error":
            self._fail(data)
            return
        chunk = _load(data)
        if type(chunk) is dict:
            self._chunk(cast("Json", chunk), data)
        elif type(chunk) is list and self._reader.document is not None:  # a body that is a list holds an error (Gemini)
            self._fail(cast("object", chunk))
        elif data.strip() == "[DONE]":
            self._said_done = self.done = True
        elif event.event == "message" and chunk is not None and not data.startswith(":"):
            # A frame that was cut, or glued to the next: what was in it is lost, so this is no complete answer.
            self.lose(StreamInterruptedError(f"{self._provider!r} sent a damaged frame in its stream"))

    def _chunk(self, chunk: Json, data: str) -> None:
        if chunk.get("error") or chunk.get("object") == "error":
            self._fail(chunk)
            return
        choices = chunk.get("choices")
        if choices and type(choices) is list:
            choice = cast("list[object]", choices)[0]
            if type(choice) is dict:
                self._choice(cast("Json", choice), data)
        usage = chunk.get("usage")
        if usage and type(usage) is dict:
            self._counts = merge_counts(self._counts, cast("Json", usage))
            self._has_news_of_usage = True

    def _choice(self, choice: Json, data: str) -> None:
        delta = choice.get("delta")
        whole = not delta and not self._next and not self._calls
        if whole:
            # The whole message: a body that is one JSON document. After deltas it would only repeat them.
            delta = choice.get("message")
        if type(delta) is dict:
            self._delta(cast("Json", delta), data, whole)
        word = choice.get("finish_reason")
        if word and type(word) is str:
            if word == "error":
                self._fail(choice)
            elif _WEIGHT.get(word, 1) >= _WEIGHT.get(self._word, 0):
                self._word = word

    def _delta(self, delta: Json, data: str, whole: bool) -> None:
        get = delta.get
        reasoning = get("reasoning_content") or get("reasoning")
        if reasoning and type(reasoning) is str:
            self._has_reasoning = True
            self._write("thinking", reasoning)
        content = get("content")
        if content:
            if type(content) is str:
                self._text(content)
            elif type(content) is list:
                self._content_parts(cast("list[Any]", content))
        calls = get("tool_calls")
        if calls and type(calls) is list:
            entries = cast("list[Any]", calls)
            if '"arguments":{' in data or '"arguments": {' in data:
                entries = _exact_calls(data) or entries
            for entry in entries:
                if type(entry) is dict:
                    self._call(cast("Json", entry), whole)
        if get("function_call"):
            self._call({"function": get("function_call")}, whole)
        refusal = get("refusal")
        if refusal and type(refusal) is str:
            self._refused = True
            self._text(refusal)

    # --- text and thinking ---

    def _content_parts(self, parts: Sequence[Any]) -> None:
        """Mistral sends its content as a list of typed parts; thinking is again such a list."""
        for part in parts:
            if type(part) is not dict:
                continue
            part = cast("Json", part)
            text = part.get("text")
            if text and type(text) is str:
                self._text(text)
            thinking = part.get("thinking")
            if type(thinking) is list:
                inner = [cast("Json", item).get("text") for item in cast("list[Any]", thinking) if type(item) is dict]
                thinking = "".join(text for text in inner if type(text) is str)
            if thinking and type(thinking) is str:
                self._write("thinking", thinking)

    def _text(self, text: str) -> None:
        if self._tags is None:
            self._write("text", text)
            return
        self._plain(self._tags.feed(text))
        if self._tags.passes:
            self._tags = None

    def _plain(self, pieces: Iterable[tuple[Plain, str]]) -> None:
        for kind, text in pieces:
            # Servers that send reasoning in its own field and in tags say the same thing twice.
            if kind == "text" or not self._has_reasoning:
                self._write(kind, text)

    def _write(self, kind: Plain, text: str) -> None:
        """Write more text or thinking, none of it empty; open the block first, and close one of the other kind."""
        if self._open != kind:
            if kind == "text":
                text = self._blank + text
                self._blank = text if text.isspace() else ""
                if self._blank:
                    return
                self._has_text = True
            self._end_open()
            self._open, self._open_part = kind, self._next
            self._next += 1
            self._out.append(PartStart(self._open_part, kind))
        self._out.append(PartDelta(self._open_part, text))

    def _end_open(self) -> None:
        self._blank = ""
        if self._open is not None:
            self._out.append(PartEnd(self._open_part))
            self._open = None

    # --- calls ---

    def _call(self, entry: Json, whole: bool) -> None:
        function = entry.get("function")
        function = cast("Json", function) if type(function) is dict else {}
        name, id, index = function.get("name"), entry.get("id"), entry.get("index")
        name = name if type(name) is str else ""
        arguments = function.get("arguments")
        if arguments is not None and type(arguments) is not str:
            arguments = dumps(arguments)  # Ollama and others send the object itself
        id, index = id if type(id) is str else "", index if type(index) is int else None
        call = self._start(index, id) if whole else self._find(index, id, name, arguments or "")
        for key, value in entry.items():
            if key not in _OWN_FIELDS and value is not None:
                call.extra[key] = value
        if name:
            self._name(call, name)
        if arguments:
            call.pieces.append(arguments)
            if call.part >= 0:
                self._out.append(PartDelta(call.part, arguments))
            elif call.name:
                self._announce(call)
        if call.part < 0 and call.name in self._sure:
            self._announce(call)

    def _find(self, index: int | None, id: str, name: str, arguments: str) -> _Call:
        """Return the call that a delta belongs to."""
        if index is None:
            last = self._calls[-1] if self._calls else None
        else:
            last = self._by_index.get(index)
        call = self._by_id.get((index, id)) if id else last
        if call is None and last is not None and not last.id and not (name and last.is_whole()):
            call, last.id = last, id  # the id comes late
            self._by_id[index, id] = last
        if call is None or self._is_another(call, name, arguments):
            return self._start(index, id)
        if index is not None:
            self._by_index[index] = call
        return call

    def _start(self, index: int | None, id: str) -> _Call:
        for earlier in self._calls:  # their names are as complete as they get: keep the order of appearance
            if earlier.name:
                self._announce(earlier)
        call = _Call(id)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        if id:
            self._by_id[index, id] = call
        return call

    def _is_another(self, call: _Call, name: str, arguments: str) -> bool:
        """Whether a delta that seems to continue `call` opens a new one: servers repeat indices, and leave ids out."""
        if not name or not call.name:
            return False
        if name == call.name:
            return bool(arguments.strip()) and call.is_whole()
        return call.name in self._names and name in self._names and not self._begins_declared(call.name + name)

    def _name(self, call: _Call, name: str) -> None:
        if call.part >= 0 or name == call.name:
            return
        if call.name not in self._names or self._begins_declared(call.name + name):
            call.name += name

    def _begins_declared(self, text: str) -> bool:
        return any(declared.startswith(text) for declared in self._names)

    def _announce(self, call: _Call) -> None:
        if call.part >= 0:
            return
        self._end_open()
        call.part = self._next
        self._next += 1
        self._out.append(PartStart(call.part, "tool_call", self._names.get(call.name, call.name), call.id or None))
        if call.pieces:
            self._out.append(PartDelta(call.part, "".join(call.pieces)))

    # --- the end ---

    def _judge(self, calls: Sequence[_Call]) -> None:
        if self._word or (self._said_done and self._has_text and not calls):
            return
        if self._said_done:
            told = "ended its stream without a finish reason"
        elif self.events:
            told = "closed the connection before its answer was complete"
        else:
            told = "closed the connection without an answer"
        self.error = StreamInterruptedError(
            f"{self._provider!r} {told}", request_id=self.request_id, detail=self._reader.stray
        )

    def _stop_reason(self, calls: Sequence[_Call]) -> StopReason:
        meant: StopReason = FINISH_WORDS.get(self._word, "other") if self._word else "end_turn"
        if self._refused or self._word == "content_filter":
            return "other"
        if meant == "max_tokens":
            return meant
        if calls:
            return "tool_use"
        return "other" if meant == "tool_use" else meant

    def _raw_stop(self) -> str | None:
        return "refusal" if self._refused and self._word != "content_filter" else self._word or None

    def _fail(self, body: object) -> None:
        self.done = True
        self.error = provider_error(self._provider, body, secrets=self._secrets)
        self.error.request_id = self.request_id

    def _too_large(self, cause: SSETooLargeError) -> None:
        self.lose(StreamInterruptedError(f"{self._provider!r} sent an event that is too large: {cause}"))
        if self.error is not None:
            self.error.__cause__ = cause

    def _take(self) -> list[Part]:
        parts, self._out = self._out, []
        if self._has_news_of_usage:
            self._has_news_of_usage = False
            parts.append(UsageSeen(usage_of(self._counts)))
        return parts


def usage_of(counts: Json) -> Usage:
    """Return the normalised view of this wire's counts: its prompt tokens include the cached ones."""
    details = _object(counts.get("prompt_tokens_details"))
    cached = _count(details.get("cached_tokens"))
    if cached is None:
        cached = _count(counts.get("prompt_cache_hit_tokens"))  # DeepSeek
    prompt = _count(counts.get("prompt_tokens"))
    return Usage(
        input=None if prompt is None else max(0, prompt - (cached or 0)),
        cache_read=cached,
        output=_count(counts.get("completion_tokens")),
        reasoning=_count(_object(counts.get("completion_tokens_details")).get("reasoning_tokens")),
        raw=counts,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _load(data: str) -> object:
    """Read a frame; False if it is not JSON.

    orjson refuses lone surrogates (`\\ud83d` escapes cut by the provider) and NaN; the slow reader takes both.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return False


def _exact_calls(data: str) -> list[Any] | None:
    """Read the calls of a frame again with all digits: orjson turns integers over 64 bits into floats.

    Numbers matter only in arguments that come as an object; as a string they are not read here at all.
    """
    try:
        choice = json.loads(data)["choices"][0]
        return (choice.get("delta") or choice.get("message"))["tool_calls"]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
