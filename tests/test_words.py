"""Words of any text, spans of characters as tags of them, and schemes of tags against seqeval and each
other.
"""

import itertools
import json
import re
import unicodedata
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, IOBES, Entities
from small import raises

from bertkit.data.scripts import UNSPACED
from bertkit.data.tagging import (
    Scheme,
    entities,
    find_scheme,
    from_bio,
    invalid,
    strict_entities,
    tag_names,
    tags_of,
    to_bio,
)
from bertkit.data.word_spans import read_spans, spans_to_tags, words

tricky = st.sampled_from(
    "ab1_ \t\n'-.\u0301\u093f\u20e3\ufe0f\u200b\u200d\u00a0\u3000\u0000\u001c\ud83d👩😀漢字กุß"
)
texts = st.text(max_size=30) | st.lists(tricky, max_size=30).map("".join)


def is_mark(character):
    return unicodedata.category(character).startswith("M")


def is_outside(character):
    """Whether a word neither begins nor ends with it."""
    return character.isspace() or unicodedata.category(character) == "Cf"


@given(texts, st.sampled_from(["words", "characters"]))
def test_words_are_the_text_but_for_blanks(text, unit):
    found = words(text, unit)
    assert all(start < end for start, end in found)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))
    covered = {index for start, end in found for index in range(start, end)}
    outside = {index for index, character in enumerate(text) if is_outside(character)}
    assert covered | outside == set(range(len(text)))
    assert not any(text[index].isspace() or text[index] == "\u200b" for index in covered)
    assert outside.isdisjoint(start for start, _ in found)
    assert outside.isdisjoint(end - 1 for _, end in found)


@given(texts)
def test_a_word_is_a_run_of_letters_or_one_character_with_its_marks(text):
    found = words(text)
    for part in (part for start, end in found for part in text[start:end].split("\u200d")):
        plain = "".join(c for c in part if not is_mark(c) and not is_outside(c))
        assert len(plain) < 2 or re.fullmatch(rf"[^\W{UNSPACED}]+", plain)
    for (_, end), (start, _) in itertools.pairwise(found):
        touching = end == start
        assert not (touching and is_mark(text[start]))
        letters = re.fullmatch(r"\w\w", text[end - 1] + text[start])
        assert not (touching and letters and not re.search(f"[{UNSPACED}]", text[end - 1] + text[start]))


def test_words():
    for text, expected in (
        ("", []),
        (" \t\r\n\u00a0\u3000", []),
        ("Ada Brixton", ["Ada", "Brixton"]),
        ("don't", ["don", "'", "t"]),
        ("well-known.", "well - known .".split()),
        ("snake_case 3.5", "snake_case 3 . 5".split()),
        ("cafe\u0301s", ["cafe\u0301s"]),
        ("किताब है", ["किताब", "है"]),
        ("¡¿…", ["¡", "¿", "…"]),
        ("a\u200bb", ["a", "b"]),
        ("علی\u200cرضا \u200fنجف\u200f.", ["علی\u200cرضا", "نجف", "."]),
        ("ශ්\u200dරී Donau\u00addampf\u00ad-", ["ශ්\u200dරී", "Donau\u00addampf", "-"]),
        ("\ufeff\u200d", []),
        ("a\0b", ["a", "\0", "b"]),
        ("❤\ufe0f!", ["❤\ufe0f", "!"]),
        ("👩\u200d🚀🚀\u200d", ["👩\u200d🚀", "🚀"]),
        ("'\u0301a", ["'\u0301", "a"]),
        ("a \u0301b", ["a", "\u0301", "b"]),
        ("東京 Łódź", ["東", "京", "Łódź"]),
    ):
        assert [text[start:end] for start, end in words(text)] == expected


def span(start, end, label="X"):
    return {"start": start, "end": end, "label": label}


def counted(aligned):
    return {name: count for name, count in aligned.counts.items() if count}


# 0123456789012345678901
TEXT = "Ada Brixton met Grace."


