from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.backends.wires.sse import SSEEvent, SSEReader, SSETooLargeError

CAPTURES = sorted((Path(__file__).parents[2] / "captures").glob("*.sse"))


def message(data: str, *, id: str | None = None) -> SSEEvent:
    return SSEEvent("message", data, id)


def read(*pieces: bytes, max_event_bytes: int = 1 << 20) -> list[SSEEvent]:
    reader = SSEReader(max_event_bytes)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.close()


def outcome(pieces: list[bytes], max_event_bytes: int = 1 << 20) -> Any:
    """All that a reader makes of a body: what must not depend on how it was cut."""
    reader = SSEReader(max_event_bytes)
    try:
        events = [event for piece in pieces for event in reader.feed(piece)]
        events += reader.close()
    except SSETooLargeError:
        return "too large"
    return events, reader.comments, reader.document, reader.stray


def one_byte_each(body: bytes) -> list[bytes]:
    return [body[i : i + 1] for i in range(len(body))]


TABLE: list[tuple[str, bytes, list[SSEEvent]]] = [
    ("nothing", b"", []),
    ("one event", b"data: a\n\n", [message("a")]),
    ("no space after the colon", b"data:a\n\n", [message("a")]),
    ("only one space goes", b"data:  a \n\n", [message(" a ")]),
    ("CRLF", b"data: a\r\n\r\ndata: b\r\n\r\n", [message("a"), message("b")]),
    ("bare CR", b"data: a\r\rdata: b\r\r", [message("a"), message("b")]),
    ("mixed line ends", b"data: a\r\n\rdata: b\n\r\ndata: c\r\n\n", [message("a"), message("b"), message("c")]),
    ("many blank lines", b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n\n", [message("a"), message("b")]),
    ("byte order mark", b"\xef\xbb\xbfdata: a\n\n", [message("a")]),
    ("a second mark is text", b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
    ("named", b"event: delta\ndata: a\n\n", [SSEEvent("delta", "a")]),
    ("name after data", b"data: a\nevent: delta\n\n", [SSEEvent("delta", "a")]),
    ("name ends with its event", b"event: x\n\ndata: a\n\n", [message("a")]),
    ("empty name", b"event: \ndata: a\n\n", [message("a")]),
    ("id of its own event only", b"id: 7\ndata: a\n\ndata: b\n\n", [message("a", id="7"), message("b")]),
    ("id with NUL", b"id: 7\0\ndata: a\n\n", [message("a")]),
    ("several data lines", b"data: a\ndata:\ndata: b\n\n", [message("a\n\nb")]),
    ("data without colon", b"data: a\ndata\n\n", [message("a\n")]),
    ("empty data", b"data:\n\ndata: \n\ndata\n\ndata: a\n\n", [message("a")]),
    ("event without data", b"event: ping\n\n", []),
    ("comments", b": hi\n\n:\n: x\ndata: a\n: y\n\n", [message("a")]),
    ("unknown fields", b"foo: 1\nretry: 3\ndata: a\nbar\n\n", [message("a")]),
    ("error field", b'error: {"code":500}\n\n', [SSEEvent("error", '{"code":500}')]),
    ("error event", b"event: error\ndata: {}\n\n", [SSEEvent("error", "{}")]),
    ("error without data", b"event: error\n\n", [SSEEvent("error", "")]),
    ("error wins over a later name", b"error: x\nevent: message\n\n", [SSEEvent("error", "x")]),
    ("only LF and CR end lines", "data: a\u2028b\x0bc\x85d\x1ce\n\n".encode(), [message("a\u2028b\x0bc\x85d\x1ce")]),
    ("no blank line at the end", b"data: a\n\ndata: b\n", [message("a"), message("b")]),
    ("no line end at the end", b"data: a\n\ndata: b", [message("a"), message("b")]),
    ("utf-8", "data: café 🌍\n\n".encode(), [message("café 🌍")]),
    ("broken utf-8", b"data: a\xffb\xf0\x9f\x8c\n\n", [message("a\ufffdb\ufffd")]),
    ("utf-8 cut by the end", b"data: a\xf0\x9f", [message("a\ufffd")]),
    ("leading blank lines, then events", b"\r\n\r\ndata: a\n\n", [message("a")]),
    ("a brace in the stream is no document", b'data: a\n\n{"x":1}\ndata: b\n\n', [message("a"), message("b")]),
]


@pytest.mark.parametrize(("body", "events"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_line_rules(body: bytes, events: list[SSEEvent]) -> None:
    assert read(body) == events
    assert read(*one_byte_each(body)) == events
    for cut in range(len(body) + 1):
        assert read(body[:cut], body[cut:]) == events
        assert read(body[:cut], b"", body[cut:]) == events


def test_an_event_is_out_as_soon_as_its_blank_line_came() -> None:
    reader = SSEReader()
    assert reader.feed(b"data: a\r\n\r") == [message("a")]  # it does not wait for the LF
    assert reader.feed(b"\ndata: b\n\nda") == [message("b")]
    assert reader.feed(b"ta: c\n\n") == [message("c")]
    assert reader.close() == []


def test_comments_are_counted_as_signs_of_life() -> None:
    reader = SSEReader()
    assert reader.feed(b": PROCESSING\n\n:\n") == []
    assert reader.comments == 2
    assert reader.feed(b": on top of it\ndata: a\n\n") == [message("a")]
    assert reader.comments == 3


@pytest.mark.parametrize(
    "body",
    [b'{"a": 1}', b' \n\t{"a":\n1}\n', b"\xef\xbb\xbf[1,\r\n2]", b'{"a": "data: x\\n\\n"}', b"{\n\ndata: x\n\n}"],
)
def test_a_json_body_is_kept_as_a_document(body: bytes) -> None:
    for pieces in ([body], one_byte_each(body)):
        reader = SSEReader()
        assert [event for piece in pieces for event in reader.feed(piece)] == []
        assert reader.document is None  # not before its end is known
        assert reader.close() == []
        assert reader.document == body.decode("utf-8-sig").lstrip()


def test_a_body_that_is_neither_shows_its_first_words() -> None:
    reader = SSEReader()
    assert reader.feed(b"\n  \n<html>bad gateway" + b"!" * 5000 + b"</html>\n<p>\n\n") == []
    assert reader.close() == []
    assert reader.document is None
    assert reader.stray is not None
    assert reader.stray.startswith("<html>bad gateway!!!")
    assert len(reader.stray) == 2000


def test_close_returns_only_what_may_have_been_cut_and_only_once() -> None:
    reader = SSEReader()
    assert reader.feed(b'data: a\n\ndata: {"b":') == [message("a")]
    assert reader.close() == [message('{"b":')]
    assert reader.close() == []
    with pytest.raises(ValueError, match="closed"):
        reader.feed(b"data: c\n\n")


@pytest.mark.parametrize(
    "body",
    [
        b"data: " + b"x" * 95 + b"\n\n",  # one line
        b"data: " + b"x" * 40 + b"\ndata: " + b"x" * 60 + b"\n\n",  # two lines of one event
        b"data: " + b"x" * 200,  # a line that does not end
        b": " + b"x" * 200 + b"\n\n",
        b'{"a": "' + b"x" * 200,
    ],
)
def test_an_event_over_the_cap_is_refused_however_it_comes(body: bytes) -> None:
    for pieces in ([body], one_byte_each(body), [b"data: ok\n\n" * 30, body]):
        with pytest.raises(SSETooLargeError, match="100 bytes"):
            read(*pieces, max_event_bytes=100)


def test_the_cap_is_for_one_event_not_for_the_stream() -> None:
    frame = b"data: " + b"x" * 94 + b"\n\n"
    assert read(frame * 50, max_event_bytes=100) == [message("x" * 94)] * 50
    assert read(*one_byte_each(frame * 5), max_event_bytes=100) == [message("x" * 94)] * 5
    assert read((b": " + b"x" * 90 + b"\n") * 50 + frame, max_event_bytes=100) == [message("x" * 94)]


def test_after_too_much_the_reader_is_closed() -> None:
    reader = SSEReader(10)
    with pytest.raises(SSETooLargeError):
        reader.feed(b"data: 0123456789")
    assert reader.close() == []
    with pytest.raises(ValueError, match="closed"):
        reader.feed(b"\n\n")


def test_a_line_of_many_reads_is_not_copied_at_every_read() -> None:
    # 16 MiB in 16 KiB reads: with a copy at each read it would move 8 GiB.
    reader = SSEReader()
    assert reader.feed(b"data: ") == []
    for _ in range(1024):
        assert reader.feed(b"x" * 16384) == []
    (event,) = reader.feed(b"\n\n")
    assert len(event.data) == 1024 * 16384


# ── slicing ─────────────────────────────────────────────────────────────────────────────────────────────────────────
PIECES = st.sampled_from(
    [
        *[b"data: ", b"data:", b"data", b"event: ", b"event: error", b"event:x", b"id: 1", b"error: {}", b"retry: 1"],
        *[b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b"\r", b"\r\r", b":", b": ping", b" ", b"\xef\xbb\xbf", b"\0"],
        *[b"{", b"[", b"}", b"a", b"foo: 1", b"<p>", b"data: {}\n\n", b"event: x\ndata: y\n\n", b"data: z\r\n\r\n"],
        *["🌍".encode(), b"\xf0\x9f", b"\xff", b"\x8c\x8d", "\u2028".encode(), b"0123456789"],
    ]
)
BODIES = st.lists(PIECES, max_size=24).map(b"".join)


@st.composite
def sliced(draw: st.DrawFn, bodies: st.SearchStrategy[bytes] = BODIES) -> tuple[bytes, list[bytes]]:
    body = draw(bodies)
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=12)))
    return body, [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]


@given(sliced())
def test_slicing_changes_nothing(case: tuple[bytes, list[bytes]]) -> None:
    body, pieces = case
    assert outcome(pieces) == outcome([body]) == outcome(one_byte_each(body))


@given(sliced(BODIES.map(lambda tail: b"data: ok\n\n" + tail)), st.integers(10, 60))
def test_slicing_does_not_change_what_is_too_large(case: tuple[bytes, list[bytes]], cap: int) -> None:
    body, pieces = case
    assert outcome(pieces, cap) == outcome([body], cap) == outcome(one_byte_each(body), cap)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(body: bytes) -> None:
    assert outcome([body]) == outcome(one_byte_each(body))


@given(st.lists(st.tuples(st.sampled_from(["", "delta"]), st.text().filter(bool)), max_size=8))
def test_what_a_server_writes_is_what_is_read(wanted: list[tuple[str, str]]) -> None:
    body = ""
    for name, text in wanted:
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        body += (f"event: {name}\n" if name else "") + "".join(f"data: {line}\n" for line in lines) + "\n"
    expected = [SSEEvent(name or "message", text.replace("\r\n", "\n").replace("\r", "\n")) for name, text in wanted]
    assert read(body.encode()) == expected


# ── real streams ────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("path", CAPTURES, ids=[path.stem for path in CAPTURES])
def test_recorded_streams_read_the_same_at_every_cut(path: Path) -> None:
    body = path.read_bytes()
    whole = outcome([body])
    assert outcome(one_byte_each(body)) == whole
    for cut in range(len(body)):
        assert outcome([body[:cut], body[cut:]]) == whole
    for size in (2, 3, 5, 64, 1448):
        assert outcome([body[i : i + size] for i in range(0, len(body), size)]) == whole
    crlf = body.replace(b"\n", b"\r\n")
    for size in (1, 2, 7, len(crlf)):
        assert outcome([crlf[i : i + size] for i in range(0, len(crlf), size)]) == whole

    events, _, document, stray = whole
    assert stray is None
    if document is not None:
        assert events == []
        json.loads(document)
    else:
        assert events
        for event in events:
            assert event.data == "[DONE]" or json.loads(event.data)


def test_the_recorded_names_arrive() -> None:
    body = (Path(__file__).parents[2] / "captures" / "llamacpp_messages_error_midstream.sse").read_bytes()
    assert read(body)[-1].event == "error"


# ── wire cases ──────────────────────────────────────────────────────────────────────────────────────────────────────
def chunk(content: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": content}}]}, ensure_ascii=False).encode() + b"\n\n"


def test_a_character_cut_between_reads_arrives_whole() -> None:
    # Quirk of several gateways: danielmiessler/Fabric#2203.
    body = chunk("café 🌍 ok")
    cut = body.index("🌍".encode()) + 2
    assert read(body[:cut], body[cut : cut + 1], body[cut + 1 :]) == read(body)
    assert "🌍" in read(body)[0].data


def test_two_frames_glued_together_stay_visible_as_one_broken_event() -> None:
    # Z.AI: anomalyco/opencode#23442. Salvaging or failing is the decoder's decision.
    (event,) = read(b'data: {"id":"c","object":"chat.comdata: {"id":"x"}\n\n')
    assert event == message('{"id":"c","object":"chat.comdata: {"id":"x"}')


def test_a_long_line_is_just_a_line() -> None:
    body = chunk("abcdefgh" * 25_000)
    assert read(*[body[i : i + 16384] for i in range(0, len(body), 16384)]) == read(body)
    assert len(read(body)[0].data) > 200_000


def test_a_split_crlf_makes_no_extra_line() -> None:
    writes = [base64.b64decode(w) for w in ("ZGF0YTphDQoN", "CmRhdGE6Yg0=", "Cg0=", "CmRhdGE6Yw0KDQo=")]
    assert read(*writes) == [message("a"), message("b"), message("c")]
