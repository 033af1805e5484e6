"""Decisions from the same probabilities: sets with a guaranteed coverage, thresholds, the best labels."""

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest
import small
from cases import BY_ID
from finished import finished
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from scipy.special import softmax
from small import raised, raises, read_csv, read_rows, refused, said, write_rows

import bertkit
from bertkit.errors import DataError, UserError
from bertkit.evaluation.calibration import ROUNDING
from bertkit.evaluation.conformal import MAX_PROBABILITIES, conformal, inclusion_threshold
from bertkit.evaluation.graded_labels import GradedLabels
from bertkit.explanations.explain import explain_rows
from bertkit.inference.decisions import decisions
from bertkit.inference.display import answer_line
from bertkit.report.mistakes import mistakes

CANNOT = [
    ("regression", {"threshold": 0.5}, "has no decision threshold"),
    ("qa", {"threshold": 0.5}, "has no decision threshold"),
    ("qa", {"top_k": 3}, "has no label scores"),
    ("single-label", {"top_k": 0}, "must be at least 1, got 0"),
    ("single-label", {"threshold": 1.5}, "must be between 0 and 1, got 1.5"),
    ("multi-label", {"threshold": -0.5}, "must be between 0 and 1, got -0.5"),
    ("single-label", {"threshold": 0.5, "coverage": 0.5}, "pass only one of them"),
    *(("single-label", {"coverage": wrong}, "between 0 and 1") for wrong in (0.0, 1.0, -0.1, 1.5, math.nan)),
    ("single-label", {"coverage": 0.95}, "requires 19 calibration rows, but the model has 8"),
    *((case, {"coverage": 0.5}, "does not support prediction sets")
      for case in "similarity-labels multi-label ner-crf qa".split()),
]  # fmt: skip
COVERAGES = "0.5 0.7 0.8 0.9 0.95 0.99".split()


@pytest.fixture(scope="module")
def predictor(learned):
    return bertkit.load(learned.folder, precision="fp32")


def texts():
    return [small.text(number, number % 2) for number in range(40, 60)] + ["five", "good bad", "not"]


@given(gold=st.lists(st.floats(0, 1), min_size=1, max_size=60), asked=st.sampled_from(COVERAGES))
def test_the_least_probability_is_the_gold_label_at_its_place(gold, asked):
    place = math.ceil((len(gold) + 1) * Fraction(asked))
    if place <= len(gold):
        at_place = sorted(gold, reverse=True)[place - 1]
        assert inclusion_threshold(conformal(gold), float(asked)) == pytest.approx(
            at_place * (1 - ROUNDING), rel=1e-12
        )
    else:
        raised(UserError, inclusion_threshold, conformal(gold), float(asked))


@pytest.mark.parametrize("rows", [MAX_PROBABILITIES, MAX_PROBABILITIES + 1, 1999, 2000, 123_457])
def test_what_is_kept_of_many_rows_covers_as_much_and_hardly_more(rows):
    gold = np.arange(rows, 0, -1.0)  # the place of p is rows - p + 1
    kept = conformal(default_rng(0).permutation(gold))
    assert len(kept["gold"]) == MAX_PROBABILITIES
    for asked in [*COVERAGES, "0.999", "0.3217"]:
        place = math.ceil((rows + 1) * Fraction(asked))
        found = rows - round(inclusion_threshold(kept, float(asked)) / (1 - ROUNDING)) + 1
        assert place <= found < place + rows / MAX_PROBABILITIES


