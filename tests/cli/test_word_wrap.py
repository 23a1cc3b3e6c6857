from __future__ import annotations

import re

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.cli.columns import width
from ownloop.cli.word_wrap import WordWrap

COLUMNS = 20


def lines_of(*pieces: str, columns: int = COLUMNS) -> list[str]:
    """Return what stands on a terminal after these pieces of a text."""
    wrap = WordWrap()
    screen = pyte.Screen(columns + 1, 60)
    stream = pyte.Stream(screen)
    for piece in pieces:
        stream.feed(wrap.feed(piece, columns).replace("\n", "\r\n"))
    lines = [line.rstrip() for line in screen.display]
    while lines and not lines[-1]:
        lines.pop()
    return lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three four five six", ["one two three four", "five six"]),
        ("exactly twenty chars", ["exactly twenty chars"]),
        ("exactly twenty charss", ["exactly twenty", "charss"]),
        ("ends at the edge it. and on", ["ends at the edge it.", "and on"]),
        ("one\n\n  two\n", ["one", "", "  two"]),
        ("- a list item that is long", ["- a list item that", "  is long"]),
        ("  12. a list item that is long", ["  12. a list item", "      that is long"]),
        ("  indented text that is long", ["  indented text that", "  is long"]),
        ("a " + "x" * 45, ["a", "x" * 21, "x" * 21, "xxx"]),
        ("```py\nx = call(one, two, three)\n```", ["```py", "x = call(one, two, th", "ree)", "```"]),
        ("| a | table | with | columns |", ["| a | table | with |", "columns |"]),
        ("你好世界你好世界你好世界", ["你好世界你好世界你好", "世界"]),
        ("ab你好世界你好世界你好", ["ab你好世界你好世界你", "好"]),
    ],
)
def test_lines_are_broken_between_words(text: str, lines: list[str]) -> None:
    shown = lines_of(text)
    assert shown[: len(lines)] == [line.rstrip() for line in lines]


def test_a_word_that_grows_too_long_moves_to_the_next_line() -> None:
    assert lines_of("one two three four ", "f") == ["one two three four f"]
    assert lines_of("one two three four ", "f", "i") == ["one two three four", "fi"]
    assert lines_of("one two three four ", "f", "ive", " six") == ["one two three four", "five six"]


def test_after_a_fence_has_ended_words_are_broken_again() -> None:
    shown = lines_of("```\ncode that is as long as it is\n```\n", "one two three four five")
    assert shown[-2:] == ["one two three four", "five"]


def test_a_line_that_others_ended_begins_anew() -> None:
    wrap = WordWrap()
    assert wrap.feed("one two three four", 20) == "one two three four"
    wrap.begin_line()
    assert wrap.feed(" five six", 20) == " five six"


TEXTS = st.text(st.sampled_from("abc  \t\n-1.|`世👍🏽\u200d\u0301"), max_size=120)


@given(TEXTS, st.data(), st.integers(4, 30))
def test_any_slicing_shows_the_same(text: str, data: st.DataObject, columns: int) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert _settled(*pieces, columns=columns) == _settled(text, columns=columns)


@given(TEXTS, st.integers(4, 30))
def test_nothing_is_lost_but_space_at_a_break(text: str, columns: int) -> None:
    shown = WordWrap().feed(text, columns)
    assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", text)


@given(st.text(st.sampled_from("abc 世"), max_size=200), st.integers(4, 30))
def test_no_line_is_too_long_but_one_of_a_single_word(text: str, columns: int) -> None:
    for line in WordWrap().feed(text, columns).split("\n"):
        assert width(line.rstrip()) <= columns or " " not in line.strip()


def _settled(*pieces: str, columns: int) -> str:
    """Return what was written, as if what was taken back had never been."""
    wrap = WordWrap()
    shown = ""
    for piece in pieces:
        for part in re.split(r"(\x1b\[\d+D\x1b\[K)", wrap.feed(piece, columns)):
            if part.startswith("\x1b"):
                back = int(part[2 : part.index("D")])
                while back > 0 or (shown and width(shown[-1]) == 0):
                    back -= width(shown[-1])
                    shown = shown[:-1]
            else:
                shown += part
    return "\n".join(line.rstrip() for line in shown.split("\n"))