def test_alignment():
    for alignment, spans, tags, counts in (
        ("strict", [span(16, 21, "P"), span(0, 11, "P")], "B-P I-P O B-P O", {}),
        ("strict", [span(3, 12)], "O B-X O O O", {"trimmed": 1}),
        ("strict", [span(3, 4), span(7, 7)], "O O O O O", {"empty": 2}),
        ("expand", [span(5, 13)], "O B-X I-X O O", {"misaligned": 1}),
        ("expand", [span(5, 6)], "O B-X O O O", {"misaligned": 1}),
        ("contract", [span(1, 13)], "O B-X O O O", {"misaligned": 1}),
        ("contract", [span(5, 6)], "O O O O O", {"lost": 1}),
        ("contract", [span(1, 6)], "O O O O O", {"lost": 1}),
        ("expand", [span(0, 2, "A"), span(2, 3, "B")], "B-A O O O O", {"misaligned": 2, "overlapping": 1}),
        ("contract", [span(0, 6, "A"), span(5, 15, "B")], "B-A O B-B O O", {"misaligned": 2}),
        ("strict", [span(0, 3, "A"), span(0, 11, "B")], "B-B I-B O O O", {"overlapping": 1}),
        ("strict", [span(4, 15, "A"), span(0, 11, "B")], "O B-A I-A O O", {"overlapping": 1}),
        ("strict", [span(0, 3, "A"), span(0, 3, "B"), span(0, 3, "A")], "B-A O O O O", {"overlapping": 2}),
        (
            "strict",
            [span(0, 11, "A"), span(4, 21, "B"), span(0, 3, "C")],
            "B-C B-B I-B I-B O",
            {"overlapping": 1},
        ),
        (
            "strict",
            [span(16, 22, "A"), span(12, 21, "B")],
            "O O B-B I-B O",
            {"overlapping": 1},
        ),  # of two words both
        ("strict", [span(0, 4), span(15, 21)], "B-X O O B-X O", {"trimmed": 2}),
        ("strict", [span(0, 3), span(4, 11)], "B-X B-X O O O", {}),  # neighbours stay two
    ):
        found = spans_to_tags(TEXT, spans, alignment)
        assert found.tags == tags.split()
        assert counted(found) == counts
        assert found.problems == []


PROBLEMS = [
    ("strict", span(5, 13), "span 2, 'rixton m' from 5 to 13, cuts a word; whole words are 'Brixton met'"),
    ("expand", span(20, 23), "span 2 is from 20 to 23, but the text has 22 characters"),
    ("expand", span(-1, 3), "span 2 is from -1 to 3, but the text has 22 characters"),
    ("expand", span(7, 4), "span 2 ends at 4, before it starts at 7"),
    ("expand", span(0.0, 3), "span 2 is from 0.0 to 3, where whole numbers are expected"),
    ("expand", span(0, "3"), "span 2 is from 0 to '3', where whole numbers are expected"),
    ("expand", span(False, 3), "span 2 is from False to 3, where whole numbers are expected"),
    ("expand", span(0, None), "span 2 is from 0 to None, where whole numbers are expected"),
    ("expand", span(0, 3, " "), "span 2 has the label ' ', where text is expected"),
    ("expand", span(0, 3, 7), "span 2 has the label 7, where text is expected"),
    ("expand", {"start": 0}, "span 2 has no end and no label"),
]


@pytest.mark.parametrize(("alignment", "wrong", "message"), PROBLEMS)
def test_problems_are_gathered_and_the_rest_is_tagged(alignment, wrong, message):
    found = spans_to_tags(TEXT, [span(0, 3), wrong, span(16, 21), wrong], alignment)
    assert found.problems == [message, message.replace("span 2", "span 4")]
    assert found.tags == "B-X O O B-X O".split()
    assert counted(found) == ({"cut": 2} if "cuts a word" in message else {})


@given(
    texts,
    st.lists(
        st.tuples(st.integers(-1, 31), st.integers(-1, 31), st.sampled_from(["A", "B-C", ""])), max_size=6
    ),
    st.sampled_from(["strict", "expand", "contract"]),
)
def test_any_spans(text, triples, alignment):
    found = spans_to_tags(text, [span(*triple) for triple in triples], alignment)
    offsets = words(text)
    assert len(found.tags) == len(offsets)
    assert invalid(found.tags) == 0
    kept = entities(found.tags)
    dropped = sum(found.counts[name] for name in ("empty", "lost", "overlapping"))
    assert len(kept) + dropped + len(found.problems) == len(triples)
    for label, first, end in kept:
        start = offsets[first][0]
        stop = offsets[end - 1][1]
        matching = [(a, b) for a, b, name in triples if name == label and 0 <= a <= b <= len(text)]
        inner = ([place for place in range(a, b) if not is_outside(text[place])] for a, b in matching)
        trimmed = [(places[0], places[-1] + 1) for places in inner if places]
        if alignment == "strict":
            assert (start, stop) in trimmed
        elif alignment == "expand":
            assert any(start <= a < b <= stop for a, b in trimmed)
        else:
            assert any(a <= start < stop <= b for a, b in trimmed)


@given(texts, st.data())
def test_entities_come_back_from_their_spans(text, data):
    found = words(text)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(found)), max_size=6)))
    chosen = [(data.draw(st.sampled_from("AB")), a, b) for a, b in itertools.pairwise(cuts)]
    spans = [span(found[a][0], found[b - 1][1], label) for label, a, b in chosen]
    for alignment in ("strict", "expand", "contract"):
        aligned = spans_to_tags(text, data.draw(st.permutations(spans)), alignment)
        assert entities(aligned.tags) == chosen
        assert counted(aligned) == {}


