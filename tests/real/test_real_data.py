"""Public data sets: every row is read, every answer of SQuAD stands where it should, and scores are by definition.

The second implementation of SQuAD's scores is written from the definition, one character and one token at a time.
"""

from __future__ import annotations

import string
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from datasets import Dataset

from bertkit.data import check, label_names, load, read_rows
from bertkit.data.squad import check_answers
from bertkit.evaluation.squad_metrics import GradedAnswers
from bertkit.sections import DataSpec
from bertkit.tasks.text_classification import TextClassification

SPEC = DataSpec.model_validate({"source": "unused"})


def rows_of(real_data, name):
    path = real_data / name
    if not path.is_file():
        pytest.skip(f"no {path} beside the checkout")
    return [row for _, row in read_rows(path, SPEC)]


@pytest.mark.parametrize(
    ("name", "questions", "unanswerable", "articles", "contexts", "answers"),
    [
        ("squad_v1/dev.json", 10570, 0, 48, 2067, 34726),
        ("squad_v1/train.json", 78161, 0, 442, 18819, 78161),
        ("squad_v2/dev.json", 6078, 3168, 16, 646, 10052),
        ("squad_v2/train.json", 5556, 2777, 19, 558, 8989),
    ],
)
def test_every_question_is_read_and_every_answer_stands_there(
    real_data, name, questions, unanswerable, articles, contexts, answers
):
    rows = rows_of(real_data, name)
    assert len(rows) == questions
    assert sum(not row["answers"]["text"] for row in rows) == unanswerable
    assert len({row["title"] for row in rows}) == articles
    assert len({id(row["context"]) for row in rows}) == contexts  # one string for all questions of a paragraph
    located = [check_answers(row["context"], row["answers"]) for row in rows]
    assert sum(len(found["text"]) for found, _ in located) == answers
    assert not any(moved for _, moved in located)


def naive_tokens(text):
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    runs = ["".join(run) for _, run in groupby(kept, str.isalnum)]
    return "".join(" " if run in ("a", "an", "the") else run for run in runs).split()


def naive_scores(predicted, gold):
    golds = [text for text in gold if naive_tokens(text)] or [""]
    exact, best = 0.0, 0.0
    for text in golds:
        given, wanted = naive_tokens(predicted), naive_tokens(text)
        exact = max(exact, float(" ".join(given) == " ".join(wanted)))
        if not given or not wanted:
            best = max(best, float(given == wanted))
            continue
        left, shared = list(wanted), 0
        for token in given:
            if token in left:
                left.remove(token)
                shared += 1
        if shared:
            precision, recall = shared / len(given), shared / len(wanted)
            best = max(best, 2 * precision * recall / (precision + recall))
    return exact, best


def first_words(row):
    return " ".join(row["context"].split()[:5])


def mixed(row):
    """The last gold answer, with noise, to about half of the questions; to the rest the first words, or none."""
    texts = row["answers"]["text"]
    if sum(map(ord, row["question"])) % 2:
        return f"The {texts[-1].upper()}." if texts else ""
    return first_words(row) if len(row["question"]) % 3 else ""


@pytest.mark.parametrize("name", ["squad_v1 first words", "squad_v1 mixed", "squad_v2 first words", "squad_v2 mixed"])
def test_scores_of_a_fixed_rule(real_data, name):
    folder, _, kind = name.partition(" ")
    rows, rule = rows_of(real_data, f"{folder}/dev.json"), first_words if kind == "first words" else mixed
    gold, predicted = [row["answers"]["text"] for row in rows], [rule(row) for row in rows]
    answers = [{"answer": text} for text in predicted]
    scores = GradedAnswers(answers, Dataset.from_list([{"answers": row["answers"]} for row in rows]), False, {}).scores
    naive = list(map(naive_scores, predicted, gold))
    groups = {"": naive}
    if not all(gold):
        groups["_has_answer"] = [each for each, texts in zip(naive, gold, strict=True) if texts]
        groups["_no_answer"] = [each for each, texts in zip(naive, gold, strict=True) if not texts]
    for suffix, pairs in groups.items():
        assert scores[f"exact_match{suffix}"] == pytest.approx(fmean([exact for exact, _ in pairs]), abs=1e-9)
        assert scores[f"f1{suffix}"] == pytest.approx(fmean([f1 for _, f1 in pairs]), abs=1e-9)


# --- classification: files as their authors wrote them, through the `data:` section of a recipe

COLA = {"header": ["source", "label", "star", "text"]}
STSB = {
    "format": "tsv",
    "header": ["genre", "file", "year", "id", "score", "sentence1", "sentence2"],
    "extra_fields": "ignore",
    "columns": {"text_a": "sentence1", "text_b": "sentence2", "score": "score"},
}
RTE = {"columns": {"text_a": "sentence1", "text_b": "sentence2"}}


def load_real(folder: Path, train: str, dev: str, **settings: Any) -> Any:
    source = {"train": str(folder / train), "validation": str(folder / dev)}
    return load(DataSpec.model_validate({"source": source, **settings}), TextClassification.schema)


@pytest.mark.parametrize(
    ("train", "dev", "settings", "rows", "target", "labels"),
    [
        ("sst2/train.tsv", "sst2/dev.tsv", {"columns": {"text": "sentence"}}, [67349, 872], "label", ["0", "1"]),
        ("cola/train.tsv", "cola/dev.tsv", COLA, [8551, 1043], "label", ["0", "1"]),
        ("rte/train.tsv", "rte/dev.tsv", RTE, [2490, 277], "label", ["entailment", "not_entailment"]),
        ("stsb/sts-train.csv", "stsb/sts-dev.csv", STSB, [5749, 1500], "score", None),
    ],
    ids=["sst2", "cola", "rte", "stsb"],
)
def test_every_row_is_read(train, dev, settings, rows, target, labels, real_data):
    data = load_real(real_data, train, dev, **settings)
    assert [*data.rows] == ["train", "validation"]
    assert [len(part) for part in data.rows.values()] == rows
    assert data.target == target
    values = list(data.rows["train"][target])
    if labels is None:
        assert min(values) == 0.0
        assert max(values) == 5.0
    else:
        assert label_names(values) == labels
    assert not [finding for finding in check(data) if finding.level == "fail"]


def test_a_folder_of_tsv_files_is_a_source(real_data):
    spec = DataSpec.model_validate({"source": str(real_data / "sst2"), "columns": {"text": "sentence"}, "limit": 50})
    data = load(spec, TextClassification.schema)
    assert {split: len(rows) for split, rows in data.rows.items()} == {"train": 50, "validation": 50}
    assert data.origins["train"][0].startswith(str(real_data / "sst2" / "train.tsv:"))


def test_quotes_and_ends_are_kept_as_they_stand(real_data):
    data = load_real(real_data, "cola/train.tsv", "cola/dev.tsv", **COLA)
    assert data.rows["train"][0]["text"] == "Our friends won't buy this analysis, let alone the next one we propose."
    assert data.origins["validation"][1042].endswith("dev.tsv:1043")
