"""Decode the body of a streamed OpenAI chat completion: bytes in, parts out. Pure; for the backends of that wire.

The rules come from observed servers (tests/cases); the ones that decide most:

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

from ownloop.backends.wires.decoder import NAMELESS, Decoder, arguments_text, count_of, kept, object_of, stop_reason
from ownloop.backends.wires.think_tags import Plain, ThinkTags
from ownloop.core.backend import Finish, PartDelta, PartEnd, PartStart
from ownloop.core.messages import Json
from ownloop.core.usage import Usage

_WEIGHT: Final = {"content_filter": 3, "length": 2, "max_tokens": 2, "model_length": 2}
"""Some servers finish twice; a later, lighter word does not take back a heavier one."""
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


class ChatDecoder(Decoder):
    """See `Decoder`."""

    def __init__(
        self,
        names: Mapping[str, str],
        *,
        provider: str = "openai",
        think_tags: bool = False,
        secrets: Sequence[str] = (),
    ) -> None:
        super().__init__(names, provider=provider, secrets=secrets)
        # A name is sure at once unless a longer declared one begins with it.
        self._sure = frozenset(a for a in names if not any(b != a and b.startswith(a) for b in names))
        self._tags = ThinkTags() if think_tags else None
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

    @property
    def finished(self) -> bool:
        return bool(self._word)

    def _end(self) -> Finish:
        if self._tags is not None:
            self._plain(self._tags.close())
            self._tags = None
        calls = [call for call in self._calls if call.id or call.name or call.pieces]
        # After a bare `[DONE]` plain text is taken for an answer; calls are not.
        is_answer = self._word or (self._said_done and self._has_text and not calls)
        if self.error is None and not is_answer:
            self._interrupted()
        if self.error is None:
            for call in calls:
                self._announce(call)
            self._end_open()
            for call in sorted(calls, key=lambda call: call.part):
                self._out.append(PartEnd(call.part, kept(call.extra) or None, None if call.name else NAMELESS))
        word = "refusal" if self._refused and self._word != "content_filter" else self._word
        return Finish(stop_reason(word or "stop", has_calls=bool(calls)), word or None, self.request_id)

    def _frame(self, frame: Json, data: str) -> None:
        if frame.get("error") or frame.get("object") == "error":
            self._fail(frame)
            return
        choices = frame.get("choices")
        if choices and type(choices) is list:
            choice = cast("list[object]", choices)[0]
            if type(choice) is dict:
                self._choice(cast("Json", choice), data)
        usage = frame.get("usage")
        if usage and type(usage) is dict:
            self._count(cast("Json", usage))

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
        if arguments is not None:
            arguments = arguments_text(arguments)  # Ollama and others send the object itself
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

    def _usage(self, counts: Json) -> Usage:
        return usage_of(counts)


def usage_of(counts: Json) -> Usage:
    """Return the normalised view of this wire's counts: its prompt tokens include the cached ones."""
    details = object_of(counts.get("prompt_tokens_details"))
    cached = count_of(details.get("cached_tokens"))
    if cached is None:
        cached = count_of(counts.get("prompt_cache_hit_tokens"))  # DeepSeek
    prompt = count_of(counts.get("prompt_tokens"))
    return Usage(
        input=None if prompt is None else max(0, prompt - (cached or 0)),
        cache_read=cached,
        output=count_of(counts.get("completion_tokens")),
        reasoning=count_of(object_of(counts.get("completion_tokens_details")).get("reasoning_tokens")),
        raw=counts,
    )


def _exact_calls(data: str) -> list[Any] | None:
    """Read the calls of a frame again with all digits: orjson turns integers over 64 bits into floats.

    Numbers matter only in arguments that come as an object; as a string they are not read here at all.
    """
    try:
        choice = json.loads(data)["choices"][0]
        return (choice.get("delta") or choice.get("message"))["tool_calls"]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
