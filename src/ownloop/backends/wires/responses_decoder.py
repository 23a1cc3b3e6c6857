"""Decode the body of a streamed OpenAI response: bytes in, parts out. Pure; for the backends of the Responses wire.

An item of the output is one part, a message as well, however many contents it has. The rules come from observed servers
(tests/cases, `resp-*`); the ones that decide most:

- An item is known by its id or call id, else by its place in the output, else as the last one of its type: every server
  leaves out or gets wrong something of these. An item that was never announced begins with its first delta.
- Deltas are shown as they come. The texts that events repeat at the end of a content, of an item and of the response
  fill in what the deltas did not bring, and never say anything twice.
- Reasoning is shown as its text or as its summary, whichever comes first, and kept whole as it ended.
- An item is final with `response.output_item.done`, or with the output of the response; that may be empty.
- A response is complete only with its `completed` or `incomplete` status, which counts more than the event's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, cast

from ownloop.backends.wires.decoder import (
    NAMELESS,
    Decoder,
    arguments_text,
    count_of,
    kept,
    load_exact,
    object_of,
    stop_reason,
)
from ownloop.backends.wires.think_tags import Plain, ThinkTags
from ownloop.core.backend import Finish, PartDelta, PartEnd, PartStart, PartType
from ownloop.core.messages import Json
from ownloop.core.usage import Usage

Channel: TypeAlias = Literal["text", "refusal", "summary", "arguments"]

_MESSAGE: Final = "message"
_REASONING: Final = "reasoning"
_CALL: Final = "function_call"

_DELTAS: Final[Mapping[str, tuple[str, Channel]]] = {
    "response.output_text.delta": (_MESSAGE, "text"),
    "response.refusal.delta": (_MESSAGE, "refusal"),
    "response.reasoning_text.delta": (_REASONING, "text"),
    "response.reasoning.delta": (_REASONING, "text"),  # the same in the Open Responses specification
    "response.reasoning_summary_text.delta": (_REASONING, "summary"),
    "response.function_call_arguments.delta": (_CALL, "arguments"),
}
_DONES: Final[Mapping[str, tuple[str, Channel]]] = {
    "response.output_text.done": (_MESSAGE, "text"),
    "response.refusal.done": (_MESSAGE, "refusal"),
    "response.reasoning_text.done": (_REASONING, "text"),
    "response.reasoning.done": (_REASONING, "text"),
    "response.reasoning_summary_text.done": (_REASONING, "summary"),
    "response.function_call_arguments.done": (_CALL, "arguments"),
}
_CONTENTS: Final[Mapping[str, tuple[str, Channel]]] = {
    # The types of a content that `….content_part.done` and its like hold.
    "output_text": (_MESSAGE, "text"),
    "refusal": (_MESSAGE, "refusal"),
    "reasoning_text": (_REASONING, "text"),
    "summary_text": (_REASONING, "summary"),
}
_FIELDS: Final[Mapping[Channel, str]] = {"refusal": "refusal", "arguments": "arguments"}
"""Where a content that is complete has what it says; else in `text`."""
_PART_DONES: Final = frozenset(
    {"response.content_part.done", "response.reasoning_part.done", "response.reasoning_summary_part.done"}
)
_ENDINGS: Final[Mapping[str, str]] = {
    # The status that an event means where the response in it has none.
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
_ERRORS: Final = frozenset({"error", "response.error"})
_CALL_FIELDS: Final = ("id", "namespace", "caller", "async")
"""What goes back with a call of one's own, apart from what every call has."""
_TWO_VERSIONS: Final = "the provider sent two versions of the arguments of this call, so it was not run"


class _Named(NamedTuple):
    """What an event says about which item it belongs to."""

    type: str
    ids: tuple[str, ...] = ()
    place: int | None = None


