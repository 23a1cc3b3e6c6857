"""Read a server-sent event stream out of raw bytes, however they were cut.

Pure: no asyncio, no I/O, no clock; anybody may import it. Invariant: the events depend on the bytes alone, never on
how the network sliced them. Nothing in here knows a provider: JSON, `[DONE]` and error objects are the decoder's
business. Where model servers and the WHATWG rules disagree, this reader takes the side that loses nothing:

- an event that the body's end left without its blank line is returned by `close()` (the standard drops it);
- a field named `error` (`error: {...}`, older llama.cpp) is an event named "error", and that name wins over others;
- an event without data is skipped (proxies send empty frames), except one named "error";
- a body that is no event stream at all is kept: as `document` when it is JSON, its first words as `stray` otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_EVENT_BYTES: Final = 32 * 1024 * 1024
"""Images and long arguments come as one line of several MiB; beyond this a peer is broken or hostile."""

_MAX_STRAY_CHARS: Final = 2000
"""Enough for the message of a proxy's error page."""

_BOM: Final = b"\xef\xbb\xbf"


class SSETooLargeError(ValueError):
    """One event of the stream is larger than the reader's cap."""


@dataclass(frozen=True, slots=True)
class SSEEvent:
    """One event of a stream."""

    event: str
    """Its name; "message" when the server gave none."""
    data: str
    """Its data lines, joined with a newline. Never empty, unless the event is named "error"."""
    id: str | None = None
    """The id line of this very event, for readers that resume; ids are not carried over to later events."""


