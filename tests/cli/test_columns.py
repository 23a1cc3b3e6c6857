from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.cli.columns import cut, filled, width, widths, wrapped

TEXTS = st.text(st.sampled_from("ab 日本é\u0301👩\u200d💻❤\ufe0f🎉\n"), max_size=40)


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("abc", 3), ("日本", 4), ("e\u0301", 1), ("🎉", 2), ("❤", 1), ("❤\ufe0f", 2), ("👩\u200d💻", 4)],
)
def test_signs_are_as_wide_as_the_widest_terminal_shows_them(text: str, columns: int) -> None:
    assert width(text) == columns


@given(TEXTS, st.integers(1, 20))
def test_a_cut_text_fits_and_says_that_it_was_cut(text: str, columns: int) -> None:
    short = cut(text, columns)
    assert width(short) <= columns
    assert "\n" not in short
    whole = " ".join(text.split())
    assert short == whole or (short.endswith("…") and whole.startswith(short[:-1].rstrip()))


@given(TEXTS, st.integers(2, 20))
def test_wrapped_lines_fit_and_lose_nothing_but_spaces(text: str, columns: int) -> None:
    lines = wrapped(text, columns)
    assert all(width(line) <= columns for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_words_stay_whole_where_they_can() -> None:
    assert wrapped("the quick fox", 9) == ["the quick", "fox"]
    assert wrapped("a verylongword", 6) == ["a", "verylo", "ngword"]
    assert wrapped("one\n\ntwo", 9) == ["one", "", "two"]
    assert wrapped("two\u00a0words stay", 9) == ["two\u00a0words", "stay"]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert widths([("a", "日本"), ("bcd", "e")]) == [3, 4]
    assert filled("日本", 6) == "日本  "