SPANS = [span(0, 3, "PER"), span(4, 11, "LOC")]


@pytest.mark.parametrize(
    "form",
    [
        SPANS,
        [{**each, "id": "x"} for each in SPANS],
        [{"span": [each["start"], each["end"]], "type": each["label"]} for each in SPANS],
        [
            {"offset": each["start"], "length": each["end"] - each["start"], "tag": each["label"]}
            for each in SPANS
        ],
        [{"begin": each["start"], "end": each["end"], "entity": [each["label"]]} for each in SPANS],
        [[0, 3, "PER"], [4, 11, "LOC"]],
        ((0, 3, "PER"), (4, 11, "LOC")),
        [{**each, "label": [each["label"]]} for each in SPANS],
    ],
)
def test_forms_of_spans(form):
    assert read_spans(form) == read_spans(json.dumps(form)) == SPANS
    assert read_spans([]) == read_spans("[]") == []
    lacking = read_spans([{"start": 1, "label": "X"}, {"choices": ["a"]}])
    assert lacking == [{"start": 1, "label": "X"}, {}]
    problems = spans_to_tags("a", lacking, "expand").problems
    assert problems == ["span 1 has no end", "span 2 has no start and no end and no label"]


def test_other_things_are_no_spans():
    for value, message in (
        (None, "None, where a list of spans is expected"),
        (7, "7, where a list of spans is expected"),
        ("", "'' is not JSON: Expecting value"),
        ("Ada|PER", "'Ada|PER' is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("3", "3, where a list of spans is expected"),
        ({"entities": []}, "{'entities': []}, where a list of spans is expected"),
        ([[0, 3]], "span 1 is [0, 3], where [start, end, label] or an object"),
        ([SPANS[0], "PER"], "span 2 is 'PER', where"),
        ([SPANS[0], {"start": 0, "end": 3, "label": []}], "span 2 has the labels [], where one"),
        (
            [{"start": 0, "end": 3, "label": ["A", "B"]}],
            "span 1 has the labels ['A', 'B'], where one is expected",
        ),
    ):
        raises(ValueError, re.escape(message), read_spans, value)


some_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from("start end label text".split()), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(some_json, texts)
def test_any_json_is_spans_or_a_value_error(value, text):
    try:
        spans = read_spans(value)
    except ValueError:
        return
    found = spans_to_tags(text, spans, "expand")
    assert len(found.problems) + sum(found.counts[n] for n in ("empty", "overlapping")) + len(
        entities(found.tags)
    ) == len(spans)


# --- schemes of tags

TYPES = ["LOC", "X", "B-cell-line"]  # one with hyphens


def tags_with(prefixes, most=12):
    """Any tags with these prefixes, well formed or not."""
    names = ["O", *(f"{prefix}-{name}" for prefix in prefixes for name in TYPES)]
    return st.lists(st.sampled_from(names), max_size=most)


@st.composite
def some_entities(draw):
    """(entities that do not overlap, words of their sentence)."""
    cuts = sorted(draw(st.sets(st.integers(0, 12), min_size=1)))
    found = [(draw(st.sampled_from(TYPES)), a, b) for a, b in pairwise(cuts) if draw(st.booleans())]
    return found, cuts[-1]


def as_iob1(tags):
    """BIO with B- only where an entity of the same type ends just before."""
    names = ["", *(tag[2:] for tag in tags)]
    return [f"I-{tag[2:]}" if tag[0] == "B" and tag[2:] != names[i] else tag for i, tag in enumerate(tags)]


@given(tags_with("BIES"))
def test_entities_are_those_of_seqeval(tags):
    assert entities(tags) == [(name, first, last + 1) for name, first, last in get_entities(tags)]


@pytest.mark.parametrize(("scheme", "prefixes", "oracle"), [("BIO", "BI", IOB2), ("BIOES", "BIES", IOBES)])
def test_strict_entities_are_those_of_seqeval(scheme, prefixes, oracle):
    @given(tags_with(prefixes))
    def same(tags):
        (expected,) = Entities([tags], scheme=oracle).entities
        assert strict_entities(tags, scheme) == [(each.tag, each.start, each.end) for each in expected]

    same()


@given(some_entities(), st.sampled_from(["BIO", "BIOES"]))
def test_entities_survive_their_tags(given_entities, scheme):
    found, words = given_entities
    tags = tags_of(found, words, scheme)
    assert len(tags) == words
    assert set(tags) <= set(tag_names(TYPES, scheme))
    assert entities(tags) == strict_entities(tags, scheme) == found
    assert invalid(tags, scheme) == 0


@given(some_entities())
def test_bio_survives_every_scheme(given_entities):
    bio = tags_of(*given_entities, "BIO")
    bioes = from_bio(bio, "BIOES")
    bilou = [tag.replace("E-", "L-", 1).replace("S-", "U-", 1) for tag in bioes]
    assert from_bio(bio, "BIO") == bio
    assert to_bio(bio, "BIO") == to_bio(bioes, "BIOES") == to_bio(bilou, "BIOES") == (bio, 0)
    assert to_bio(as_iob1(bio), "IOB1") == (bio, 0)
    assert from_bio(to_bio(bioes, "BIOES")[0], "BIOES") == bioes


@given(tags_with("BI"))
def test_repair_gives_what_conlleval_reads(tags):
    repaired, count = to_bio(tags, "BIO")
    assert entities(repaired) == strict_entities(repaired) == entities(tags)
    assert count == invalid(tags) == sum(a != b for a, b in zip(tags, repaired, strict=True))


@pytest.mark.parametrize(("scheme", "prefixes"), [("BIO", "BI"), ("BIOES", "BIES")])
def test_invalid_counts_what_can_not_be_written(scheme, prefixes):
    @given(tags_with(prefixes))
    def same(tags):
        proper = tags_of(entities(tags), len(tags), scheme) == tags
        assert (invalid(tags, scheme) == 0) == proper
        if scheme == "BIOES" and not proper:
            raises(ValueError, r"^tag \d+, ", to_bio, tags, scheme)

    same()


def test_invalid_transitions():
    for scheme, tags, count in (
        ("BIOES", "B-X", 1),
        ("BIOES", "B-X I-Y", 2),
        ("BIOES", "S-X E-X", 1),
        ("BIOES", "O I-X O", 2),
        ("BIOES", "B-X I-X E-X S-Y", 0),
    ):
        assert invalid(tags.split(), scheme) == count


WRONG = [
    ("BIO", "O PER", "tag 2, 'PER': unknown scheme; BIO has O, B-TYPE, I-TYPE"),
    ("BIO", "B-", "tag 1, 'B-': unknown scheme"),
    ("BIO", "", "tag 1, '': unknown scheme"),
    ("BIO", "O O B", "tag 3, 'B': unknown scheme"),
    ("BIO", "S-X", "tag 1, 'S-X': unknown scheme"),
    ("BIO", "O-X", "tag 1, 'O-X': unknown scheme"),
    ("IOB1", "E-X", "tag 1, 'E-X': unknown scheme; IOB1 has"),
    (
        "BIOES",
        "BI-X",
        "tag 1, 'BI-X': unknown scheme; BIOES has O, B-TYPE, I-TYPE, E-TYPE, S-TYPE, L-TYPE, U-TYPE",
    ),
    ("BIOES", "b-X", "tag 1, 'b-X': unknown scheme"),
    ("BIOES", "B-X O", "tag 1, 'B-X': the entity does not end with E-X"),
    ("BIOES", "O B-X I-X", "tag 3, 'I-X': the entity does not end with E-X"),
    ("BIOES", "B-X E-Y", "tag 1, 'B-X': the entity does not end"),
    ("BIOES", "B-X S-X", "tag 1, 'B-X': the entity does not end"),
    ("BIOES", "O E-X", "tag 2, 'E-X': continues"),
    ("BIOES", "S-X I-X E-X", "tag 2, 'I-X': continues"),
]


@pytest.mark.parametrize(("scheme", "tags", "message"), WRONG)
def test_wrong_tags_are_named(scheme, tags, message):
    raises(ValueError, f"^{re.escape(message)}", to_bio, tags.split(" "), scheme)


def test_the_scheme_is_found():
    for sentences, scheme in (
        ([], "BIO"),
        (["", "O O"], "BIO"),
        (["B-X I-X O B-Y"], "BIO"),
        (["B-X O", "I-X O"], "BIO"),  # one I- too many does not make it IOB1
        (["O I-X I-X"], "IOB1"),
        (["I-X B-X I-X O I-Y"], "IOB1"),
        (["I-X B-Y"], "BIO"),
        (["B-X I-X B-X"], "BIO"),
        (["O", "B-X E-X"], "BIOES"),
        (["S-X"], "BIOES"),
        (["B-X L-X"], "BIOES"),
        (["U-X"], "BIOES"),
    ):
        assert find_scheme(sentence.split() for sentence in sentences) == scheme
        assert scheme in get_args(Scheme)
    raises(ValueError, "tag 1, 'LABEL_0': unknown scheme", find_scheme, [["O"], ["LABEL_0"]])


def test_tag_names():
    assert tag_names(["LOC", "A-B"], "BIO") == "O B-LOC I-LOC B-A-B I-A-B".split()
    assert tag_names(["LOC"], "BIOES") == "O B-LOC I-LOC E-LOC S-LOC".split()
    assert tag_names([], "BIO") == ["O"]
