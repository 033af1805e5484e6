"""Scores of weighted rows equal those of the repeated rows; the intervals are the bootstrap's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from bertkit.evaluation import intervals, metrics


def check(score, arrays, weights):
    """Each column of weights (rows, resamples) scores as the rows repeated so often."""
    values = score(*arrays).weighted(weights.astype(float))
    for column in range(weights.shape[1]):
        expected = score(*(np.repeat(array, weights[:, column], axis=0) for array in arrays)).scores
        assert list(values) == list(expected)
        for name in expected:
            wanted = np.nan if expected[name] is None else expected[name]
            assert values[name][column] == pytest.approx(wanted, rel=1e-9, abs=1e-9, nan_ok=True), name


def draw(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Weights (rows, 3) with many zeros, at least one row each."""
    weights = rng.integers(0, 4, (rows, 3)) * rng.integers(0, 2, (rows, 3))
    weights[rng.integers(0, rows)] += 1
    return weights


def softmax_rows(rng: np.random.Generator, rows: int, labels: int) -> np.ndarray:
    scores = np.exp(2 * rng.normal(size=(rows, labels)))
    if rng.random() < 0.5:  # ties, within a row and between rows
        scores = np.round(scores) + 1
    if rng.random() < 0.2:  # probabilities of exactly 0 and 1
        scores = np.where(scores == scores.max(axis=1, keepdims=True), 1.0, 0.0)
    return scores / scores.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["single-label", "multi-label"])
def test_weights_of_labels_are_repeated_rows(kind):
    for case in range(100):
        rng = np.random.default_rng(case)
        rows, count = int(rng.integers(1, 25)), int(rng.integers(1, 6))
        if kind == "single-label":
            truth = rng.choice(rng.integers(0, count, rng.integers(1, count + 1)), rows)  # some labels absent
            given = softmax_rows(rng, rows, count)
            chosen = given.argmax(axis=1) if rng.random() < 0.8 else rng.integers(0, count, rows)
        else:
            truth = (rng.random((rows, count)) < rng.choice([0, 0.3, 1], count, p=[0.1, 0.8, 0.1])).astype(int)
            given = np.round(rng.random((rows, count)), int(rng.integers(0, 3)))
            chosen = (given >= rng.random(count)).astype(int)
        score = partial(metrics.scored, kind, labels=[str(i) for i in range(count)])
        check(lambda t, g, c, score=score: score(t, g, decisions=c), [truth, given, chosen], draw(rng, rows))


def test_regression_weights_are_repeated_rows():
    for case in range(100):
        rng = np.random.default_rng(case)
        rows = int(rng.integers(1, 25))
        truth = np.round(rng.normal(size=rows) * 10.0 ** rng.integers(-3, 4), int(rng.integers(0, 3)))
        given = truth * rng.normal() + rng.normal(size=rows) + 100 * rng.normal()
        if rng.random() < 0.5:
            given = np.round(given)
        check(metrics.regression, [truth, given], draw(rng, rows))


def test_equals_the_plain_bootstrap_by_seed_and_in_chunks(monkeypatch):
    rng = np.random.default_rng(2)
    truth = rng.normal(size=40)
    given = truth + rng.normal(size=40)
    found = metrics.regression(truth, given).intervals(resamples=70, seed=5)
    rng = np.random.default_rng(5)
    samples = [rng.integers(0, 40, 40) for _ in range(70)]
    for name in found:
        values = [metrics.regression(truth[rows], given[rows]).scores[name] for rows in samples]
        assert found[name] == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])), abs=1e-12)
    rng = np.random.default_rng(3)
    arrays = rng.normal(size=30), rng.normal(size=30)
    scored = metrics.regression(*arrays)
    found = scored.intervals(resamples=50)
    assert scored.intervals(resamples=50) == found
    assert scored.intervals(resamples=50, seed=1) != found
    monkeypatch.setattr(intervals, "CHUNK", 1)
    assert scored.intervals(resamples=50)["spearman"] == pytest.approx(found["spearman"])


@pytest.mark.parametrize(("share", "defined"), [(0.0, False), (0.3, False), (0.495, False), (0.5, True), (0.7, True)])
def test_an_interval_is_of_half_of_the_resamples_at_least(share, defined):
    values = iter(np.where(np.arange(200) < 200 * share, np.arange(200.0), np.nan))

    def weighted(weights):
        return {"score": np.asarray([next(values) for _ in range(weights.shape[1])])}

    found = intervals.bootstrap(weighted, 3, resamples=200)["score"]
    assert (found is not None) == defined
    assert not defined or found == pytest.approx(np.quantile(np.arange(200 * share), [0.025, 0.975]))
