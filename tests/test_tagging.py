"""Schemes of tags and the entities in them, against seqeval and against each other."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, IOBES, Entities

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

TYPES = ["LOC", "X", "B-cell-line"]  # one with hyphens


def tags_with(prefixes: str, most: int = 12) -> st.SearchStrategy[list[str]]:
    """Any tags with these prefixes, well formed or not."""
    names = ["O", *(f"{prefix}-{name}" for prefix in prefixes for name in TYPES)]
    return st.lists(st.sampled_from(names), max_size=most)


@st.composite
def some_entities(draw: st.DrawFn) -> tuple[list[tuple[str, int, int]], int]:
    """(entities that do not overlap, words of their sentence)."""
    cuts = sorted(draw(st.sets(st.integers(0, 12), min_size=1)))
    found = [(draw(st.sampled_from(TYPES)), a, b) for a, b in pairwise(cuts) if draw(st.booleans())]
    return found, cuts[-1]


def as_iob1(tags: list[str]) -> list[str]:
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
            with pytest.raises(ValueError, match=r"^tag \d+, "):
                to_bio(tags, scheme)

    same()


def test_invalid_transitions():
    for scheme, tags, count in (
        ("BIO", "", 0),
        ("BIO", "I-X", 1),
        ("BIO", "O I-X I-X I-Y", 2),
        ("BIO", "B-X B-X I-X O", 0),
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
    ("BIOES", "BI-X", "tag 1, 'BI-X': unknown scheme; BIOES has O, B-TYPE, I-TYPE, E-TYPE, S-TYPE, L-TYPE, U-TYPE"),
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
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        to_bio(tags.split(" "), scheme)


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
    with pytest.raises(ValueError, match="tag 1, 'LABEL_0': unknown scheme"):
        find_scheme([["O"], ["LABEL_0"]])


def test_tag_names():
    assert tag_names(["LOC", "A-B"], "BIO") == ["O", "B-LOC", "I-LOC", "B-A-B", "I-A-B"]
    assert tag_names(["LOC"], "BIOES") == ["O", "B-LOC", "I-LOC", "E-LOC", "S-LOC"]
    assert tag_names([], "BIO") == ["O"]
