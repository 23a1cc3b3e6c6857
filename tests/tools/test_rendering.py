from __future__ import annotations

import asyncio
import enum
import hashlib
import math
import threading
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from ownloop.core.codec import dump_body, load_body, loads
from ownloop.core.events import ToolEnded
from ownloop.core.messages import BlobBlock, TextBlock
from ownloop.tools.image import Image, image_type
from ownloop.tools.rendering import FULL_COPY_BYTES, Rendered, RenderError, finish, render

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8
JPEG = b"\xff\xd8\xff\xe0" + b"\0" * 8
GIF = b"GIF89a" + b"\0" * 8
WEBP = b"RIFF\0\0\0\0WEBPVP8 "


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


class Word(str, enum.Enum):  # noqa: UP042 - the older way to write it
    YES = "yes"


class Named(NamedTuple):
    a: int
    b: str


@dataclass
class Point:
    x: int
    when: date | None = None
    extra: dict[Any, Any] = field(default_factory=dict[Any, Any])


class Model(BaseModel):
    n: int
    day: date = date(2026, 1, 2)
    key: SecretStr = SecretStr("sk-1")


class Loud(str):
    def __str__(self) -> str:
        raise RuntimeError("never asked")


class Money(float):
    """As numpy's float64: a float by inheritance."""


def texts(value: object) -> list[str]:
    return [block.text for block in render(value).blocks if isinstance(block, TextBlock)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "Done."),
        ("", ""),
        ("as it is\n", "as it is\n"),
        (Loud("quiet"), "quiet"),
        (True, "true"),
        (3, "3"),
        (-1.5, "-1.5"),
        (Money(2.5), "2.5"),
        (10**30, "1" + "0" * 30),
        ([], "[]"),
        ({}, "{}"),
        (["a", "ä"], '["a","ä"]'),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ((1, "x"), '[1,"x"]'),
        (Named(1, "x"), '[1,"x"]'),
        (Color.RED, "red"),
        (Color.PAIR, "[1,2]"),
        (Level.HIGH, "3"),
        (Word.YES, "yes"),
        ([Color.RED, Word.YES, Level.HIGH], '["red","yes",3]'),
        (Point(1), '{"x":1,"when":null,"extra":{}}'),
        (Point(1, date(2026, 1, 2), {Color.RED: {1}}), '{"x":1,"when":"2026-01-02","extra":{"red":[1]}}'),
        (Model(n=1), '{"n":1,"day":"2026-01-02","key":"**********"}'),
        ([Model(n=1)], '[{"n":1,"day":"2026-01-02","key":"**********"}]'),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        (set[int](), "[]"),
        (deque([1, 2]), "[1,2]"),
        ({"b": 1, "a": 2}.keys(), '["a","b"]'),
        ({"b": 1, "a": 2}.values(), "[1,2]"),
        (defaultdict(int, a=1), '{"a":1}'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (Counter("aa"), '{"a":2}'),
        (UserDict(a=1), '{"a":1}'),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        ({1: "a", None: "b", 2.5: "c"}, '{"1":"a","null":"b","2.5":"c"}'),
        ({date(2026, 1, 2): 1, (1, 2): 2, UUID(int=1): 3}, None),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4), "03:04:00"),
        (timedelta(hours=1), "1:00:00"),
        (Decimal("1.10"), "1.10"),
        (Fraction(1, 3), "1/3"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("/a"), "/a"),
        (ip_address("::1"), "::1"),
        ([Decimal("1.10")], '["1.10"]'),
        (b"", "<0 bytes>"),
        (b"x" * 1234, "<1,234 bytes>"),
        (bytearray(b"xy"), "<2 bytes>"),
        (memoryview(b"xyz"), "<3 bytes>"),
        ({"raw": PNG}, '{"raw":"<16 bytes>"}'),
    ],
)
def test_a_value_is_written_by_the_table(value: object, text: str | None):
    expected = text or '{"2026-01-02":1,"[1,2]":2,"00000000-0000-0000-0000-000000000001":3}'

    assert texts(value) == [expected if text is None else text]
    assert type(texts(value)[0]) is str


async def coroutine() -> None: ...


