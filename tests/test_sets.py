"""Sets with a coverage beyond single labels: by label, of types of words, of answers to questions, and intervals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small
from cases import CASES
from finished import finished
from hypothesis import given
from hypothesis import strategies as st

import bertkit
from bertkit.cli.main import main
from bertkit.errors import UserError
from bertkit.evaluation import squad
from bertkit.evaluation.conformal import (
    LEAST,
    Sample,
    by_label,
    conformal,
    least_by_label,
    least_probability,
    row_shares,
    sample,
)
from bertkit.evaluation.labels import GradedLabels
from bertkit.export.program import export
from bertkit.inference.decisions import with_word_scores
from bertkit.inference.display import answer_line
from bertkit.run import Run
from bertkit.tasks.type_sets import calibrate_types, coverage_of_types
from bertkit.training.train import train

BY_ID = {case.id: case for case in CASES}


# --- by label, and several outcomes of a row


@given(
    outcomes=st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0.1, 0.2, 0.5, 0.7, 0.9])), min_size=1),
    asked=st.sampled_from(["0.5", "0.8", "0.9"]),
)
def test_rows_count_once_whatever_the_number_of_their_outcomes(outcomes: list[tuple[int, float]], asked: str) -> None:
    rows, gold = zip(*outcomes, strict=True)
    distinct = sorted(set(rows))
    rank = math.ceil((len(distinct) + 1) * Fraction(asked))
    known = sample(gold, rows)
    assert known["rows"] == len(distinct)
    if rank > len(distinct):
        return
    # The highest threshold at which the covered shares of the rows sum to the rank.
    own = {row: [p for r, p in outcomes if r == row] for row in distinct}
    covered = {t: sum(Fraction(sum(p >= t for p in ps), len(ps)) for ps in own.values()) for t in set(gold)}
    assert least_probability(known, float(asked)) == max(t for t, share in covered.items() if share >= rank)


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_labels_and_shares_of_rows_are_covered_as_guaranteed(coverage: float) -> None:
    rng = np.random.default_rng(5)
    shares: dict[str, list[float]] = {"common": [], "rare": []}
    for _ in range(400):
        # Rows with one to five outcomes, which depend on each other; the rare label has low probabilities.
        sizes = rng.integers(1, 6, size=200)
        rows, hard = np.repeat(np.arange(200), sizes), np.repeat(rng.normal(size=200), sizes)
        labels = (np.repeat(rng.random(200), sizes) < 0.3).astype(int)
        gold = 1 / (1 + np.exp(hard + rng.normal(size=len(rows)) * 0.5 + 2 * labels))
        old = rows < 100
        known = by_label(gold[old], labels[old], ["common", "rare"], rows[old])
        limits = least_by_label(known, coverage)
        for index, name in enumerate(shares):
            new = ~old & (labels == index)
            shares[name].append(float(row_shares(gold[new] >= limits[name], rows[new]).mean()))
    for name, found in shares.items():
        mean, error = np.mean(found), np.std(found) / np.sqrt(len(found))
        assert coverage - 2 * error <= mean <= coverage + 0.06 + 2 * error, name


def test_what_is_kept_by_label() -> None:
    gold, labels = np.arange(3000) / 3000, np.arange(3000) % 2
    known = by_label(gold, labels, ["even", "odd", "none"])
    assert {name: (each["rows"], len(each["gold"])) for name, each in known.items()} == {
        "even": (1500, 333),
        "odd": (1500, 333),
        "none": (0, 0),
    }
    many = by_label(gold, labels, [f"label {number}" for number in range(50)])
    assert len(many["label 1"]["gold"]) == LEAST
    with pytest.raises(UserError, match=r"0\.9 requires 9 .* of each label, but the model has 0 of none"):
        least_by_label(known, 0.9)


def test_class_conditional_sets(tiny_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(small.recipe(tmp_path, tiny_encoder, *small.LEARN), tmp_path / "run")
    predictor, texts = run.load(), [row["text"] for row in small.rows("single-label", 30, start=30)]
    known = predictor.task.options.conformal["labels"]
    limits = {name: least_probability(each, 0.7) for name, each in known.items()}
    assert limits["good"] != limits["bad"]
    for answer, plain in zip(
        predictor.with_decisions(coverage=0.7, class_conditional=True)(texts), predictor(texts), strict=True
    ):
        expected = {name for name, probability in plain["scores"].items() if probability >= limits[name]}
        assert set(answer["set"]) == expected
        assert answer["label"] == (answer["set"][0] if len(expected) == 1 else None)
        if len(expected) == 1:
            assert answer["score"] == answer["scores"][answer["label"]]
    folder = str(run.folder)
    assert main(["predict", folder, "--coverage", "0.7", "--class-conditional", "--json", texts[0]]) == 0
    assert "set" in json.loads(capsys.readouterr().out)["answer"]
    assert main(["predict", folder, "--coverage", "0.9", "--class-conditional", "a"]) == 2
    assert "requires 9 calibration rows of each label, but the model has 5 of " in capsys.readouterr().err
    assert main(["predict", folder, "--class-conditional", "a"]) == 2
    assert "requires a coverage" in capsys.readouterr().err
    config = json.loads((run.model / "config.json").read_text())
    del config["bertkit"]["task"]["conformal"]["labels"]  # as earlier versions wrote it
    (run.model / "config.json").write_text(json.dumps(config))
    assert bertkit.load(folder).with_decisions(coverage=0.7)(texts)[0]["set"]
    with pytest.raises(UserError, match=r"no calibration rows of each label\n.*bertkit calibrate"):
        bertkit.load(folder).with_decisions(coverage=0.7, class_conditional=True)


# --- other answers of text classification, and pairs


def test_multi_label_by_hand() -> None:
    table = np.array([[0.9, 0.2], [0.6, 0.4], [0.3, 0.1], [0.8, 0.45]] * 3)
    truth = np.array([[1, 0], [0, 1], [0, 0], [1, 0]] * 3)
    graded = GradedLabels("multi-label", ["a", "b"], truth, truth, table, 1.0, 0.5).after_fit()
    assert graded.conformal is not None
    limits = least_by_label(graded.conformal["labels"], 0.8)  # of 12 rows, rank ceil(13 * 0.8) = 11
    assert limits == {"a": 0.4, "b": 0.4}  # descending: a 0.9 0.8 0.7 0.4, b 0.9 0.8 0.55 0.4, three times each
    found = graded.details()["coverage"]
    assert [each["coverage"] for each in found] == [0.8, 0.9]
    assert found[0]["labels"] == {"a": 1.0, "b": 1.0}
    assert found[0]["measured"] == 1.0
    assert found[0]["mean_size"] == 1 + 3 / 8  # both yes and no: a of the second row, b of the second and the fourth


def test_unsure_labels_and_intervals(tiny_encoder: Path, tmp_path: Path) -> None:
    case = BY_ID["multi-label"]
    predictor = finished(case, tiny_encoder, tmp_path / "multi-label").load()
    rows = [dict(row) for row in case.rows()]
    known = predictor.task.options.conformal
    for answer, plain in zip(predictor.with_decisions(coverage=0.5)(rows), predictor(rows), strict=True):
        for name, probability in plain["scores"].items():
            least = least_probability(known["labels"][name], 0.5)
            sure = (probability >= least) != (1 - probability >= least)
            assert (name in answer["unsure"]) == (not sure)
            assert (name in answer["labels"]) == (sure and probability >= least)
    assert answer_line({"labels": ["a"], "unsure": ["b", "c"]}) == "a (unsure: b, c)"
    case = BY_ID["regression"]
    predictor = finished(case, tiny_encoder, tmp_path / "regression").load()
    rows = [dict(row) for row in case.rows()]
    residuals = sorted(abs(answer["score"] - row["score"]) for answer, row in zip(predictor(rows), rows, strict=True))
    answers = predictor.with_decisions(coverage=0.8)(rows)
    for answer in answers:  # of 8 residuals, the one at rank ceil(9 * 0.8)
        assert answer["interval"] == pytest.approx([answer["score"] + side * residuals[7] for side in (-1, 1)])
    assert answer_line({"score": 0.5, "interval": [0.25, 0.75]}, "a text") == "0.500 [0.250, 0.750]  a text"
    found = bertkit.evaluate(tmp_path / "regression", case.rows())["coverage"]
    assert found == [{"coverage": 0.8, "measured": 1.0, "mean_width": pytest.approx(2 * residuals[7])}]


def test_pairs_of_a_classifier(tiny_encoder: Path, tmp_path: Path) -> None:
    case = BY_ID["similarity-nli"]
    run = finished(case, tiny_encoder, tmp_path / "run")
    predictor, rows = run.load(), [dict(row) for row in case.rows()]
    gold = sorted((answer["scores"][row["label"]] for answer, row in zip(predictor(rows), rows, strict=True)))
    decided = predictor.with_decisions(coverage=0.8)
    for answer in decided(rows):
        assert set(answer["set"]) == {name for name, p in answer["scores"].items() if p >= gold[0]}
    assert decided("a text") == predictor("a text")  # its vector
    assert run.results["splits"]["validation"]["coverage"][0]["measured"] == 1.0


# --- types of words


def words(rows: list[list[dict[str, float]]], tags: list[list[str]]) -> list[dict[str, Any]]:
    """Answers of so many words, with these scores."""
    return [
        {
            "words": [
                {"word": str(n), "tag": tag, "start": 2 * n, "end": 2 * n + 1, "score": scores[tag[2:] or "O"]}
                | {"scores": scores}
                for n, (scores, tag) in enumerate(zip(*row, strict=True))
            ],
            "entities": [],
        }
        for row in zip(rows, tags, strict=True)
    ]


def test_types_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    options = SimpleNamespace(labels=["PER"], scheme="BIO", tags=["O", "B-PER", "I-PER"])

    def word(person: float) -> dict[str, float]:
        return {"O": 1 - person, "PER": person}

    # Each sentence has a person of two words, whose less probable one counts, then a person of one, and two words O.
    scores = [[word(0.9), word(p / 100), word(0.3), word(0.2), word(p / 200)] for p in range(10, 20)]
    gold = [["B-PER", "I-PER", "B-PER", "O", "O"]] * 10
    tables = [np.array([[each["O"], each["PER"]] for each in sentence]) for sentence in scores]
    known = calibrate_types(tables, gold, options)
    # 0.3 is covered in all sentences at half a sentence each: 5; each 0.19, 0.18, … adds half a sentence.
    assert known["labels"]["PER"] == {
        "rows": 10,
        "gold": pytest.approx([0.3, 0.3, 0.3, 0.3, 0.3, 0.18, 0.16, 0.14, 0.12, 0.10]),
    }
    assert known["labels"]["O"]["rows"] == 10
    options.conformal = known
    (at_80, at_90) = coverage_of_types(words(scores, gold), gold, options)
    assert (at_80["coverage"], at_90["coverage"]) == (0.8, 0.9)
    unread = words([[{"O": 1.0}]], [["O"]])  # a word without a token
    assert list(coverage_of_types(unread, [["O"]], options)) == []
    # Rank ceil(11 * 0.8) = 9: persons from 0.12, so all of 0.3 and 8 of 10 others.
    assert at_80["labels"]["PER"] == pytest.approx((10 + 8) / 20)
    least = least_by_label(known["labels"], 0.8)
    sizes = [sum(p >= least[name] for name, p in each.items()) for sentence in scores for each in sentence]
    assert at_80["mean_size"] == pytest.approx(np.mean(sizes))
    monkeypatch.setattr("bertkit.data.table.AT_A_TIME", 3)
    assert list(coverage_of_types(words(scores, gold), gold, options)) == [at_80, at_90]


@pytest.mark.parametrize("case", ["ner-softmax", "ner-crf-windows-bioes", "words-crf-windows"])
def test_sets_of_types(case: str, tiny_encoder: Path, tmp_path: Path) -> None:
    run, chosen = finished(BY_ID[case], tiny_encoder, tmp_path / "run"), BY_ID[case]
    predictor, rows = run.load(), [dict(row) for row in chosen.rows()]
    known, plain = predictor.task.options.conformal["labels"], predictor(rows)
    types = [tag.partition("-")[2] or tag for tags in chosen.columns["tags"] for tag in tags]
    if case.startswith("words"):
        types = [tag for tags in chosen.columns["tags"] for tag in tags]
    assert set(known) == set(types)
    scored = replace(predictor, task=with_word_scores(predictor.task))(rows)
    decided = predictor.with_decisions(coverage=0.4)(rows)
    limits, some = least_by_label(known, 0.4), set()
    for answer, with_scores, before in zip(decided, scored, plain, strict=True):
        for word, own, old in zip(answer["words"], with_scores["words"], before["words"], strict=True):
            assert math.fsum(own["scores"].values()) == pytest.approx(1)
            expected = [name for name, p in own["scores"].items() if p >= limits[name]]
            assert sorted(word["set"]) == sorted(expected)
            decoded = old["tag"] if case.startswith("words") else old["tag"].partition("-")[2] or "O"
            assert word == old | {"set": word["set"], "unsure": expected != [decoded]}
            some.add(len(expected))
        for entity, old in zip(answer.get("entities", []), before.get("entities", []), strict=True):
            inside = [w["set"] for w in answer["words"] if entity["start"] <= w["start"] < entity["end"]]
            assert set(entity["set"]) == set.intersection(*map(set, inside))
            assert entity == old | {"set": entity["set"], "unsure": entity["set"] != [entity["label"]]}
    assert len(some) > 1
    assert plain == predictor(rows)
    predictions = small.read_rows(run.folder / "predictions" / "validation.jsonl")
    assert "scores" not in predictions[0]["answer"]["words"][0]


def test_an_exported_model_has_the_same_probabilities_of_types(tiny_encoder: Path, tmp_path: Path) -> None:
    run = finished(BY_ID["ner-crf"], tiny_encoder, tmp_path / "run")
    rows = [dict(row) for row in BY_ID["ner-crf"].rows()]
    export(run.model, tmp_path / "onnx", data=small.write_rows(tmp_path / "rows.jsonl", rows))
    predictors = [bertkit.load(folder) for folder in (run.model, tmp_path / "onnx")]
    ours, theirs = (replace(each, task=with_word_scores(each.task))(rows) for each in predictors)
    for one, other in zip(ours, theirs, strict=True):
        for word, exported in zip(one["words"], other["words"], strict=True):
            assert word["scores"] == pytest.approx(exported["scores"], abs=1e-4)
    assert predictors[1].with_decisions(coverage=0.4)(rows)[0]["words"][0]["set"]


def test_a_line_of_unsure_types() -> None:
    word = {"word": "Ann", "tag": "O", "score": 0.5, "set": ["O", "PER"], "unsure": True}
    entity = {"text": "Bob", "label": "PER", "score": 0.75, "set": ["PER"], "unsure": False}
    other = word | {"word": "met", "set": []}
    line = answer_line({"words": [word, other], "entities": [entity]})
    assert line == "PER Bob (0.750), (unsure: O or PER) Ann (0.500)"
    assert answer_line({"words": [word | {"tag": "NOUN"}]}) == "Ann/(unsure: O or PER)"


# --- questions


def asked(*candidates: tuple[str, float], null: float = 0.0) -> dict[str, Any]:
    n_best = [{"answer": text, "start": 1, "end": 2, "score": score} for text, score in candidates]
    return {"answer": "x", "start": 0, "end": 1, "score": 0.9, "n_best": n_best, "null_score": null}


def test_candidates_by_hand() -> None:
    answer = asked(("a cat", 0.4), ("the dog", 0.3), ("Cat!", 0.2), null=0.1)
    assert [(each["answer"], pytest.approx(each["score"])) for each in squad.candidates(answer)] == [
        ("a cat", 0.6),
        ("the dog", 0.3),
        ("", 0.1),
    ]
    gold = [["cat"], ["dog", "cat"], [], ["bird"]]
    assert squad.gold_probabilities([answer] * 4, gold).tolist() == pytest.approx([0.6, 0.6, 0.1, 0.0])
    assert [each["answer"] for each in squad.candidates(asked(("a cat", 1.0)))] == ["a cat"]  # there is always one


def test_sets_of_answers(tiny_encoder: Path, tmp_path: Path) -> None:
    case = BY_ID["qa-windows-or-none"]
    run = finished(case, tiny_encoder, tmp_path / "run")
    predictor, rows = run.load(), [dict(row) for row in case.rows()]
    plain = predictor(rows)
    gold = squad.gold_probabilities(plain, [row["answers"]["text"] for row in rows])
    assert predictor.task.options.conformal["gold"] == pytest.approx(sorted(gold, reverse=True))
    best = [squad.candidates(each)[0]["score"] for each in plain]
    least = sorted(best)[len(best) // 2]  # half of the sets are empty
    restate_conformal(run, conformal([least] * 10))
    predictor, sizes = run.load(), set()
    for answer, before in zip(predictor.with_decisions(coverage=0.8)(rows), plain, strict=True):
        found = [each for each in squad.candidates(before) if each["score"] >= least]
        assert answer["set"] == [each["answer"] for each in found]
        one = found[0] if len(found) == 1 else {"answer": None, "start": None, "end": None}
        assert answer == before | one | {"set": answer["set"]}
        sizes.add(len(found))
    assert {0, 1} <= sizes
    assert answer_line({"answer": None, "n_best": [], "set": ["a", ""], "score": 0.5}) == (
        "unsure: a or no answer  0.500"
    )


def restate_conformal(run: Run, known: Any) -> None:
    config = json.loads((run.model / "config.json").read_text())
    config["bertkit"]["task"]["conformal"] = known
    (run.model / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("right", "reached"), [(15, 0.714), (7, 0.333)])
def test_how_often_the_gold_answer_is_a_candidate(right: int, reached: float) -> None:
    known: Sample = sample([0.5] * right + [0.0] * (20 - right))
    assert squad.least_probability(known, reached) == 0.5
    with pytest.raises(UserError, match=rf"too rarely for {reached + 0.05:g}\n.* is {reached:g};"):
        squad.least_probability(known, reached + 0.05)


# --- what is not supported


@pytest.mark.parametrize(
    ("case", "given", "what"),
    [
        ("similarity-labels", {"coverage": 0.5}, "does not support prediction sets"),
        ("retrieval", {"coverage": 0.5}, "does not support prediction sets"),
        ("regression", {"coverage": 0.5, "class_conditional": True}, "does not choose between labels"),
        ("multi-label", {"coverage": 0.95}, "requires 19 .* of each label, but the model has 8 of bad, 8 of good"),
        (
            "ner-crf",
            {"coverage": 0.9},
            "requires 9 .* of each label, but the model has 4 of ANIMAL, 8 of O, 6 of SENSE",
        ),
    ],
)
def test_what_has_no_sets(case: str, given: dict[str, Any], what: str, tiny_encoder: Path, tmp_path: Path) -> None:
    predictor = finished(BY_ID[case], tiny_encoder, tmp_path / "run").load()
    with pytest.raises(UserError, match=what):
        predictor.with_decisions(**given)
