"""What more rows would bring, by the learning curve of a linear head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, f1_score

from bertkit.evaluation.intervals import Floats
from bertkit.report.table import more_rows
from bertkit.training import few_shot, linear
from bertkit.training.folds import with_method
from bertkit.training.learning_curve import extrapolated, learning_curve, power_law, stratified_order
from bertkit.training.preflight import arguments, checked_job
from bertkit.training.seed import untrained

SIZES = [100, 200, 300, 400]


def right(shares: list[float], total: int = 600) -> Any:
    """Weights -> accuracies, where this share of the rows is answered rightly; the same ones, and more."""
    hits = np.arange(total) < np.rint(np.array(shares)[:, None] * total)

    def curve(weights: Floats) -> Floats:
        return np.asarray(hits @ weights / weights.sum(0))

    return curve


@pytest.mark.parametrize(("a", "b", "c"), [(0.95, 2.0, 0.5), (1.0, 5.0, 0.7), (0.8, 30.0, 1.2)])
def test_a_power_law_is_recovered(a: float, b: float, c: float) -> None:
    def law(n: Any) -> Any:
        return a - b * np.asarray(n, float) ** -c

    found = power_law(SIZES, np.stack([law(SIZES), law(SIZES) - 0.1], axis=1), [600, 650, 1200])
    np.testing.assert_allclose(found[:, 0], law([600, 650, 1200]), atol=2e-4)
    np.testing.assert_allclose(found[:, 1], law([600, 650, 1200]) - 0.1, atol=2e-4)


def test_predictions_rise_and_do_not_exceed_one() -> None:
    draw = np.random.default_rng(0)
    found = power_law(SIZES, draw.uniform(0.3, 1.0, size=(4, 200)), [400, 600, 650, 1200, 10**9])
    assert (np.diff(found, axis=0) >= -1e-12).all()
    assert (found <= 1).all()
    assert np.isnan(power_law(SIZES, np.array([[0.1], [np.nan], [0.2], [0.3]]), [600])).all()


def test_a_rising_score_is_extrapolated_with_intervals() -> None:
    found = extrapolated(right([0.5, 0.6, 0.65, 0.68]), SIZES, 600)
    assert found["rows"] == SIZES
    assert found["scores"] == pytest.approx([0.5, 0.6, 0.65, 0.68])
    more, twice = found["predicted"]
    assert [(each["rows"], each["more"]) for each in (more, twice)] == [(650, 50), (1200, 600)]
    assert 0.68 < more["score"] < twice["score"] < 1
    assert 0 < more["gain"] < twice["gain"]
    for each in found["predicted"]:
        for name in ("score", "gain"):
            low, high = each[f"{name}_interval"]
            assert low < each[name] < high
    assert extrapolated(right([0.5, 0.6, 0.65, 0.68]), SIZES, 600) == found


@pytest.mark.parametrize("scores", [[0.7] * 4, [0.7, 0.69, 0.7, 0.7], [0.7, 0.69, 0.68, 0.66], [1.0] * 4])
def test_a_score_that_does_not_rise_is_not_extrapolated(scores: list[float]) -> None:
    found = extrapolated(right(scores), SIZES, 600)
    assert found["scores"] == pytest.approx(scores)
    assert "predicted" not in found
    assert "does not clearly rise" in found["reason"]


def test_no_predicted_score_is_below_the_measured_one_or_above_one() -> None:
    for scores in ([0.6, 0.6, 0.6, 0.74], [0.9, 0.93, 0.95, 1.0]):
        found = extrapolated(right(scores), SIZES, 600)
        for each in found["predicted"]:
            assert scores[-1] <= each["score"] <= 1
            assert each["score_interval"][1] <= 1


def test_an_undefined_score_is_not_extrapolated() -> None:
    def curve(weights: Floats) -> Floats:
        scores = right([0.5, 0.6, 0.65, 0.68])(weights)
        scores[1] = np.nan
        return np.asarray(scores)

    found = extrapolated(curve, SIZES, 600)
    assert found["scores"] == [0.5, None, 0.65, 0.68]
    assert "not defined" in found["reason"]


def test_every_beginning_has_the_labels_in_their_proportions() -> None:
    labels = np.random.default_rng(1).permutation(np.repeat([0, 1, 2], [60, 30, 10]))
    order = stratified_order(labels, 3)
    assert sorted(order) == list(range(100))
    for size in (25, 50, 75):
        np.testing.assert_allclose(
            np.bincount(labels[order[:size]], minlength=3), [0.6 * size, 0.3 * size, 0.1 * size], atol=1
        )
    assert not np.array_equal(order, stratified_order(labels, 4))


@pytest.mark.parametrize("kind", ["single-label", "multi-label", "regression"])
def test_the_last_score_is_that_of_heads_on_all_other_rows(
    kind: str, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, "task.method=auto", "~training", kind=kind)
    small.write_rows(tmp_path / "train.jsonl", small.rows(kind, 66))
    monkeypatch.setattr(linear, "held_out_losses", lambda *_: {})  # C is 16
    monkeypatch.setattr(few_shot, "words_of", lambda _: [])
    job, _ = checked_job(recipe)
    job = with_method(job, "head")
    runner = untrained(job, arguments(recipe, job.task, job.data, tmp_path / "run", 0))
    x, y = (getattr(few_shot.examples_of(runner, job.features), name) for name in ("vectors", "targets"))
    given = np.zeros(y.shape)
    for fold in (1, 2, 3):
        held = np.equal(job.folds, fold)
        if kind == "regression":
            given[held] = RidgeCV([1 / each for each in linear.STRENGTHS]).fit(x[~held], y[~held]).predict(x[held])
        elif kind == "single-label":
            given[held] = LogisticRegression(C=16, max_iter=1000, tol=1e-8).fit(x[~held], y[~held]).predict(x[held])
        else:
            for label, column in enumerate(y.T):
                model = LogisticRegression(C=16, max_iter=1000, tol=1e-8).fit(x[~held], column[~held])
                given[held, label] = model.predict(x[held])
    metric = {"single-label": "accuracy", "multi-label": "f1_micro", "regression": "pearson"}[kind]
    oracle: Any = {
        "accuracy": accuracy_score,
        "f1_micro": lambda *both: f1_score(*both, average="micro"),
        "pearson": lambda *both: np.corrcoef(*both)[0, 1],
    }[metric]
    found = learning_curve(job, runner, metric)
    assert found["rows"] == [11, 22, 33, 44]
    assert found["scores"][-1] == pytest.approx(oracle(y, given), abs=1e-4)
    assert learning_curve(job, runner, metric) == found


def test_too_few_rows_and_foreign_metrics_have_no_curve(tiny_encoder: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, "task.method=auto", "~training")
    runner: Any = None
    few = learning_curve(with_method(checked_job(recipe)[0], "head"), runner, "accuracy")
    assert few == {"reason": "25 % of the rows of the other folds is fewer than 10"}
    small.write_rows(tmp_path / "train.jsonl", small.rows("single-label", 66))
    foreign = learning_curve(with_method(checked_job(recipe)[0], "head"), runner, "mine")
    assert foreign == {"reason": "mine is not a metric of the task"}


def test_what_is_predicted_in_a_sentence() -> None:
    predicted = [
        {
            "rows": 650,
            "more": 50,
            "score": 0.7,
            "score_interval": [0.6, 0.8],
            "gain": 0.01,
            "gain_interval": [0.0, 0.02],
        },
        {
            "rows": 1200,
            "more": 600,
            "score": 0.75,
            "score_interval": [0.65, 0.85],
            "gain": 0.06,
            "gain_interval": [0.04, 0.08],
        },
    ]
    curve = {"rows": SIZES, "scores": [0.5, 0.6, 0.65, 0.68], "predicted": predicted}
    own, other = (more_rows(curve, "accuracy", best) for best in ("head", "full"))
    assert "accuracy: with 50 more rows about 0.7000 (0.6000 … 0.8000), with 600 more rows about 0.7500" in own
    assert "gain in accuracy: with 50 more rows about 0.0100 (0.0000 … 0.0200)" in other
    assert "fewer" in more_rows({"reason": "fewer"}, "accuracy", "head")
