"""The packaged sample `retrieval`: its layout, its counts, and that questions do not quote the pages."""

from __future__ import annotations

import json
import re
from itertools import combinations

import pytest

from bertkit.data.beir import Beir, read_beir
from bertkit.data.sources import samples_folder

FOLDER = samples_folder() / "retrieval"
SPLITS = ("train", "validation", "test")

each_split = pytest.mark.parametrize("split", SPLITS)


@pytest.fixture(scope="module")
def sample() -> Beir:
    return read_beir(FOLDER)


@pytest.fixture(scope="module")
def pages() -> dict[str, tuple[str, str]]:
    """Id -> title and text."""
    lines = (FOLDER / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    return {page["_id"]: (page["title"], page["text"]) for page in map(json.loads, lines)}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def runs(text: str, length: int) -> set[tuple[str, ...]]:
    """All runs of so many words."""
    found = words(text)
    return {tuple(found[start : start + length]) for start in range(len(found) - length + 1)}


def test_it_is_read_without_a_finding(sample: Beir) -> None:
    assert sample.findings == []
    assert tuple(sample.qrels) == SPLITS


def test_pages_are_short_or_longer_than_a_window(sample: Beir, pages: dict[str, tuple[str, str]]) -> None:
    lengths = {name: len(text.split()) for name, (_, text) in pages.items()}
    assert len(lengths) >= 130
    assert all(40 <= length <= 120 or length >= 400 for length in lengths.values())
    long = {name for name, length in lengths.items() if length >= 400}
    assert long == {name for name in lengths if name.startswith("long-")}
    relevant = {split: {name for grades in sample.qrels[split].values() for name in grades} for split in SPLITS}
    assert len(long) == 6
    assert all(relevant[split] & long for split in SPLITS)


def test_titles_and_texts_are_clean(pages: dict[str, tuple[str, str]]) -> None:
    for name, (title, text) in pages.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)
        assert title == title.strip() != ""
        assert text == text.strip()
        assert text.endswith(".")
        assert "  " not in text
    assert len({title for title, _ in pages.values()}) == len(pages)


def test_no_two_pages_are_nearly_the_same(pages: dict[str, tuple[str, str]]) -> None:
    texts = [(name, runs(text, 3)) for name, (_, text) in pages.items()]
    for (one, grams), (other, others) in combinations(texts, 2):
        assert len(grams & others) < 0.05 * len(grams | others), (one, other)


@pytest.mark.parametrize(("split", "least"), [("train", 30), ("validation", 15), ("test", 20)])
def test_each_question_has_a_page_that_answers_it(sample: Beir, split: str, least: int) -> None:
    judged = sample.qrels[split]
    assert len(judged) >= least
    assert {grade for grades in judged.values() for grade in grades.values()} == {1, 2}
    assert all(2 in grades.values() for grades in judged.values())
    assert sum(len(grades) > 1 for grades in judged.values()) >= 3


def test_each_question_is_in_one_split_and_asked_once(sample: Beir) -> None:
    assert sorted(name for split in SPLITS for name in sample.qrels[split]) == sorted(sample.queries)
    asked = [frozenset(words(text)) for text in sample.queries.values()]
    assert all(len(one & other) < 0.6 * len(one | other) for one, other in combinations(asked, 2))


@each_split
def test_questions_do_not_quote(sample: Beir, split: str) -> None:
    for query, grades in sample.qrels[split].items():
        for document in grades:
            assert not runs(sample.queries[query], 4) & runs(sample.corpus[document], 4), (query, document)


@each_split
def test_the_readme_counts_right(sample: Beir, pages: dict[str, tuple[str, str]], split: str) -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    told = re.search(rf"^\| {split} \|(.*)\|$", readme, re.MULTILINE)
    assert told
    grades = [grade for judged in sample.qrels[split].values() for grade in judged.values()]
    counts = [len(sample.qrels[split]), len(grades), grades.count(2), grades.count(1)]
    assert [int(cell) for cell in told[1].split("|")] == counts
    long = sum(len(text.split()) > 400 for _, text in pages.values())
    assert f"There are {len(pages)} pages: {len(pages) - long} of 40 to 120 words, and {long} of" in readme
