"""The packaged sample `ner`: its counts, its offsets, and that no text of one split is nearly one of another."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from typing import Any

import pytest

from bertkit.data.sources import find_files, samples_folder
from bertkit.sections import DataSpec

FOLDER = samples_folder() / "ner"
LABELS = ("PER", "ORG", "LOC", "WORK")
SPLITS = ("train", "validation", "test")
WORD = re.compile(r"\w+|[^\w\s]")

each_split = pytest.mark.parametrize("split", SPLITS)


def read(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def names(split: str) -> Counter[tuple[str, str]]:
    """How often each (name, label) is mentioned."""
    return Counter((row["text"][s["start"] : s["end"]], s["label"]) for row in read(split) for s in row["spans"])


def mentions(split: str) -> Counter[str]:
    return Counter(span["label"] for row in read(split) for span in row["spans"])


def long(split: str) -> list[dict[str, Any]]:
    """Rows of more than 128 words, and so of more than 128 word pieces."""
    return [row for row in read(split) if len(WORD.findall(row["text"])) > 128]


def trigrams(text: str) -> set[tuple[str, ...]]:
    found = re.findall(r"\w+", text.casefold())
    return set(zip(found, found[1:], found[2:], strict=False))


def skeleton(row: dict[str, Any]) -> str:
    """The text with each name replaced by its label."""
    text = row["text"]
    for span in reversed(row["spans"]):
        text = text[: span["start"]] + span["label"] + text[span["end"] :]
    return text


def test_recipes_find_it() -> None:
    found = find_files(DataSpec(source="sample:ner"))
    assert found == {split: [FOLDER / f"{split}.jsonl"] for split in SPLITS}


@each_split
def test_rows_are_text_and_spans_in_order(split: str) -> None:
    for row in read(split):
        assert row.keys() == {"text", "spans"}
        assert row["text"] == row["text"].strip()
        assert row["text"]
        assert all(span.keys() == {"start", "end", "label"} for span in row["spans"])
        assert {span["label"] for span in row["spans"]} <= set(LABELS)
        edges = [edge for span in row["spans"] for edge in (span["start"], span["end"])]
        assert edges == sorted(edges), row["text"]  # no overlaps
        assert not edges or (edges[0] >= 0 and edges[-1] <= len(row["text"]))


@each_split
def test_spans_begin_and_end_with_a_word(split: str) -> None:
    for row in read(split):
        words = [word.span() for word in WORD.finditer(row["text"])]
        starts, ends = {start for start, _ in words}, {end for _, end in words}
        for span in row["spans"]:
            assert span["start"] in starts, (row["text"], span)
            assert span["end"] in ends, (row["text"], span)
            assert span["start"] < span["end"]


@each_split
def test_no_mark_of_the_draft_is_left(split: str) -> None:
    assert not [row["text"] for row in read(split) if re.search(r"\]\(|\((PER|ORG|LOC|WORK)\)", row["text"])]


@pytest.mark.parametrize(("split", "rows", "each"), [("train", 280, 90), ("validation", 40, 15), ("test", 40, 15)])
def test_there_is_enough_of_each(split: str, rows: int, each: int) -> None:
    assert len(read(split)) >= rows
    assert min(mentions(split)[label] for label in LABELS) >= each
    assert 0.09 <= sum(not row["spans"] for row in read(split)) / len(read(split)) <= 0.15


@each_split
def test_the_readme_counts_right(split: str) -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    told = re.search(rf"^\| {split} \|(.*)\|$", readme, re.MULTILINE)
    assert told
    counts = [len(read(split)), *(mentions(split)[label] for label in LABELS)]
    assert [int(cell) for cell in told[1].split("|")] == [
        *counts,
        sum(not row["spans"] for row in read(split)),
        len(long(split)),
    ]


def test_long_texts_have_names_near_their_end() -> None:
    rows = [row for split in SPLITS for row in long(split)]
    late = [row for row in rows if row["spans"] and len(WORD.findall(row["text"][: row["spans"][-1]["start"]])) > 128]
    assert all(long(split) for split in SPLITS)
    assert len(late) >= 8


@pytest.mark.parametrize("split", ["validation", "test"])
def test_two_names_in_five_are_not_in_train(split: str) -> None:
    found = names(split).keys()
    assert 0.35 <= len(found - names("train").keys()) / len(found) <= 0.5


@pytest.mark.parametrize("masked", [False, True], ids=["texts", "names masked"])
def test_no_two_texts_are_nearly_the_same(masked: bool) -> None:
    texts = [skeleton(row) if masked else row["text"] for split in SPLITS for row in read(split)]
    several = [text for text in texts if trigrams(text)]
    assert not masked or len(several) > 0.95 * len(texts)
    assert masked or len({text.casefold() for text in texts}) == len(texts)
    for (one, grams), (other, others) in combinations([(text, trigrams(text)) for text in several], 2):
        assert len(grams & others) < 0.2 * len(grams | others), (one, other)


def test_a_word_can_be_a_name_in_one_text_and_none_in_another() -> None:
    """For each of these words a model must look at the words around it."""
    labels: dict[str, set[str]] = {word: set() for word in ("May", "Bill", "Reading", "Jordan", "Amazon", "Hope")}
    for row in (row for split in SPLITS for row in read(split)):
        for word, found in labels.items():
            for match in re.finditer(rf"\b{word}\b", row["text"], re.IGNORECASE):
                inside = [s["label"] for s in row["spans"] if s["start"] <= match.start() < s["end"]]
                found.add(inside[0] if inside else "O")
    assert min(len(found) for found in labels.values()) >= 2, labels
