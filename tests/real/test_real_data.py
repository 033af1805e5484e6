"""Public data sets: every row is read, every answer of SQuAD stands where it should, and scores are by
definition.

The second implementation of the scores of SQuAD, MLQA and CMRC 2018 is written from the definitions, one
character and one token at a time.
"""

from __future__ import annotations

import string
import unicodedata
from functools import partial
from itertools import groupby
from statistics import fmean

import numpy as np
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
    # one string for all questions of a paragraph
    assert len({id(row["context"]) for row in rows}) == contexts
    located = [check_answers(row["context"], row["answers"]) for row in rows]
    assert sum(len(found["text"]) for found, _ in located) == answers
    assert not any(moved for _, moved in located)


def naive_tokens(text):
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    runs = ["".join(run) for _, run in groupby(kept, str.isalnum)]
    return "".join(" " if run in ("a", "an", "the") else run for run in runs).split()


def mlqa_tokens(text, alone=lambda character: False):
    """alone: whether a character is a token by itself, with the combining marks that follow it."""
    kept = (
        each
        for each in text.lower()
        if each not in string.punctuation and unicodedata.category(each)[0] != "P"
    )
    tokens = [""]
    single = False
    for character in "".join(kept).replace("ال", " "):
        single = alone(character) or (single and unicodedata.category(character)[0] == "M")
        if alone(character):
            tokens += [character, ""]
        elif single:
            tokens[-2] += character
        elif character.isspace():
            tokens.append("")
        else:
            tokens[-1] += character
    return [token for token in tokens if token]


def ideograph(character):
    return "\u4e00" <= character <= "\u9fa5"


def thai(character):
    return "\u0e00" <= character <= "\u0e7f" and character.isalnum()


def naive_scores(predicted, gold, tokens=naive_tokens):
    golds = [text for text in gold if tokens(text)] or [""]
    exact = 0.0
    best = 0.0
    for text in golds:
        given = tokens(predicted)
        wanted = tokens(text)
        exact = max(exact, float(" ".join(given) == " ".join(wanted)))
        if not given or not wanted:
            best = max(best, float(given == wanted))
            continue
        left = list(wanted)
        shared = 0
        for token in given:
            if token in left:
                left.remove(token)
                shared += 1
        if shared:
            precision = shared / len(given)
            recall = shared / len(wanted)
            best = max(best, 2 * precision * recall / (precision + recall))
    return exact, best


def first_words(row):
    return " ".join(row["context"].split()[:5])


def mixed(row):
    """The last gold answer, with noise, to about half of the questions; to the rest the first words, or
    none.
    """
    texts = row["answers"]["text"]
    if sum(map(ord, row["question"])) % 2:
        return f"The {texts[-1].upper()}." if texts else ""
    return first_words(row) if len(row["question"]) % 3 else ""


def shifted(row):
    """The first gold answer with a character more on both sides, or without its middle one and with a full
    stop.
    """
    text = row["answers"]["text"][0]
    start = row["answers"]["answer_start"][0]
    if len(row["question"]) % 2:
        return f"{text[: len(text) // 2]}{text[len(text) // 2 + 1 :]}。"
    return row["context"][max(start - 1, 0) : start + len(text) + 1]


def graded_by(rows, predicted):
    """Scores and details of these answers."""
    columns = [{name: row[name] for name in ("context", "answers")} for row in rows]
    answers = [{"answer": text, "score": 0.5, "n_best": []} for text in predicted]
    return GradedAnswers(answers, Dataset.from_list(columns), False, {})


@pytest.mark.parametrize(
    ("name", "rule", "tokens"),
    [
        ("squad_v1/dev.json", "SQuAD", naive_tokens),
        ("squad_v2/dev.json", "SQuAD", naive_tokens),
        ("scripts/xquad.zh.json", "MLQA", partial(mlqa_tokens, alone=ideograph)),
        ("scripts/xquad.th.json", "MLQA", partial(mlqa_tokens, alone=thai)),
        ("scripts/xquad.ar.json", "MLQA", mlqa_tokens),
    ],
)
@pytest.mark.parametrize("answer", [first_words, mixed, shifted])
def test_scores_of_fixed_answers(real_data, name, rule, tokens, answer):
    rows = rows_of(real_data, name)
    if answer is shifted:
        rows = [row for row in rows if row["answers"]["text"]]
    gold = [row["answers"]["text"] for row in rows]
    predicted = list(map(answer, rows))
    graded = graded_by(rows, predicted)
    naive = [naive_scores(*pair, tokens) for pair in zip(predicted, gold, strict=True)]
    np.testing.assert_allclose(graded.values.T, naive, atol=1e-12)
    assert graded.details()["rule"] == rule
    groups = {"": naive}
    if not all(gold):
        groups["_has_answer"] = [each for each, texts in zip(naive, gold, strict=True) if texts]
        groups["_no_answer"] = [each for each, texts in zip(naive, gold, strict=True) if not texts]
    for suffix, pairs in groups.items():
        assert graded.scores[f"exact_match{suffix}"] == pytest.approx(
            fmean([exact for exact, _ in pairs]), abs=1e-9
        )
        assert graded.scores[f"f1{suffix}"] == pytest.approx(fmean([f1 for _, f1 in pairs]), abs=1e-9)


# --- classification: files as their authors wrote them, through the `data:` section of a recipe

COLA = {"header": ["source", "label", "star", "text"]}
STSB = {
    "format": "tsv",
    "header": ["genre", "file", "year", "id", "score", "sentence1", "sentence2"],
    "extra_fields": "ignore",
    "columns": {"text_a": "sentence1", "text_b": "sentence2", "score": "score"},
}
RTE = {"columns": {"text_a": "sentence1", "text_b": "sentence2"}}


def load_real(folder, train, dev, **settings):
    source = {"train": str(folder / train), "validation": str(folder / dev)}
    return load(DataSpec.model_validate({"source": source, **settings}), TextClassification.schema)


@pytest.mark.parametrize(
    ("train", "dev", "settings", "rows", "target", "labels"),
    [
        (
            "sst2/train.tsv",
            "sst2/dev.tsv",
            {"columns": {"text": "sentence"}},
            [67349, 872],
            "label",
            ["0", "1"],
        ),
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