def test_what_is_measured_is_counted():
    table = np.array([[0.6, 0.4], [0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    calibrated = conformal([0.9, 0.8, 0.7, 0.5, 0.3] * 2)  # 11 * 0.8 = 8.8, so the ninth; 0.95 requires 19
    gold = np.array([1, 1, 0, 0])
    given = table.argmax(axis=1)
    graded = GradedLabels("single-label", ["a", "b"], gold, given, table, 1.0, conformal=calibrated)
    found = graded.details()["coverage"]
    assert [each["coverage"] for each in found] == [0.8, 0.9]
    assert found[0] == {"coverage": 0.8, "measured": 0.5, "mean_size": 1.5, "single": 0.5}


def test_answers_have_sets(predictor, learned):
    known = predictor.task.options.conformal
    validation = read_rows(learned.folder / "predictions/validation.jsonl")
    gold = sorted((row["answer"]["scores"][row["label"]] for row in validation), reverse=True)
    assert known == {"rows": 10, "gold": pytest.approx(gold, abs=1e-3)}
    plain = predictor(texts())
    sizes = []
    for asked in (0.2, 0.5, 0.8, 0.9):
        answers = predictor.with_decisions(coverage=asked)(texts())
        least = inclusion_threshold(known, asked)
        for answer, before in zip(answers, plain, strict=True):
            ranked = sorted(before["scores"], key=lambda name, scores=before["scores"]: -scores[name])
            expected = [name for name in ranked if before["scores"][name] >= least]
            assert answer["set"] == expected
            assert answer["label"] == (expected[0] if len(expected) == 1 else None)
            assert {**answer, "label": before["label"]} == {**before, "set": expected}
        sizes.append([len(answer["set"]) for answer in answers])
    assert all(a <= b for less, more in pairwise(sizes) for a, b in zip(less, more, strict=True))
    assert sizes[0] != sizes[-1]
    assert predictor(texts()) == plain


def test_measured_coverage_is_in_results_report_and_card(learned, predictor):
    rows = read_rows(learned.folder / "predictions/test.jsonl")
    found = learned.results["splits"]["test"]["coverage"]
    assert [each["coverage"] for each in found] == [0.8, 0.9]  # ten rows are too few for more
    for each in found:
        least = inclusion_threshold(predictor.task.options.conformal, each["coverage"])
        sets = [[name for name, p in row["answer"]["scores"].items() if p >= least] for row in rows]
        assert each["measured"] == np.mean(
            [row["label"] in labels for row, labels in zip(rows, sets, strict=True)]
        )
        assert each["mean_size"] == np.mean([len(labels) for labels in sets])
        assert each["single"] == np.mean([len(labels) == 1 for labels in sets])
    card = (learned.model / "README.md").read_text()
    lines = [re.split("  +", line.strip()) for line in card.splitlines() if line.startswith(("0.8", "0.9"))]
    for each, line in zip(found, lines, strict=True):
        assert line == [
            f"{each['coverage']:g}",
            *(f"{each[name]:.4f}" for name in ("measured", "mean_size", "single")),
        ]
    assert "measured on test" in (learned.folder / "report.html").read_text()


def test_intervals_of_numbers(tiny_encoder, tmp_path):
    case = BY_ID["regression"]
    predictor = finished(case, tiny_encoder, tmp_path / "regression").load()
    rows = [dict(row) for row in case.rows()]
    residuals = sorted(
        abs(answer["score"] - row["score"]) for answer, row in zip(predictor(rows), rows, strict=True)
    )
    # of 8 residuals, the one at rank ceil(9 * 0.8)
    for answer in predictor.with_decisions(coverage=0.8)(rows):
        expected = [answer["score"] + side * residuals[7] for side in (-1, 1)]
        assert answer["interval"] == pytest.approx(expected, rel=1e-4)
    assert answer_line({"score": 0.5, "interval": [0.25, 0.75]}, "a text") == "0.500 [0.250, 0.750]  a text"
    found = bertkit.evaluate(tmp_path / "regression", case.rows())["coverage"]
    assert found == [
        {"coverage": 0.8, "measured": 1.0, "mean_width": pytest.approx(2 * residuals[7], rel=1e-4)}
    ]


def test_a_threshold_of_single_labels_and_the_best_scores(predictor, tiny_encoder, tmp_path):
    plain = predictor(texts())
    limit = sorted(answer["score"] for answer in plain)[len(plain) // 2]
    for answer, before in zip(predictor.with_decisions(threshold=limit)(texts()), plain, strict=True):
        assert answer == before | {"label": before["label"] if before["score"] >= limit else None}
    assert [answer["label"] for answer in predictor.with_decisions(threshold=0)(texts())] == [
        a["label"] for a in plain
    ]
    assert answer_line({"label": None, "score": 0.5}, "a text") == "unsure  0.500  a text"
    assert answer_line({"label": None, "score": 0.5, "set": ["a", "b"]}) == "unsure: a or b  0.500"
    assert answer_line({"label": None, "score": 0.5, "set": []}) == "unsure: empty set  0.500"
    predictor = finished(BY_ID["eleven-labels"], tiny_encoder, tmp_path / "run").load()
    (plain,), (best,) = predictor(["a dog"]), predictor.with_decisions(top_k=3)(["a dog"])
    ranked = sorted(plain["scores"].items(), key=lambda pair: -pair[1])
    assert list(best["scores"].items()) == ranked[:3]
    assert {**best, "scores": None} == {**plain, "scores": None}
    (sure,) = predictor.with_decisions(coverage=0.8, top_k=2)(["a dog"])
    assert len(sure["scores"]) == 2
    assert len(sure["set"]) > 2  # the set is taken from all scores
    assert predictor.with_decisions(top_k=99)(["a dog"])[0] == plain
    for one, other in permutations([{"coverage": 0.8}, {"top_k": 2}]):  # in two calls as in one
        assert predictor.with_decisions(**one).with_decisions(**other)(["a dog"]) == [sure]
    assert predictor.with_decisions(coverage=0.8, top_k=3).with_decisions(top_k=2)(["a dog"]) == [sure]
    kept = predictor.with_decisions(threshold=1.0).with_decisions(top_k=2)(["a dog"])
    assert (kept[0]["label"], len(kept[0]["scores"])) == (None, 2)
    for one, other in permutations([{"coverage": 0.8}, {"threshold": 0.5}]):
        raises(UserError, "pass only one of them", predictor.with_decisions(**one).with_decisions, **other)


@pytest.mark.parametrize("case", ["multi-label", "similarity-labels", "qa-windows-or-none"])
def test_thresholds_in_place_of_fitted_ones(case, tiny_encoder, tmp_path):
    predictor = finished(BY_ID[case], tiny_encoder, tmp_path / "run").load()
    rows = [dict(row) for row in BY_ID[case].rows()]
    none, every = ({"qa-windows-or-none": (-99.0, 99.0)}).get(case, (1.0, 0.0))
    low, high = (predictor.with_decisions(threshold=each)(rows) for each in (every, none))
    if case == "multi-label":
        assert [answer["labels"] for answer in low] == [["bad", "good", "long"]] * len(rows)
        assert [answer["labels"] for answer in high] == [[]] * len(rows)
    elif case == "similarity-labels":
        assert {answer["label"] for answer in low} == {"yes"}
        assert {answer["label"] for answer in high} == {"no"}
    else:
        assert all(answer["answer"] == answer["n_best"][0]["answer"] for answer in low)
        assert {answer["answer"] for answer in high} == {""}


def test_what_can_not_be_decided(tiny_encoder, tmp_path, subtests):
    cases = {case for case, *_ in CANNOT}
    predictors = {case: finished(BY_ID[case], tiny_encoder, tmp_path / case / "run").load() for case in cases}
    for case, asked, what in CANNOT:
        with subtests.test(f"{case}: {asked}"), pytest.raises(UserError, match=what):
            predictors[case].with_decisions(**asked)


def test_rows_without_a_label_are_scored_shown_and_explained(tiny_encoder, tmp_path):
    run = small.trained(tmp_path, tiny_encoder, "task.thresholds={good: 1.0}")
    rows = small.rows("single-label", 7, start=26)
    answers = run.load()([row["text"] for row in rows])
    none = [answer["label"] is None for answer in answers]
    assert [answer["scores"]["good"] > answer["scores"]["bad"] for answer in answers] == none
    assert any(none)
    scores = run.results["splits"]["test"]
    assert scores["answered"] == 1 - np.mean(none)
    wrong = [answer["label"] != row["label"] for answer, row in zip(answers, rows, strict=True)]
    assert scores["metrics"]["accuracy"] == np.mean([not each for each in wrong])
    found = mistakes(bertkit.Run(run.folder).facts)
    assert len(found.every) == sum(wrong)
    assert "(none)" in (run.folder / "report.html").read_text()
    explained = explain_rows(run.load(), [rows[none.index(True)]["text"]])
    assert "label good, most probable, not predicted" in json.dumps(explained)


def test_a_model_without_calibration_rows_gets_them(tiny_encoder, tmp_path):
    run = small.trained(tmp_path, tiny_encoder, splits=("train", "test"))
    assert "coverage" not in run.results["splits"]["test"]
    raises(UserError, r"no calibration rows\n.*Calibrate it", run.load().with_decisions, coverage=0.9)
    raises(DataError, r"no labelled validation rows\n.*as `data`", bertkit.calibrate, run.folder)
    found = bertkit.calibrate(run, small.rows("single-label", 30, start=40))
    assert set(found["options"]) == {"temperature", "thresholds", "cutoffs"}
    assert run.load().with_decisions(coverage=0.9).task.options.conformal["rows"] == 30


@pytest.mark.parametrize("noise", [-2e-6, -1e-7, 0.0, 1e-7, 2e-6])
def test_a_set_does_not_depend_on_the_batch_of_its_row(noise, tiny_encoder):
    task = BY_ID["single-label"].task(tiny_encoder)
    names = ("a", "b", "c")
    logits = default_rng(0).normal(size=(10, 3)).repeat(3, axis=0)
    rows = len(logits)
    gold = np.arange(len(logits)) % 3
    graded = GradedLabels("single-label", names, gold, gold, softmax(logits, axis=1), 1.0)
    known = graded.calibrated()["conformal"]
    for asked in (0.7, 0.8, 0.9):
        options = task.options.model_copy(update={"conformal": known})
        _, revise = decisions(replace(task, options=options), None, asked, None)
        sets = [
            [revise({"scores": dict(zip(names, row, strict=True))})["set"] for row in softmax(table, axis=1)]
            for table in (logits, logits + noise * np.array([1, -1, 1]))
        ]
        assert sets[0] == sets[1]
        covered = sum(names[right] in labels for right, labels in zip(gold, sets[1], strict=True))
        assert covered >= math.ceil((rows + 1) * Fraction(str(asked)))


def test_on_the_command_line(learned, capsys, tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", [{"text": text} for text in texts()])
    output = tmp_path / "answers.csv"
    said(capsys, "predict", learned.folder, "--input", file, "--output", output, "--coverage", 0.9)
    rows = read_csv(output)
    sets = [row["answer.set"].split("|") if row["answer.set"] else [] for row in rows]
    assert [row["answer.label"] for row in rows] == [labels[0] if len(labels) == 1 else "" for labels in sets]
    told = said(
        capsys, "predict", learned.folder, "--threshold", 1, "--top-k", 1, "--json", "the cat was good"
    )
    answer = json.loads(told)["answer"]
    assert answer["label"] is None
    assert len(answer["scores"]) == 1
    told = refused(capsys, "predict", learned.folder, "--coverage", 0.99, "a text")
    assert "0.99 requires 99 calibration rows, but the model has 10" in told