class _Item:
    """What is known of one item of the output."""

    __slots__ = (
        *("announced", "base", "blank", "call_id", "channel", "ended", "last", "name", "open", "part", "pieces"),
        *("section", "size", "type"),
    )

    def __init__(self, type: str) -> None:
        self.type = type
        self.announced: Json = {}
        """The item as it was announced; of servers that never finish one, all that there is."""
        self.name = ""
        self.call_id = ""
        self.pieces: list[str] = []
        """All text received: of the message, the reasoning or the arguments."""
        self.size = 0
        self.base = 0
        """How much of it belongs to contents that are complete."""
        self.last: str | None = None
        """The content that was completed last: the event that repeats it is none of the next one."""
        self.channel: Channel | None = None
        self.section: object = None
        """Which part of a summary is being received."""
        self.part = -1
        """The index of the part that was begun last."""
        self.open: Plain | None = None
        self.blank = ""
        """White space that is text only if more text follows: models write blank lines before a call."""
        self.ended = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ResponsesDecoder(Decoder):
    """See `Decoder`. `max_tokens` is the output limit of the request, for servers that do not say when it cut."""

    EVENTS: ClassVar[tuple[str, ...]] = ("message", "response.")

    def __init__(
        self,
        names: Mapping[str, str],
        *,
        provider: str = "openai",
        think_tags: bool = False,
        max_tokens: int | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        super().__init__(names, provider=provider, secrets=secrets)
        self._tags = ThinkTags() if think_tags else None
        self._tagged: _Item | None = None
        self._max_tokens = max_tokens
        self._next = 0
        self._items: list[_Item] = []
        self._by_id: dict[tuple[str, str], _Item] = {}
        self._by_place: dict[tuple[str, int], _Item] = {}
        self._last: dict[str, _Item] = {}
        self._has_reasoning = False
        self._refused = False
        self._word = ""

    @property
    def finished(self) -> bool:
        return bool(self._word)

    def _end(self) -> Finish:
        self._end_tags()
        if self.error is None and not self._word:
            self._interrupted()
        if self.error is None:
            for item in self._items:
                self._settle(item, item.announced)
        word = "refusal" if self._refused and self._word != "content_filter" else self._word
        meant = stop_reason(word, has_calls=any(item.type == _CALL and item.part >= 0 for item in self._items))
        if word == "completed" and self._is_cut():
            meant = "max_tokens"
        return Finish(meant, word or None, self.request_id)

    def _is_cut(self) -> bool:
        written = count_of(self._counts.get("output_tokens"))
        return self._max_tokens is not None and written is not None and written >= self._max_tokens

    def _usage(self, counts: Json) -> Usage:
        return usage_of(counts)

    # --- events ---

    def _frame(self, frame: Json, data: str) -> None:
        event = frame.get("type")
        if type(event) is not str:
            event = ""
        owner = _DELTAS.get(event)
        if owner is not None:
            self._delta(frame, *owner)
        elif event in _DONES:
            type_, channel = _DONES[event]
            self._content_done(frame, type_, channel, frame.get(_FIELDS.get(channel, "text")))
        elif event in _PART_DONES:
            self._part_done(frame, object_of(frame.get("part")))
        elif event == "response.output_item.added":
            self._added(object_of(frame.get("item")), frame.get("output_index"))
        elif event == "response.output_item.done":
            frame = object_of(load_exact(data))
            self._item_done(object_of(frame.get("item")), frame.get("output_index"))
        elif event in _ENDINGS:
            self._response(object_of(object_of(load_exact(data)).get("response")), _ENDINGS[event])
        elif frame.get("object") == "response":  # the body is one document
            self._response(object_of(load_exact(data)), "")
        elif event in _ERRORS or (not event.startswith("response.") and _is_error(frame)):
            self._fail(frame)

    def _delta(self, frame: Json, type_: str, channel: Channel) -> None:
        delta, id = frame.get("delta"), frame.get("item_id")
        if type(delta) is not str or not delta:
            return
        item = self._by_id.get((type_, id)) if type(id) is str else None  # the path of nearly every token
        if item is None or item.ended:
            named = _named(type_, (id, frame.get("call_id")), frame.get("output_index"))
            item = self._find(named)
            if item is None or item.ended:
                item = self._new(named)
        if self._is_shown(item, channel, frame.get("summary_index")):
            self._more(item, delta)

    def _content_done(self, frame: Json, type_: str, channel: Channel, text: object) -> None:
        named = _named(type_, (frame.get("item_id"), frame.get("call_id")), frame.get("output_index"))
        item = self._find(named) or self._new(named)
        if item.ended or type(text) is not str:
            return
        if type_ == _CALL:
            self._name(item, frame)
        section = frame.get("summary_index")
        is_repeated = item.size == item.base and text == item.last and section in (None, item.section)
        if not is_repeated and self._is_shown(item, channel, section):
            self._fill(item, text)

    def _part_done(self, frame: Json, part: Json) -> None:
        owner = _CONTENTS.get(str(part.get("type")))
        if owner is not None:
            self._content_done(frame, *owner, part.get(_FIELDS.get(owner[1], "text")))

    def _added(self, item: Json, place: object) -> None:
        named = _named(item.get("type"), (item.get("id"), item.get("call_id")), place)
        if named.type:
            known = next(self._known(named), None)
            if known is None or known.ended or _is_another(known, item):
                known = self._new(named)
            self._announce(known, item)

    def _item_done(self, item: Json, place: object) -> None:
        named = _named(item.get("type"), (item.get("id"), item.get("call_id")), place)
        if named.type:
            self._settle(self._find(named) or self._new(named), item)

    def _response(self, response: Json, status: str) -> None:
        """Take the whole response, whose own status counts more than the one that its event means."""
        usage = object_of(response.get("usage"))
        if usage:
            self._count(usage)
        said = response.get("status")
        status = said if type(said) is str and said else status
        if status in ("failed", "cancelled") or response.get("error"):
            self._fail(response if response.get("error") else {"message": f"the response is {status}"})
        elif status in ("completed", "incomplete"):
            self._output(response.get("output"))
            reason = object_of(response.get("incomplete_details")).get("reason")
            self._word = reason if status == "incomplete" and type(reason) is str and reason else status
            self.done = True

    def _output(self, output: object) -> None:
        """Take what the whole response repeats: only what the events before have not brought is new."""
        taken: set[int] = set()
        for place, final in enumerate(cast("list[object]", output) if type(output) is list else ()):
            final = object_of(final)
            named = _named(final.get("type"), (final.get("id"), final.get("call_id")), place)
            if named.type:
                candidates = (*self._known(named), *(item for item in self._items if item.type == named.type))
                item = next((item for item in candidates if id(item) not in taken), None) or self._new(named)
                taken.add(id(item))
                self._settle(item, final)

    # --- items ---

    def _find(self, named: _Named) -> _Item | None:
        """Return the item that an event belongs to, if there is one."""
        for item in self._known(named):
            return item
        last = self._last.get(named.type)
        if last is None or (named.place is None and not named.ids):
            return last
        # The event names an item that nobody knows: another id of the one that was announced, if that is still open.
        return last if last.announced and not last.ended else None

    def _known(self, named: _Named) -> Iterator[_Item]:
        for id in named.ids:
            if (named.type, id) in self._by_id:
                yield self._by_id[named.type, id]
        if named.place is not None and (named.type, named.place) in self._by_place:
            yield self._by_place[named.type, named.place]

    def _new(self, named: _Named) -> _Item:
        item = _Item(named.type)
        self._items.append(item)
        self._last[named.type] = item
        for id in named.ids:
            self._by_id[named.type, id] = item
        if named.place is not None:
            self._by_place[named.type, named.place] = item
        return item

    def _announce(self, item: _Item, announced: Json) -> None:
        item.announced = announced
        if item.type == _CALL:
            self._name(item, announced)
        elif item.type == _REASONING:
            self._begin(item, "thinking")
        elif item.type != _MESSAGE:
            self._begin(item, "provider")

    def _settle(self, item: _Item, final: Json) -> None:
        """Fill in what is missing of an item, and end it."""
        if item.ended:
            return
        if item.type == _CALL:
            self._end_call(item, final)
        elif item.type == _MESSAGE:
            self._end_message(item, final)
        else:
            self._announce(item, final)
            if item.type == _REASONING:
                self._complete(item, _thoughts_of(item, final))
            self._out.append(PartEnd(item.part, kept(final)))
        item.ended = True

    def _complete(self, item: _Item, whole: str) -> None:
        so_far = item.text
        if whole.startswith(so_far):
            self._more(item, whole[len(so_far) :])

    def _begin(self, item: _Item, type_: PartType, name: str | None = None, id: str | None = None) -> None:
        """Begin the part of an item, once."""
        if item.part < 0:
            item.part = self._next
            self._next += 1
            self._out.append(PartStart(item.part, type_, name, id))

    def _is_shown(self, item: _Item, channel: Channel, section: object) -> bool:
        """Whether text of a channel is to be shown; it begins a new paragraph where a new part of a summary does."""
        if channel == "refusal":
            self._refused = True
        if item.type != _REASONING:
            return True
        if item.channel is None:
            item.channel = channel
        if item.channel != channel:
            return False  # the same said in other words, or even in the same
        if section is not None and section != item.section:
            item.section = section
            if item.size:
                self._more(item, "\n\n")
                item.base = item.size
        return True

    def _fill(self, item: _Item, content: str) -> None:
        """Take a whole content, of which the deltas brought a part, all, or nothing."""
        so_far = item.text[item.base :]
        if content.startswith(so_far):
            self._more(item, content[len(so_far) :])
        item.base, item.last = item.size, content

    def _more(self, item: _Item, text: str) -> None:
        if not text:
            return
        item.pieces.append(text)
        item.size += len(text)
        if item.type == _MESSAGE:
            self._say(item, text)
        elif item.type == _REASONING:
            self._has_reasoning = True
            self._begin(item, "thinking")
            self._out.append(PartDelta(item.part, text))
        elif item.part >= 0:
            self._out.append(PartDelta(item.part, text))

    # --- messages ---

    def _say(self, item: _Item, text: str) -> None:
        if self._tags is None:
            self._write(item, "text", text)
            return
        self._tagged = item
        self._plain(item, self._tags.feed(text))
        if self._tags.passes:
            self._tags = None

    def _plain(self, item: _Item, pieces: Iterable[tuple[Plain, str]]) -> None:
        for kind, text in pieces:
            # Servers that send reasoning as an item and in tags say the same thing twice.
            if kind == "text" or not self._has_reasoning:
                self._write(item, kind, text)

    def _write(self, item: _Item, kind: Plain, text: str) -> None:
        """Write more of a message, none of it empty: its text, or what stood in tags before it."""
        if item.open != kind:
            if kind == "text":
                text = item.blank + text
                item.blank = text if text.isspace() else ""
                if item.blank:
                    return
            self._end_open(item)
            item.open, item.part = kind, -1
            self._begin(item, kind)
        self._out.append(PartDelta(item.part, text))

    def _end_open(self, item: _Item, raw: Json | None = None) -> None:
        if item.open is not None:
            self._out.append(PartEnd(item.part, raw if item.open == "text" else None))
            item.open = None

    def _end_tags(self) -> None:
        if self._tags is not None and self._tagged is not None:
            self._plain(self._tagged, self._tags.close())
            self._tags = None

    def _end_message(self, item: _Item, final: Json) -> None:
        contents = _contents(final.get("content"))
        self._complete(item, "".join(_text(content) for content in contents))
        if any(content.get("type") == "refusal" for content in contents):
            self._refused = True
        if self._tagged is item:
            self._end_tags()
        raw = {key: final[key] for key in ("id", "phase") if final.get(key)}
        notes = [note for content in contents for note in _contents(content.get("annotations"))]
        if notes:
            raw["annotations"] = notes
        self._end_open(item, kept(raw) or None)

    # --- calls ---

    def _name(self, item: _Item, known: Json) -> None:
        """Take what an event knows of a call; show the call as soon as it has both its name and its id."""
        name, id = known.get("name"), known.get("call_id")
        item.name = item.name or (name if type(name) is str else "")
        item.call_id = item.call_id or (id if type(id) is str else "")
        if item.name and item.call_id:
            self._begin_call(item)

    def _begin_call(self, item: _Item) -> None:
        if item.part < 0:
            self._begin(item, "tool_call", self._names.get(item.name, item.name), item.call_id or None)
            if item.pieces:
                self._out.append(PartDelta(item.part, item.text))

    def _end_call(self, item: _Item, final: Json) -> None:
        self._name(item, final)
        arguments = final.get("arguments")
        whole = "" if arguments is None else arguments_text(arguments)
        if not item.call_id:
            id = final.get("id")
            item.call_id = id if type(id) is str else ""
        if not (item.call_id or item.name or item.pieces or whole):
            return  # a phantom
        self._begin_call(item)
        self._complete(item, whole)
        raw = kept({key: final[key] for key in _CALL_FIELDS if final.get(key)})
        problem = NAMELESS if not item.name else None if _is_same(item.text, whole) else _TWO_VERSIONS
        self._out.append(PartEnd(item.part, raw or None, problem))


def usage_of(counts: Json) -> Usage:
    """Return the normalised view of this wire's counts: its input tokens include those of the cache."""
    details = object_of(counts.get("input_tokens_details"))
    read, written = count_of(details.get("cached_tokens")), count_of(details.get("cache_write_tokens"))
    whole = count_of(counts.get("input_tokens"))
    return Usage(
        input=None if whole is None else max(0, whole - (read or 0) - (written or 0)),
        cache_read=read,
        cache_write=written,
        output=count_of(counts.get("output_tokens")),
        reasoning=count_of(object_of(counts.get("output_tokens_details")).get("reasoning_tokens")),
        raw=counts,
    )


def _named(type_: object, ids: Iterable[object], place: object) -> _Named:
    """Read what an event or an item says of itself; without a type it cannot be used."""
    return _Named(
        type_ if isinstance(type_, str) else "",
        tuple(id for id in ids if isinstance(id, str) and id),
        place if type(place) is int else None,
    )


def _contents(value: object) -> list[Json]:
    """Return the objects of a list; a text stands for the one content that it is."""
    if type(value) is str:
        return [{"text": value}]
    return (
        [cast("Json", entry) for entry in cast("list[Any]", value) if type(entry) is dict]
        if type(value) is list
        else []
    )


def _text(content: Json) -> str:
    text = content.get("text") or content.get("refusal")
    return text if type(text) is str else ""


def _thoughts_of(item: _Item, final: Json) -> str:
    """Return the reasoning of a whole item as it is shown, or would have been if it had been streamed."""
    texts = "".join(map(_text, _contents(final.get("content"))))
    summary = "\n\n".join(map(_text, _contents(final.get("summary"))))
    if item.channel is None:
        return texts or summary
    return summary if item.channel == "summary" else texts


def _is_another(known: _Item, item: Json) -> bool:
    """Whether an item takes the place of another one: some servers give every item the same place."""
    pairs = [(known.announced.get(key), item.get(key)) for key in ("id", "call_id")]
    return any(a and b and a != b for a, b in pairs)


def _is_same(streamed: str, whole: str) -> bool:
    """Whether arguments that were streamed are those which the server says in the end."""
    if not whole or streamed == whole:
        return True
    try:
        return json.loads(streamed, strict=False) == json.loads(whole, strict=False)
    except (ValueError, RecursionError):
        return False


def _is_error(frame: Json) -> bool:
    """Whether a frame that is no event is an error: in a field, by its object, or the bare object of llama.cpp."""
    return bool(frame.get("error")) or frame.get("object") == "error" or ("message" in frame and "code" in frame)
