from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.core.text import REPLACEMENT, TextCleaner, clean_json, clean_text

any_text = st.text(st.characters(exclude_categories=()), max_size=30) | st.text(
    alphabet="a\0é😀\ud83d\ude00\udfff", max_size=12
)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("", ""),
        ("plain", "plain"),
        ("Zoë 😀 \u2028 \ufffe", "Zoë 😀 \u2028 \ufffe"),
        ("a\0b", f"a{REPLACEMENT}b"),
        ("é\0", f"é{REPLACEMENT}"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d", REPLACEMENT),
        ("\ude00\ud83d", REPLACEMENT * 2),
        ("x\ud83dy\0", f"x{REPLACEMENT}y{REPLACEMENT}"),
    ],
)
def test_only_nul_and_lone_surrogates_are_replaced(raw: str, clean: str):
    assert clean_text(raw) == clean


@given(any_text)
def test_clean_text_can_be_encoded_and_stays_as_it_is(raw: str):
    clean = clean_text(raw)
    clean.encode()
    assert "\0" not in clean
    assert clean_text(clean) == clean


@given(any_text, st.lists(st.integers(0, 30), max_size=5))
def test_however_a_text_is_cut_it_comes_out_the_same(raw: str, cuts: list[int]):
    places = sorted({0, len(raw), *(min(cut, len(raw)) for cut in cuts)})
    cleaner = TextCleaner()
    out = "".join(cleaner.feed(raw[a:b]) for a, b in pairwise(places)) + cleaner.close()
    assert out == clean_text(raw)


def test_half_a_pair_is_held_back_until_its_other_half_comes():
    cleaner = TextCleaner()
    assert [cleaner.feed("a\ud83d"), cleaner.feed("\ude00b"), cleaner.feed("\ud83d"), cleaner.close()] == [
        "a",
        "😀b",
        "",
        REPLACEMENT,
    ]
    assert cleaner.close() == ""


def test_all_strings_of_a_json_value_are_cleaned_also_its_keys():
    dirty = {"k\0": ["a", {"b": "\ud83d"}], "n": 1, "z": None}
    assert clean_json(dirty) == {f"k{REPLACEMENT}": ["a", {"b": REPLACEMENT}], "n": 1, "z": None}


def test_a_value_that_is_clean_comes_back_as_the_same_object():
    value = {"a": ["b", {"c": 1.5}], "d": True}
    assert clean_json(value) is value