class SSEReader:
    """Turn the bytes of one response body into events.

    Feed every piece of the body in order, then call `close()` once when the body ended well; after a broken
    connection do not call it. Line ends may be LF, CRLF or CR, in any mixture. Bytes that are no UTF-8 become U+FFFD.

    The content type is not asked, since servers get it wrong in both directions: a body whose first visible
    character is `{` or `[` cannot be an event stream, so it is collected and stands in `document` after `close()`.
    """

    __slots__ = (
        "_at_start",
        "_between",
        "_closed",
        "_comments",
        "_data",
        "_document",
        "_id",
        "_is_json",
        "_max",
        "_name",
        "_partial",
        "_partial_bytes",
        "_pending_bytes",
        "_skip_lf",
        "_sniffed",
        "_stray",
    )

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        # Pieces of a line (or document) whose end has not come. A list, so that a huge line costs no repeated copies.
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        # The event being collected; all four are empty between events.
        self._name = ""
        self._data: list[str] = []
        self._id: str | None = None
        self._pending_bytes = 0

        # At the start of a line of an event stream with nothing pending: most reads of a token stream begin so.
        self._between = False
        self._at_start = True  # a byte order mark may still come
        self._sniffed = False  # the first visible byte was seen
        self._is_json = False
        self._skip_lf = False  # the last byte was a CR: an LF right after it belongs to the same line end
        self._closed = False
        self._document: str | None = None
        self._stray: str | None = None
        self._comments = 0

    @property
    def comments(self) -> int:
        """How many comment lines came so far: a sign of life that is no event."""
        return self._comments

    @property
    def document(self) -> str | None:
        """The whole body, if it was JSON instead of an event stream. None before `close()`."""
        return self._document

    @property
    def stray(self) -> str | None:
        """The first line that was no field of an event stream (say, of a proxy's HTML page), cut to 2,000 characters.

        None if there was none. For the text of an error only: it is the peer's, unchecked.
        """
        return self._stray

    def feed(self, data: bytes) -> list[SSEEvent]:
        """Take the next bytes of the body; return the events they complete, in order.

        Raises:
            SSETooLargeError: An event (or the JSON document) exceeds the cap. The reader is closed then, and events
                completed by the same bytes are lost with it.
        """
        # Whole frames and nothing pending: the read of nearly every token, so it skips all that follows.
        if self._between and data.endswith(b"\n\n") and data.find(b"\r") < 0 and len(data) <= self._max:
            if data.startswith(b"data: ") and 6 < data.find(b"\n") == len(data) - 2:
                return [SSEEvent("message", data[6:-2].decode("utf-8", "replace"))]
            events: list[SSEEvent] = []
            self._read_frames(data, events)
            return events

        if self._closed:
            raise ValueError("this SSE reader is closed; open a new one for every response")
        if not self._sniffed:
            data = self._start(data)
        if self._is_json:
            self._keep_partial(data)
            return []
        if self._skip_lf and data:
            self._skip_lf = False
            if data[0] == 0x0A:
                data = data[1:]
        if data.find(b"\r") >= 0:
            self._skip_lf = data[-1] == 0x0D
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

        events = []
        end = data.rfind(b"\n") + 1
        tail = b""
        if end < len(data):
            data, tail = data[:end], data[end:]
        if data:
            if self._partial:
                data = b"".join([*self._partial, data])
                self._drop_partial()
            # Within the cap as a whole and nothing pending: no event in it can break the cap.
            if len(data) <= self._max and not self._pending_bytes:
                self._read_frames(data, events)
            else:
                for line in data[:-1].split(b"\n"):
                    self._read_line(line, events)
        if tail:
            self._keep_partial(tail)
        self._between = self._sniffed and not (self._partial or self._pending_bytes or self._skip_lf)
        return events

    def close(self) -> list[SSEEvent]:
        """End the body: return the event that came without its blank line, if any, and settle `document`.

        What it returns (at most one event) is the only one that may have been cut in the middle. Calling it again
        returns nothing.

        Raises:
            SSETooLargeError: That event exceeds the cap.
        """
        if self._closed:
            return []
        rest = b"".join(self._partial)
        events: list[SSEEvent] = []
        if self._is_json:
            self._document = rest.decode("utf-8", "replace")
        else:
            if rest:
                self._read_line(rest, events)
            self._dispatch(events)
        self._shut()
        return events

    def _start(self, data: bytes) -> bytes:
        """Drop a byte order mark and look whether this is an event stream; return what is to be read of `data`."""
        if self._at_start:
            if self._partial:
                data = b"".join([*self._partial, data])
                self._drop_partial()
            if len(data) < len(_BOM) and _BOM.startswith(data):
                if data:
                    self._keep_partial(data)
                return b""
            self._at_start = False
            if data.startswith(_BOM):
                data = data[len(_BOM) :]
        visible = data.lstrip(b" \t\r\n")
        if visible:
            self._sniffed = True
            # White space that came earlier is not in `data`; JSON does not miss it.
            self._is_json = visible[0] in b"{["
            if self._is_json:
                self._drop_partial()
                return visible
        return data

    def _read_frames(self, data: bytes, events: list[SSEEvent]) -> None:
        """Read complete lines, of which each ends with a newline, while no event is pending.

        This is the path of every token: nearly all frames are one data line, or an event line and a data line.
        """
        *frames, rest = data.split(b"\n\n")
        for frame in frames:
            if frame.startswith(b"data: ") and frame.find(b"\n") < 0:
                if len(frame) > 6:
                    events.append(SSEEvent("message", frame[6:].decode("utf-8", "replace")))
                continue
            if frame.startswith(b"event: "):
                head, _, line = frame.partition(b"\n")
                if len(head) > 7 and len(line) > 6 and line.startswith(b"data: ") and line.find(b"\n") < 0:
                    name = head[7:].decode("utf-8", "replace")
                    events.append(SSEEvent(name, line[6:].decode("utf-8", "replace")))
                    continue
            for line in frame.split(b"\n"):
                self._read_line(line, events)
            self._dispatch(events)
        if rest:
            for line in rest[:-1].split(b"\n"):
                self._read_line(line, events)

    def _read_line(self, line: bytes, events: list[SSEEvent]) -> None:
        """Read one line of any kind, without its line end."""
        if not line:
            self._dispatch(events)
            return
        size = self._pending_bytes + len(line)
        if size > self._max:
            self._too_large()
        if line[0] == 0x3A:
            self._comments += 1
            return
        name, _, raw = line.partition(b":")
        value = raw[1:] if raw[:1] == b" " else raw
        match name:
            case b"data":
                self._data.append(value.decode("utf-8", "replace"))
            case b"event":
                if self._name != "error":
                    self._name = value.decode("utf-8", "replace")
            case b"error":
                self._name = "error"
                self._data.append(value.decode("utf-8", "replace"))
            case b"id":
                if b"\0" not in value:
                    self._id = value.decode("utf-8", "replace")
            case b"retry":
                return  # when to connect again is the caller's policy
            case _:
                if self._stray is None and not line.isspace():
                    self._stray = line.decode("utf-8", "replace")[:_MAX_STRAY_CHARS]
                return
        self._pending_bytes = size

    def _dispatch(self, events: list[SSEEvent]) -> None:
        """End the pending event."""
        if not self._pending_bytes:
            return
        data = "\n".join(self._data)
        if data or self._name == "error":
            events.append(SSEEvent(self._name or "message", data, self._id))
        self._name = ""
        self._data.clear()
        self._id = None
        self._pending_bytes = 0

    def _keep_partial(self, data: bytes) -> None:
        self._partial_bytes += len(data)
        if self._pending_bytes + self._partial_bytes > self._max:
            self._too_large()
        self._partial.append(data)

    def _drop_partial(self) -> None:
        self._partial.clear()
        self._partial_bytes = 0

    def _too_large(self) -> None:
        self._shut()
        raise SSETooLargeError(f"an event of this stream is larger than {self._max:,} bytes")

    def _shut(self) -> None:
        self._closed = True
        self._between = False
        self._drop_partial()
        self._data.clear()
        self._pending_bytes = 0