class Driver:
    """Stands for a cursor, a session, a response: an object with everything on it."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __iter__(self) -> Any:
        raise AssertionError("nobody may read it")


def cycle() -> Any:
    items: list[Any] = [{1}]
    items.append(items)
    return items


def plain_cycle() -> Any:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ((n for n in (1, 2)), "a generator, which"),
        ([(n for n in (1, 2))], "a generator, which"),
        (map(str, [1]), "a map, which"),
        (range(10**12), "a range, which"),
        (len, "a builtin_function_or_method, which"),
        (lambda: 1, "a function, which"),
        (Point, "the class Point"),
        ({"deep": [Driver()]}, "a Driver, which"),
        (Driver(), "a Driver, which"),
        (object(), "an object, which"),
        (threading.Lock(), "a lock, which"),
        (ValueError("x"), "a ValueError, which"),
        (NotImplemented, "a NotImplementedType, which"),
        (math.nan, "a float that is not JSON"),
        ({"x": math.inf}, "a dict that is not JSON"),
        ({"x": [math.nan, {1}]}, "a dict that is not JSON"),
        (cycle(), "a list that is not JSON"),
        (plain_cycle(), "a list that is not JSON"),
        (10**5000, "an int that is not JSON"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_rendering_is_named_with_its_type(value: object, words: str):
    with pytest.raises(RenderError) as refusal:
        render(value)

    assert str(refusal.value).startswith(words)


def test_a_coroutine_has_no_rendering():
    never_awaited = coroutine()
    with pytest.raises(RenderError, match="a coroutine, which"):
        render(never_awaited)
    never_awaited.close()


@pytest.mark.parametrize(
    ("data", "media_type"), [(PNG, "image/png"), (JPEG, "image/jpeg"), (GIF, "image/gif"), (WEBP, "image/webp")]
)
def test_bytes_that_are_an_image_travel_as_one(data: bytes, media_type: str):
    rendered = render(data)
    digest = hashlib.sha256(data).hexdigest()

    assert rendered == render(Image(data))
    assert rendered.blocks == (BlobBlock(digest, media_type, len(data)),)
    assert rendered.blobs == {digest: (media_type, data)}


def test_text_and_images_give_a_block_each():
    rendered = render(["before", Image(PNG), {"n": 1}, JPEG, None])

    assert [block.type for block in rendered.blocks] == ["text", "blob", "text", "blob", "text"]
    assert texts(["before", Image(PNG), {"n": 1}]) == ["before", '{"n":1}']
    assert len(rendered.blobs) == 2


def test_an_image_is_read_from_a_file(tmp_path: Path):
    path = tmp_path / "a.png"
    path.write_bytes(PNG)

    assert Image(path=path) == Image(PNG)
    assert Image(path=str(path)).media_type == "image/png"
    assert "PNG" not in repr(Image(PNG))


@pytest.mark.parametrize("arguments", [{}, {"data": PNG, "path": "a.png"}, {"data": b"text"}, {"data": b""}])
def test_an_image_that_is_none_is_refused(arguments: dict[str, Any]):
    with pytest.raises(ValueError, match="Image"):
        Image(**arguments)


def test_an_author_may_know_the_media_type_better():
    assert Image(b"<svg/>", media_type="image/svg+xml").media_type == "image/svg+xml"
    assert image_type(b"<svg/>") is None


def same(text: str) -> str:
    return text


def finished(*texts: str, redact: Callable[[str], str] = same, cap: int = 10) -> Rendered:
    return finish(Rendered(tuple(TextBlock(text) for text in texts)), redact, cap)


def test_what_is_within_the_cap_is_left_alone():
    rendered = Rendered((TextBlock("0123456789"),))

    assert finish(rendered, same, 10) is not None
    assert finish(rendered, same, 10).blocks is rendered.blocks


def test_a_long_text_is_cut_with_a_marker_and_stays_fetchable():
    done = finished("0123456789abc")
    [(digest, (media_type, body))] = done.blobs.items()

    assert done.blocks == (TextBlock("0123456789\n[3 more characters were left out]"),)
    assert (media_type, body) == ("text/plain; charset=utf-8", b"0123456789abc")
    assert hashlib.sha256(body).hexdigest() == digest
    assert done.notes == (f"the output was cut at 10 of 13 characters; all of it is blob {digest}",)


def test_the_cap_holds_over_all_blocks_and_keeps_images():
    image = render(PNG)
    blocks = (TextBlock("012345"), *image.blocks, TextBlock("6789ab"), TextBlock("cd"), *image.blocks)
    done = finish(Rendered(blocks, image.blobs), same, 10)

    assert done.blocks == (
        TextBlock("012345"),
        *image.blocks,
        TextBlock("6789\n[4 more characters were left out]"),
        *image.blocks,
    )
    assert len(done.blobs) == 2


def test_a_dump_is_not_kept_in_full():
    done = finished("x" * (FULL_COPY_BYTES + 1))

    assert done.blobs == {}
    assert done.notes == ("the output was cut at 10 of 10,000,001 characters",)


def test_characters_that_no_provider_takes_are_replaced_and_noted():
    done = finished("a\0b\ud800c\ud83d\ude00")

    assert done.blocks == (TextBlock("a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c\N{GRINNING FACE}"),)
    assert len(done.notes) == 1


def test_secrets_are_redacted_before_the_cut():
    def redact(text: str) -> str:
        return text.replace("sk-1234", "[KEY]")

    assert finished("01234sk-1234", redact=redact).blocks == (TextBlock("01234[KEY]"),)
    assert finished("0123456sk-1234", redact=redact).blocks[0] == TextBlock(
        "0123456[KE\n[2 more characters were left out]"
    )


KEYS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.dates()
    | st.uuids()
    | st.sampled_from(Color)
)
LEAVES = (
    KEYS
    | st.binary()
    | st.decimals()
    | st.fractions()
    | st.datetimes()
    | st.timedeltas()
    | st.complex_numbers()
    | st.builds(Point, st.integers())
    | st.sampled_from([PNG, Image(PNG), Model(n=1), object(), len, Point, asyncio.Event, math.nan])
    | st.builds(Driver)
    | st.text(st.characters(categories=["Cs", "Cc", "L"]))
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.builds(iter, st.lists(inner, max_size=2))
        | st.builds(deque, st.lists(inner, max_size=2))
    ),
    max_leaves=6,
)


@given(VALUES, st.integers(0, 50))
def test_any_value_gives_blocks_that_the_journal_takes_or_a_refusal(value: Any, cap: int):
    try:
        done = finish(render(value), same, cap)
    except RenderError:
        return
    fact = ToolEnded("call_1", 1, "ok", done.blocks)

    assert load_body("tool_ended", 1, dump_body(fact).encode()) == fact
    assert all(block.digest in done.blobs for block in done.blocks if isinstance(block, BlobBlock))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ).filter(lambda value: isinstance(value, dict | list))
)
def test_json_reads_back_as_what_it_was(value: Any):
    assert loads(texts(value)[0]) == value
