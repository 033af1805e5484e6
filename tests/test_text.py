"""Texts for people in any script: the width of table cells, and where a text may be cut."""

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from bertkit.report.mistakes import shortened
from bertkit.text import beginning, character_start, columns, display_width, short_repr

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
FLAG = "\U0001f1f0\U0001f1f7"
ROCKET = "\U0001f9d1\U0001f3fd\u200d\U0001f680"
# in conjoining letters; e with a mark of its own
HAN = "\u1112\u1161\u11ab"
ACUTE = "e\u0301"
CHARACTERS = [
    "a",
    " ",
    "中",
    "ก",
    "กำ",
    "ที่",
    "हि",
    "न्दी",
    "م",
    "مَ",
    FAMILY,
    FLAG,
    ROCKET,
    HAN,
    ACUTE,
    "1\ufe0f\u20e3",
]


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("", 0),
        ("café", 4),
        (f"caf{ACUTE}", 4),
        ("中文，", 6),
        ("ｱｲｳ", 3),
        ("한국", 4),
        (HAN, 2),
        ("กรุงเทพ", 6),
        ("ที่นี่", 2),
        ("हिन्दी", 3),
        ("مَرحبا", 5),
        ("שָׁלוֹם", 4),
        (FAMILY + FLAG + ROCKET, 6),
        ("☺️", 2),
        ("a\u200bb\u200f", 2),
    ],
)
def test_width(text, width):
    assert display_width(text) == width


def test_columns_line_up_in_every_script():
    cells = ["label", "中文标签", "กรุงเทพ", FAMILY, "हिन्दी", f"n{ACUTE}gatif", "مرحبا"]
    table = columns([[cell, "9"] for cell in cells]).splitlines()
    assert {display_width(line.removesuffix("9")) for line in (*table[:1], *table[2:])} == {10}
    assert table[1] == "--------  -"
    assert columns([["a", "b"], ["long", "c"]]) == "a     b\n----  -\nlong  c"


@given(st.lists(st.sampled_from(CHARACTERS), min_size=1, max_size=30), st.data())
def test_no_character_is_cut(characters, data):
    """Joined by what never joins, so that each of them stays one."""
    text = ""
    starts = []
    for character in characters:
        starts += [len(text), len(text) + len(character)]
        text += character + "x"
    place = data.draw(st.integers(0, len(text) - 1))
    assert character_start(text, place) == max(start for start in starts if start <= place)
    assert regex.findall(r"\X", text) == [each for character in characters for each in (character, "x")]


def test_a_character_without_end_is_cut_all_the_same():
    assert character_start("a" + "\u0301" * 1000, 500) == 436


@pytest.mark.parametrize("character", CHARACTERS[4:])
@pytest.mark.parametrize(
    ("cut", "size"), [(lambda text: beginning(text, 40), 41), (lambda text: shortened(text, 40), 43 + 20)]
)
def test_texts_are_shortened_between_characters(cut, size, character):
    text = "ab" + character * 60
    short = cut(text)
    assert len(short) <= size
    assert set(regex.findall(r"\X", short)) <= {"a", "b", character, "…", " "}


def test_short_texts_and_latin_ones_are_cut_by_number():
    assert (beginning("a\n b", 3), beginning("abcd", 3)) == ("a b", "abc…")
    assert shortened("a" * 5 + "b" * 5, 4) == "aa … bb"
    assert short_repr("x" * 100) == f"'{'x' * 59}...{'x' * 14}'"
    assert short_repr("中" * 78) == repr("中" * 78)
