"""Whatever bytes come: decoders neither hang nor raise, and what they make of them can be journaled."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.backends.wires.sse import MAX_EVENT_BYTES
from ownloop.core.codec import dump_body
from ownloop.core.turn import missing
from ownloop.errors import ProviderError, StreamInterruptedError
from ownloop.testing.wire_cases import load_cases
from tests.backends.wires.streams import WIRES, captures, cut, decode, one_byte_each

CASES = [case for case in load_cases(Path(__file__).parents[2] / "cases") if case.kind != "request"]
BODIES = {
    wire: [
        *(path.read_bytes() for path in captures(wire)),
        *WIRES[wire].samples,
        *(body for case in CASES if case.wire == wire and len(body := b"".join(case.chunks)) < 5_000),
    ]
    for wire in WIRES
}
each_wire = pytest.mark.parametrize("wire", WIRES)


def check(wire: str, body: bytes, cuts: list[int]) -> None:
    """Read a body in one piece, in some and in single bytes, and look at all that comes of it."""
    whole = decode(wire, [body])
    assert whole.error is None or isinstance(whole.error, ProviderError)
    assert decode(wire, cut(body, cuts)) == whole
    assert decode(wire, [*one_byte_each(body[:1_000]), body[1_000:]]) == whole
    dump_body(whole.fact)
    missing(whole.fact, 1, 0)


# --- bytes ---

SCRAPS = st.one_of(
    st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"{", b"[", b"\xef\xbb\xbf", b"\xff", b"\0", b"data: ", b"data:"]),
    st.sampled_from(
        [b": ping\n", b"event: error\n", b"event: message_delta\n", b"data: [DONE]\n\n", b"data: null\n\n"]
    ),
)
NOISE = st.lists(st.one_of(SCRAPS, st.binary(max_size=20)), max_size=30).map(b"".join)
CUTS = st.lists(st.integers(0, 6_000), max_size=6)


@each_wire
@given(body=NOISE, cuts=CUTS)
def test_any_bytes_are_read(wire: str, body: bytes, cuts: list[int]) -> None:
    check(wire, body, cuts)


def flip(body: bytes, at: int, size: int, byte: int) -> bytes:
    return body[:at] + bytes([byte]) + body[at + 1 :]


def drop(body: bytes, at: int, size: int, byte: int) -> bytes:
    return body[:at] + body[at + size :]


def repeat(body: bytes, at: int, size: int, byte: int) -> bytes:
    return body[: at + size] + body[at:]


def end(body: bytes, at: int, size: int, byte: int) -> bytes:
    return body[:at]


DAMAGE = st.tuples(
    st.sampled_from([flip, flip, drop, repeat, end]), st.integers(0, 6_000), st.integers(1, 400), st.integers(0, 255)
)


@each_wire
@given(data=st.data(), damage=st.lists(DAMAGE, min_size=1, max_size=4), cuts=CUTS)
def test_a_damaged_stream_is_read(
    wire: str,
    data: st.DataObject,
    damage: list[tuple[Callable[[bytes, int, int, int], bytes], int, int, int]],
    cuts: list[int],
) -> None:
    body = data.draw(st.sampled_from(BODIES[wire]))
    for harm, at, size, byte in damage:
        body = harm(body, at % (len(body) + 1), size, byte)
    check(wire, body, cuts)


# --- JSON ---

DEEP = "@deep@"
"""Stands for a value nested deeper than the writer of these tests can write."""
VALUES = st.one_of(
    st.sampled_from([None, True, -1, 10**30, 0.5, float("nan"), float("inf"), [], {}, DEEP]),
    st.sampled_from(
        ["", "x", "{", "\0", "\ud83d", "text", "thinking", "tool_use", "server_tool_use", "error", "refusal"]
    ),
    st.sampled_from([[None], [[]], [{}], {"type": "text"}, {"a": DEEP}, {"input": {"n": 10**30}}, '{"a": 1}']),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Name every place in a JSON value by its container and its key or index."""
    items: list[tuple[Any, Any]] = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [(value, key) for key, _ in items] + [place for _, child in items for place in places(child)]


def written(frame: Any) -> str:
    return json.dumps(frame).replace(json.dumps(DEEP), "[" * 5_000 + "]" * 5_000)


def frames_of(body: bytes) -> list[Any]:
    """Return the JSON of a stream's events; what is none is left out."""
    out: list[Any] = []
    for line in body.decode("utf-8", "replace").splitlines():
        try:
            out.append(json.loads(line.removeprefix("data:")))
        except ValueError:
            pass
    return [frame for frame in out if isinstance(frame, dict)]


FRAMES = {wire: [frames for body in BODIES[wire] if (frames := frames_of(body))] for wire in WIRES}


@each_wire
@given(data=st.data(), cuts=CUTS)
def test_wrong_types_and_orders_are_read(wire: str, data: st.DataObject, cuts: list[int]) -> None:
    frames: list[Any] = json.loads(json.dumps(data.draw(st.sampled_from(FRAMES[wire]))))
    for _ in range(data.draw(st.integers(1, 5))):
        frame = data.draw(st.sampled_from(frames))
        container, key = data.draw(st.sampled_from(places(frame) or [(frame, "x")]))
        if data.draw(st.booleans()):
            container[key] = json.loads(json.dumps(data.draw(VALUES)))
        else:
            container.pop(key, None) if isinstance(container, dict) else container.pop(key)
    at, other = data.draw(st.integers(0, len(frames))), data.draw(st.integers(0, len(frames) - 1))
    match data.draw(st.sampled_from(["as it is", "twice", "moved", "alone"])):
        case "twice":
            frames.insert(at, frames[other])
        case "moved":
            frames.insert(at, frames.pop(other))
        case "alone":
            check(wire, written(frames[other]).encode(), cuts)
            return
        case _:
            pass
    body = "".join(f"data: {written(frame)}\n\n" for frame in frames).encode()
    check(wire, body, [*cuts, *(offset * len(body) // 6_000 for offset in cuts)])


# --- memory ---


@each_wire
def test_what_says_nothing_is_not_kept(wire: str) -> None:
    decoder = WIRES[wire].decoder()
    keep_alives = b': ping\n\nevent: ping\ndata: {"type": "ping"}\n\n' * 500
    decoder.feed(keep_alives)
    tracemalloc.start()
    for _ in range(10):
        decoder.feed(keep_alives)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 10_000


@each_wire
@pytest.mark.parametrize("start", [b"data: ", b'{"', b": "])
def test_a_line_without_an_end_is_given_up_at_the_cap(wire: str, start: bytes) -> None:
    decoder = WIRES[wire].decoder()
    decoder.feed(start)
    piece = b"x" * 1_000_000
    for _ in range(MAX_EVENT_BYTES // len(piece)):
        decoder.feed(piece)
        assert not decoder.done
    decoder.feed(piece)
    assert decoder.done
    assert decoder.close() == []
    assert type(decoder.error) is StreamInterruptedError
