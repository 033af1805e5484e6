"""The packaged sample `similarity`: its counts, its grades, and that shared words say nothing of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from scipy.stats import spearmanr

from bertkit.data.sources import find_files, samples_folder
from bertkit.sections import DataSpec

FOLDER = samples_folder() / "similarity"
SPLITS = ("train", "validation", "test")

each_split = pytest.mark.parametrize("split", SPLITS)


def read(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def all_pairs() -> list[dict[str, Any]]:
    return [row for split in SPLITS for row in read(split)]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def shared(row: dict[str, Any]) -> float:
    """The share of a pair's words that both sentences have."""
    one, other = words(row["text_a"]), words(row["text_b"])
    return len(one & other) / len(one | other)


def test_recipes_find_it() -> None:
    found = find_files(DataSpec(source="sample:similarity"))
    assert found == {split: [FOLDER / f"{split}.jsonl"] for split in SPLITS}


@each_split
def test_rows_are_two_sentences_and_a_grade(split: str) -> None:
    for row in read(split):
        assert list(row) == ["text_a", "text_b", "score"]
        assert re.fullmatch(r"[A-Z0-9].*[.?!]", row["text_a"]), row
        assert re.fullmatch(r"[A-Z0-9].*[.?!]", row["text_b"]), row
        assert isinstance(row["score"], float)
        assert 0 <= row["score"] <= 5
        assert (2 * row["score"]).is_integer()


@pytest.mark.parametrize(("split", "rows", "each"), [("train", 160, 20), ("validation", 40, 5), ("test", 40, 5)])
def test_every_grade_is_well_filled(split: str, rows: int, each: int) -> None:
    grades = Counter(int(row["score"]) for row in read(split))
    assert grades.total() == rows
    assert min(grades[grade] for grade in range(6)) >= each
    halves = Counter(row["score"] for row in all_pairs())
    assert min(halves[grade / 2] for grade in range(11)) >= 8


def test_no_sentence_occurs_twice_nor_nearly() -> None:
    assert all(row["text_a"] != row["text_b"] for row in all_pairs())
    pairs = [(words(row["text_a"]), words(row["text_b"])) for row in all_pairs()]
    for these, those in combinations(pairs, 2):
        assert all(len(one & other) <= 0.5 * len(one | other) for one in these for other in those), (these, those)


def test_shared_words_do_not_tell_the_grade() -> None:
    found = [(shared(row), row["score"]) for row in all_pairs()]
    assert sum(share >= 0.5 and grade <= 2.5 for share, grade in found) >= 30
    assert sum(share <= 0.25 and grade >= 4 for share, grade in found) >= 50
    told = re.search(r"is (0\.\d\d) over all pairs", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert told
    assert round(float(spearmanr(*zip(*found, strict=True)).statistic), 2) == float(told[1])


@each_split
def test_the_readme_counts_right(split: str) -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    told = re.search(rf"^\| {split} \|(.*)\|$", readme, re.MULTILINE)
    assert told
    grades = Counter(int(row["score"]) for row in read(split))
    assert [int(cell) for cell in told[1].split("|")] == [grades.total(), *(grades[grade] for grade in range(6))]
