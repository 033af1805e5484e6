"""Scores are exactly scikit-learn's and scipy's; what is undefined is None; HF metrics say the same."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk
from sklearn.utils.class_weight import compute_class_weight

from bertkit.errors import UserError
from bertkit.evaluation import intervals, metrics
from bertkit.evaluation.graded import compute_user_metric
from bertkit.evaluation.graded_labels import GradedLabels
from bertkit.tasks.class_labels import assigned_labels, settle_weights

LABELS = ["a", "b", "c"]


def softmax_rows(rng: np.random.Generator, rows: int, labels: int) -> np.ndarray:
    scores = np.exp(2 * rng.normal(size=(rows, labels)))
    return scores / scores.sum(axis=1, keepdims=True)


def json_ready(scores: intervals.Scores) -> bool:
    json.dumps(scores, allow_nan=False)
    return all(value is None or type(value) is float for value in scores.values())


@pytest.mark.parametrize("count", [2, 3, 5])
def test_single_label_is_scikit_learns(count):
    rng = np.random.default_rng(count)
    probabilities, truth = softmax_rows(rng, 200, count), rng.integers(0, count, 200)
    labels, chosen = [f"l{i}" for i in range(count)], probabilities.argmax(axis=1)
    scores = metrics.scored("single-label", truth, probabilities, labels).scores
    assert list(scores) == metrics.metric_names("single-label", labels)
    assert json_ready(scores)
    area = sk.roc_auc_score(truth, probabilities[:, 1] if count == 2 else probabilities, multi_class="ovr")
    expected = {
        "accuracy": sk.accuracy_score(truth, chosen),
        "f1_macro": sk.f1_score(truth, chosen, average="macro"),
        "f1_micro": sk.f1_score(truth, chosen, average="micro"),
        "f1_weighted": sk.f1_score(truth, chosen, average="weighted"),
        "precision_macro": sk.precision_score(truth, chosen, average="macro"),
        "recall_macro": sk.recall_score(truth, chosen, average="macro"),
        "matthews_correlation": sk.matthews_corrcoef(truth, chosen),
    }
    assert {name: scores[name] for name in expected} == expected
    assert scores["roc_auc"] == pytest.approx(area, abs=1e-12)
    assert scores["neg_log_loss"] == pytest.approx(-sk.log_loss(truth, probabilities), abs=1e-12)
    report = sk.classification_report(truth, chosen, target_names=labels, output_dict=True)
    for label in labels:
        for ours, theirs in [("f1", "f1-score"), ("support", "support"), ("recall", "recall")]:
            assert scores[f"{ours}/{label}"] == report[label][theirs]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_rows_without_a_label_are_wrong_rows_of_another_class(count):
    rng = np.random.default_rng(count)
    probabilities, truth = softmax_rows(rng, 200, count), rng.integers(0, count, 200)
    labels, likely = [f"l{i}" for i in range(count)], probabilities.argmax(axis=1)
    chosen = np.where(probabilities.max(axis=1) < 0.6, -1, (likely + (rng.random(200) < 0.2)) % count)
    scores = metrics.scored("single-label", truth, probabilities, labels, chosen).scores
    ids = {"labels": range(count), "zero_division": 0}
    expected = {
        "accuracy": sk.accuracy_score(truth, chosen),
        "f1_micro": sk.f1_score(truth, chosen, average="micro", **ids),
        "precision_macro": sk.precision_score(truth, chosen, average="macro", **ids),
        "recall_macro": sk.recall_score(truth, chosen, average="macro", **ids),
        "matthews_correlation": sk.matthews_corrcoef(truth, chosen),
    }
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    usual = metrics.scored("single-label", truth, probabilities, labels).scores
    assert {name: scores[name] for name in metrics.PROBABILISTIC} == {n: usual[n] for n in metrics.PROBABILISTIC}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_multi_label_is_scikit_learns(count):
    rng = np.random.default_rng(count)
    probabilities, truth = rng.random((150, count)), rng.integers(0, 2, (150, count))
    chosen, labels = (probabilities > 0.4).astype(int), [f"l{i}" for i in range(count)]
    scores = metrics.scored("multi-label", truth, probabilities, labels, chosen).scores
    assert list(scores) == metrics.metric_names("multi-label", labels)
    assert json_ready(scores)
    columns = range(count)
    f1 = [sk.f1_score(truth[:, i], chosen[:, i]) for i in columns]
    assert [scores[f"f1/{label}"] for label in labels] == f1
    assert scores["f1_macro"] == np.mean(f1)
    assert scores["f1_micro"] == sk.f1_score(truth.ravel(), chosen.ravel())
    assert scores["f1_weighted"] == pytest.approx(np.average(f1, weights=truth.sum(axis=0)), abs=1e-15)
    assert scores["precision_macro"] == np.mean([sk.precision_score(truth[:, i], chosen[:, i]) for i in columns])
    assert scores["subset_accuracy"] == np.mean((truth == chosen).all(axis=1))
    assert scores["roc_auc"] == np.mean([sk.roc_auc_score(truth[:, i], probabilities[:, i]) for i in columns])
    losses = [sk.log_loss(truth[:, i], probabilities[:, i]) for i in columns]
    assert scores["neg_log_loss"] == pytest.approx(-np.mean(losses), abs=1e-12)
    if count > 1:
        assert scores["f1_weighted"] == sk.f1_score(truth, chosen, average="weighted")
        assert scores["roc_auc"] == sk.roc_auc_score(truth, probabilities)


def test_regression_is_scipys():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 6, 100).astype(float)  # ties
    given = truth + rng.normal(size=100)
    scores = metrics.regression(truth, given).scores
    assert list(scores) == metrics.metric_names("regression", LABELS)
    assert json_ready(scores)
    assert scores == {
        "pearson": stats.pearsonr(truth, given).statistic,
        "spearman": stats.spearmanr(truth, given).statistic,
        "neg_mean_squared_error": -sk.mean_squared_error(truth, given),
        "neg_mean_absolute_error": -sk.mean_absolute_error(truth, given),
    }


@pytest.mark.parametrize(
    ("truth", "given"),
    [([1.0], [2.0]), ([1, 2, 3], [2, 2, 2]), ([0, 0], [1, 2]), ([0.1] * 7, range(7)), (range(7), [0.1] * 7)],
)
def test_correlations_of_constants_are_none(truth, given):
    scores = metrics.regression(truth, given).scores
    assert scores["pearson"] is None
    assert scores["spearman"] is None
    assert scores["neg_mean_squared_error"] is not None
    assert metrics.regression([1, 2, 3], 1e9 + np.array([0, 1e-7, 0])).scores["pearson"] is None  # rounding noise
    assert metrics.regression([1, 2], [4, 3]).scores["pearson"] == -1.0


def test_a_label_without_rows_counts_as_zero():
    scores = metrics.scored("single-label", [0, 0, 1], np.eye(3)[[0, 0, 1]], LABELS).scores
    assert scores["accuracy"] == 1
    assert scores["f1_macro"] == pytest.approx(2 / 3)
    assert scores["support/c"] == 0
    assert scores["roc_auc"] == 1  # over a and b, which alone have both classes


@pytest.mark.parametrize("labels", [["a"], ["a", "b"], LABELS])
def test_one_class_only_or_no_label_at_all(labels):
    scores = metrics.scored("single-label", [0, 0], np.eye(len(labels))[[0, 0]], labels).scores
    assert scores["roc_auc"] is None
    assert scores["matthews_correlation"] == 0
    assert scores["accuracy"] == scores["recall/a"] == 1
    assert scores["neg_log_loss"] == pytest.approx(0, abs=1e-15)
    nothing = np.zeros((3, 2), dtype=int)
    scores = metrics.scored("multi-label", nothing, nothing, ["a", "b"], nothing).scores
    assert scores["subset_accuracy"] == 1
    assert scores["f1_micro"] == scores["f1_macro"] == scores["f1_weighted"] == scores["ece"] == 0
    assert scores["roc_auc"] is None


def test_ece_is_of_the_decision():
    assert metrics.scored("single-label", [0, 1], [[0.7, 0.3], [0.7, 0.3]], ["a", "b"]).scores["ece"] == pytest.approx(
        0.2
    )
    multi = metrics.scored("multi-label", [[0], [0]], [[0.1], [0.3]], ["a"], [[0], [0]]).scores
    assert multi["ece"] == pytest.approx((0.1 + 0.3) / 2)


def test_confusion():
    scores = {"scores": {"a": 0.5, "b": 0.3, "c": 0.2}}
    single = GradedLabels.of("single-label", LABELS, np.array([0, 1, 1]), [{"label": name} | scores for name in "aab"])
    assert single.details()["confusion_matrix"] == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    truth, chosen = np.array([[1, 0], [1, 1], [0, 1]]), np.array([[1, 1], [0, 1], [0, 1]])
    answers = [{"labels": labels, "scores": {"a": 0.5, "b": 0.5}} for labels in ("ab", "b", "b")]
    ours = GradedLabels.of("multi-label", ["a", "b"], truth, answers).details()["confusion_matrix"]
    assert ours == sk.multilabel_confusion_matrix(truth, chosen).tolist()
    assert type(ours[0][0][0]) is int


@pytest.mark.parametrize("kind", ["single-label", "multi-label"])
def test_scores_are_the_same_however_many_rows_are_worked_on_at_a_time(kind, monkeypatch):
    rng = np.random.default_rng(3)
    if kind == "single-label":
        table, truth = softmax_rows(rng, 50, 3), rng.integers(0, 3, 50)
        answers = [{"label": LABELS[row.argmax()], "scores": dict(zip(LABELS, row, strict=True))} for row in table]
    else:
        table, truth = rng.random((50, 3)), rng.integers(0, 2, (50, 3))
        answers = [assigned_labels(LABELS, row, 0.4) for row in table.tolist()]
    known = {"rows": 99, "gold": np.linspace(1, 0, 99).tolist()} if kind == "single-label" else None  # no sets of sets

    def reported():
        graded = GradedLabels.of(kind, LABELS, truth, answers, 2.0, 0.4, known)
        return graded.scores, graded.intervals(), graded.details()

    whole = reported()
    assert len(whole[2].get("coverage", [])) == (3 if known else 0)
    assert whole[2]["calibration"]["ece_before"] != whole[2]["calibration"]["ece_after"]
    monkeypatch.setattr(intervals, "ROWS", 7)
    assert reported() == whole


@pytest.mark.parametrize("fixed", [0.3, {"a": 0.2, "c": 0.9}])
def test_fixed_thresholds_decide_again_at_the_fitted_temperature(fixed):
    rng = np.random.default_rng(5)
    table, truth = rng.beta(0.2, 0.2, (60, 3)), rng.integers(0, 2, (60, 3))
    answers = [assigned_labels(LABELS, row, fixed) for row in table.tolist()]
    fitted = GradedLabels.of("multi-label", LABELS, truth, answers, thresholds=fixed).after_fit()
    assert fitted.temperature > 2
    again = [assigned_labels(LABELS, row, fixed) for row in fitted.table.tolist()]
    assert again != answers
    expected = GradedLabels.of("multi-label", LABELS, truth, again, fitted.temperature, fixed)
    assert fitted.given.tolist() == expected.given.tolist()
    assert fitted.scores == expected.scores
    assert fitted.calibrated() == {}
    assert GradedLabels.of("multi-label", LABELS, truth, answers, 1.0, fixed).after_fit().given.tolist() == [
        [int(name in answer["labels"]) for name in LABELS] for answer in answers
    ]


def test_user_metric():
    def computed(result):
        metric = SimpleNamespace(compute=lambda *, predictions, references: result)
        return compute_user_metric(metric, [1], [1])

    found = computed({"a": np.float32(0.5), "b": 1, "c": np.nan})
    assert found == {"a": 0.5, "b": 1.0, "c": None}
    assert json_ready(found)
    for wrong in [None, 0.5, {"a": [1, 2]}, {"a": "1"}, {1: 1.0}]:
        with pytest.raises(UserError, match="the metric returned"):
            computed(wrong)


def test_balanced_weights_are_scikit_learns_and_add_up_the_counts_once() -> None:
    """Adding them up for every label takes minutes where there are 100,000."""
    values = ["a"] * 5 + ["b"] * 2 + ["c"]
    counts: Any = Counter(values)
    counts.total = Mock(wraps=counts.total)
    expected = compute_class_weight("balanced", classes=np.array(LABELS), y=values)
    weights = settle_weights("auto", counts, LABELS)
    assert list((weights or {}).values()) == pytest.approx(expected.tolist())
    assert counts.total.call_count == 1
