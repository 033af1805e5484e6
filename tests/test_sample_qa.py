"""The packaged sample `qa`: its layout, its offsets, its counts, and that no text or question occurs twice."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from typing import Any

import pytest

from bertkit.data.readers import read_rows
from bertkit.data.sources import find_files, samples_folder
from bertkit.sections import DataSpec

FOLDER = samples_folder() / "qa"
SPLITS = ("train", "validation", "test")
LONG = 450  # words

each_split = pytest.mark.parametrize("split", SPLITS)


def articles(split: str) -> list[dict[str, Any]]:
    document = json.loads((FOLDER / f"{split}.json").read_text(encoding="utf-8"))
    assert document.keys() == {"version", "data"}
    assert document["version"] == "bertkit-sample-1"
    return list(document["data"])


def paragraphs(split: str) -> list[dict[str, Any]]:
    return [paragraph for article in articles(split) for paragraph in article["paragraphs"]]


def questions(split: str) -> list[dict[str, Any]]:
    return [question for paragraph in paragraphs(split) for question in paragraph["qas"]]


def answered(split: str) -> list[tuple[str, str, int]]:
    """Context, text and offset of each gold answer."""
    return [
        (paragraph["context"], answer["text"], answer["answer_start"])
        for paragraph in paragraphs(split)
        for question in paragraph["qas"]
        for answer in question["answers"]
    ]


def is_long(paragraph: dict[str, Any]) -> bool:
    return len(paragraph["context"].split()) > LONG


def plain(text: str) -> str:
    """As the official script of SQuAD compares answers: no case, no punctuation, no articles, single blanks."""
    return " ".join(word for word in re.sub(r"[^\w\s]", "", text.casefold()).split() if word not in ("a", "an", "the"))


def trigrams(text: str) -> set[tuple[str, ...]]:
    found = re.findall(r"\w+", text.casefold())
    return set(zip(found, found[1:], found[2:], strict=False))


def test_recipes_find_it() -> None:
    found = find_files(DataSpec(source="sample:qa"))
    assert found == {split: [FOLDER / f"{split}.json"] for split in SPLITS}


@each_split
def test_it_is_read_as_one_row_per_question(split: str) -> None:
    rows = [row for _, row in read_rows(FOLDER / f"{split}.json", DataSpec(source="sample:qa"))]
    assert [row["id"] for row in rows] == [question["id"] for question in questions(split)]


@each_split
def test_the_layout_is_that_of_squad_2(split: str) -> None:
    for article in articles(split):
        assert article.keys() == {"title", "paragraphs"}
        assert article["title"]
        assert article["paragraphs"]
    for paragraph in paragraphs(split):
        assert paragraph.keys() == {"context", "qas"}
        assert paragraph["context"] == paragraph["context"].strip()
        assert len(paragraph["qas"]) >= 3
    for question in questions(split):
        assert question.keys() == {"id", "question", "answers", "is_impossible"}
        assert re.fullmatch(rf"{split}-[a-z]+-\d+", question["id"])
        assert re.fullmatch(r"\S.*\S\?", question["question"])
        assert question["is_impossible"] is (question["answers"] == [])
        assert all(answer.keys() == {"text", "answer_start"} for answer in question["answers"])


@each_split
def test_answers_stand_where_they_are_said_to(split: str) -> None:
    for context, text, start in answered(split):
        assert text
        assert start >= 0
        assert context[start : start + len(text)] == text


@each_split
def test_answers_begin_and_end_with_whole_words(split: str) -> None:
    for context, text, start in answered(split):
        assert text == text.strip(" \n,;:")
        end = start + len(text)
        assert not re.search(r"\w\w", context[max(start - 1, 0) : start + 1]), (text, start)
        assert not re.search(r"\w\w", context[end - 1 : end + 1]), (text, start)


@each_split
def test_gold_answers_of_a_question_differ_to_the_official_script(split: str) -> None:
    for question in questions(split):
        golds = [plain(answer["text"]) for answer in question["answers"]]
        assert all(golds)
        assert len(set(golds)) == len(golds) <= 3, question


@pytest.mark.parametrize(
    ("split", "least_paragraphs", "least_questions", "least_several"),
    [("train", 46, 160, 0), ("validation", 10, 35, 20), ("test", 10, 35, 20)],
)
def test_there_is_enough_of_each(split: str, least_paragraphs: int, least_questions: int, least_several: int) -> None:
    asked = questions(split)
    assert len(paragraphs(split)) >= least_paragraphs
    assert len(asked) >= least_questions
    assert sum(len(question["answers"]) > 1 for question in asked) >= least_several
    assert 0.30 <= sum(question["is_impossible"] for question in asked) / len(asked) <= 0.37


@each_split
def test_each_text_has_questions_of_both_kinds(split: str) -> None:
    assert all({q["is_impossible"] for q in paragraph["qas"]} == {True, False} for paragraph in paragraphs(split))


@each_split
def test_texts_are_short_or_longer_than_one_window(split: str) -> None:
    assert all(is_long(p) or 50 <= len(p["context"].split()) <= 200 for p in paragraphs(split))
    long = [paragraph for paragraph in paragraphs(split) if is_long(paragraph)]
    assert len(long) >= {"train": 4, "validation": 2, "test": 2}[split]
    for paragraph in long:
        assert len(re.findall(r"\w+|[^\w\s]", paragraph["context"])) > 512  # BERT makes at least one piece of each
        starts = [answer["answer_start"] for question in paragraph["qas"] for answer in question["answers"]]
        assert max(starts) > 0.8 * len(paragraph["context"]), paragraph["context"][:60]
        assert min(starts) < 0.3 * len(paragraph["context"]), paragraph["context"][:60]


def test_no_id_and_no_question_occurs_twice() -> None:
    asked = [question for split in SPLITS for question in questions(split)]
    ids = Counter(question["id"] for question in asked)
    texts = Counter(plain(question["question"]) for question in asked)
    assert [key for counts in (ids, texts) for key, count in counts.items() if count > 1] == []


def test_no_two_texts_are_nearly_the_same() -> None:
    titles = Counter(article["title"] for split in SPLITS for article in articles(split))
    assert max(titles.values()) == 1
    texts = [(p["context"], trigrams(p["context"])) for split in SPLITS for p in paragraphs(split)]
    for (one, grams), (other, others) in combinations(texts, 2):
        assert len(grams & others) < 0.05 * len(grams | others), (one, other)


@each_split
def test_the_readme_counts_right(split: str) -> None:
    told = re.search(rf"^\| {split} \|(.*)\|$", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert told
    asked = questions(split)
    assert [int(cell) for cell in told[1].split("|")] == [
        len(paragraphs(split)),
        len(asked),
        sum(question["is_impossible"] for question in asked),
        sum(len(question["answers"]) > 1 for question in asked),
        sum(is_long(paragraph) for paragraph in paragraphs(split)),
    ]
