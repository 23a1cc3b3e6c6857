import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.core.cursor import MAX_LENGTH, Cursor, parse_cursor
from ownloop.errors import CursorError


@pytest.mark.parametrize(
    ("cursor", "text"),
    [
        (Cursor(), "0"),
        (Cursor(7), "7"),
        (Cursor(7, {5: 0}), "7~5.0"),
        (Cursor(12, {9: 3, 5: 120}), "12~5.120,9.3"),
        (Cursor(10**17, {10**17: 10**17}), "100000000000000000~100000000000000000.100000000000000000"),
    ],
)
def test_a_cursor_is_its_seq_and_its_marks(cursor: Cursor, text: str):
    assert str(cursor) == text
    assert parse_cursor(text) == cursor


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 7",
        "7 ",
        "7\n",
        "-1",
        "+7",
        "07",
        "7.0",
        "seven",
        "\u0667",  # a digit, though not ours
        "7~",
        "7~5",
        "7~5.",
        "7~.5",
        "7~5.1,",
        "7~,5.1",
        "7~5.1,,6.1",
        "7~5.1;6.1",
        "7~5.-1",
        "7~05.1",
        "7~5.01",
        "7~0.1",
        "7~8.1",
        "7~5.1,5.2",
        "7~5.1~6.1",
        "1" * 19,
        "9~" + ",".join(f"{n}.1" for n in range(1, 2000)),
    ],
)
def test_anything_else_is_no_cursor(text: str):
    with pytest.raises(CursorError, match="is not a cursor"):
        parse_cursor(text)


def test_the_error_shows_only_the_beginning_of_a_long_text():
    with pytest.raises(CursorError) as caught:
        parse_cursor("x" * (MAX_LENGTH + 1))
    assert len(str(caught.value)) < 300


def cursors() -> st.SearchStrategy[Cursor]:
    def with_marks(seq: int) -> st.SearchStrategy[Cursor]:
        return st.builds(Cursor, st.just(seq), st.dictionaries(st.integers(1, seq), st.integers(0, 10**12), max_size=5))

    return st.integers(1, 10**12).flatmap(with_marks)


@given(cursors())
def test_every_cursor_survives_its_text(cursor: Cursor):
    assert parse_cursor(str(cursor)) == cursor


@given(st.text(alphabet="0123456789~.,", max_size=20))
def test_a_text_is_refused_or_is_the_one_text_of_its_cursor_up_to_the_order_of_marks(text: str):
    try:
        cursor = parse_cursor(text)
    except CursorError:
        return
    head, _, marks = text.partition("~")
    assert str(cursor).partition("~")[0] == head
    assert sorted(str(cursor).partition("~")[2].split(",")) == sorted(marks.split(","))
