"""Temperatures, thresholds and the calibration error, against grids, brute force and plain loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import expit, logsumexp, softmax

from bertkit.evaluation import calibration, similarity
from bertkit.tasks.class_labels import assigned_labels


def smoothed_loss(logits, truth, temperature):
    """Of each row the gold label has the target (n + 1) / (n + 2), all others together the rest."""
    scaled, target = logits / temperature, (len(truth) + 1) / (len(truth) + 2)
    others = np.where(np.arange(logits.shape[1]) == np.asarray(truth)[:, None], -np.inf, scaled)
    total = logsumexp(scaled, axis=1)
    gold = scaled[np.arange(len(truth)), truth] - total
    return -np.mean(target * gold + (1 - target) * (logsumexp(others, axis=1) - total))


def confidence(logits, temperature):
    return softmax(logits / temperature, axis=1).max(axis=1).mean()


@pytest.mark.parametrize("exclusive", [True, False])
def test_temperature_is_the_best_that_the_errors_allow(exclusive):
    """By brute force over temperatures; below 1 only those whose mean confidence the errors support."""
    colder, flawless = 0, 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        rows, labels = int(rng.integers(2, 40)), int(rng.integers(2, 5)) if exclusive else 2
        logits = rng.normal(size=(rows, labels)) * rng.uniform(0.1, 3)
        best, drawn = logits.argmax(axis=1), rng.integers(0, labels, rows)
        truth = np.where(rng.random(rows) < rng.choice([0.5, 0.9, 1.0]), best, drawn)
        sigmoid = expit(logits[:, 1] - logits[:, 0])[:, None], truth[:, None]
        given = (softmax(logits, axis=1), truth) if exclusive else sigmoid
        found = calibration.fit_temperature(*given, exclusive=exclusive)
        errors = int((best != truth).sum())
        most = (rows - errors + 1) / (rows + 2)
        grid = [1.0, *np.geomspace(0.05, 19.99, 60)]
        allowed = [t for t in grid if t >= 1 or (errors and confidence(logits, t) <= most)]
        assert smoothed_loss(logits, truth, found) <= min(smoothed_loss(logits, truth, t) for t in allowed) + 1e-8
        if found < 1:
            assert errors
            assert confidence(logits, found) <= most + 1e-9
        colder, flawless = colder + (found < 1), flawless + (not errors)
    assert min(colder, flawless) > 5


def test_temperature_of_extremes():
    sure = np.eye(2)[[0, 1, 1]]
    assert calibration.fit_temperature(sure, [0, 1, 1], exclusive=True) == pytest.approx(20, rel=1e-3)
    assert calibration.fit_temperature(sure, [1, 0, 0], exclusive=True) == pytest.approx(20, rel=1e-3)
    assert calibration.fit_temperature([[0.6, 0.4]], [0], exclusive=True) == 1.0  # no row is wrong
    assert calibration.fit_temperature([[1.0], [1.0]], [0, 0], exclusive=True) == 1.0  # one label
    assert calibration.fit_temperature([[1.0], [0.0]], [[0], [1]], exclusive=False) == pytest.approx(20, rel=1e-3)
    assert calibration.fit_temperature([[0.7], [0.3]], [[1], [0]], exclusive=False) == 1.0
    assert calibration.fit_temperature([[0.5]], [[1]], exclusive=False) == 1.0  # logit 0 has no temperature


def test_logits_are_divided_by_the_temperature():
    logits = np.random.default_rng(0).normal(size=(9, 4))
    softened = calibration.apply_temperature(logits * 2, 2.0, exclusive=True)
    np.testing.assert_allclose(softened, softmax(logits, axis=1))
    np.testing.assert_allclose(calibration.apply_temperature(logits * 2, 2.0, exclusive=False), expit(logits))


def brute_force_threshold(scores, truth):
    if not truth.any():
        return 0.5
    distinct = [0.0, *np.unique(scores)]
    candidates = [(low + high) / 2 for low, high in pairwise(distinct)]
    f1 = [2 * truth[scores >= c].sum() / ((scores >= c).sum() + truth.sum()) for c in candidates]
    best = [c for c, value in zip(candidates, f1, strict=True) if value >= max(f1) - 1e-12]
    return min(best, key=lambda candidate: (abs(candidate - 0.5), candidate))


def test_thresholds_are_the_best_there_are():
    for seed in range(150):
        rng = np.random.default_rng(seed)
        scores = np.round(rng.random((int(rng.integers(1, 20)), 3)), int(rng.integers(1, 4)))
        truth = (rng.random(scores.shape) < rng.random(3)).astype(int)
        expected = [brute_force_threshold(scores[:, i], truth[:, i]) for i in range(3)]
        assert calibration.fit_thresholds(scores, truth) == expected


def test_threshold_of_special_labels():
    assert calibration.fit_thresholds([[0.9], [0.1]], [[1], [0]]) == [0.5]
    assert calibration.fit_thresholds([[0.9], [0.1]], [[0], [0]]) == [0.5]
    assert calibration.fit_thresholds([[0.3], [0.4]], [[1], [1]]) == [0.15]  # always on
    assert calibration.fit_thresholds([[0.0], [0.0]], [[1], [0]]) == [0.0]


@pytest.mark.parametrize("noise", [-2e-6, -1e-7, 1e-7, 2e-6])
def test_no_threshold_lies_between_the_scores_of_one_row_in_two_batches(noise):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scores = np.repeat(np.unique(np.round(rng.random(9), 3)), 2)
        truth, moved = rng.integers(0, 2, len(scores)), scores + noise * rng.random(len(scores))
        found = calibration.thresholds_of(moved, truth)
        assert found.values == pytest.approx(calibration.thresholds_of(scores, truth).values, abs=3e-6)
        for threshold, given in zip(found.values, found.given, strict=True):
            assert (scores >= threshold).tolist() == (moved >= threshold).tolist()
            assert given == (scores >= threshold).sum()
        threshold = similarity.best_threshold(truth, moved)
        assert (scores >= threshold).tolist() == (moved >= threshold).tolist()


def test_scores_without_gaps_have_thresholds_too():
    scores = 0.5 + np.arange(1000) / 1e6
    found = calibration.thresholds_of(scores, scores > 0.5004)
    assert len(found.values) == 100
    assert found.values[found.f1.argmax()] == pytest.approx(0.5004, abs=1.1e-5)
    assert found.given.tolist() == [(scores >= value).sum() for value in found.values]


def test_ece_is_guos():
    rng = np.random.default_rng(0)
    confidence = np.concatenate([rng.random(500), np.arange(16) / 15])  # edges belong to the bin below
    correct = rng.random(516) < confidence**2
    expected = 0.0
    for low, high in zip(np.linspace(0, 1, 16), np.linspace(0, 1, 16)[1:], strict=False):
        inside = (confidence > low) & (confidence <= high) | ((low == 0) & (confidence == 0))
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert calibration.expected_calibration_error(confidence, correct) == pytest.approx(expected, abs=1e-12)


def test_reliability_is_that_of_sorted_decisions_in_equal_parts():
    rng = np.random.default_rng(0)
    confidence = rng.random(503)
    correct = rng.random(503) < confidence**2
    bins = calibration.reliability(confidence, correct)
    assert [each.decisions for each in bins] == [51] * 3 + [50] * 7
    pairs, start = sorted(zip(confidence, correct, strict=True)), 0
    for each in bins:
        own, start = pairs[start : start + each.decisions], start + each.decisions
        assert each.confidence == pytest.approx(np.mean([pair[0] for pair in own]))
        assert each.accuracy == pytest.approx(np.mean([pair[1] for pair in own]))
        # Wilson's bounds are the two chances p at which the accuracy is 1.96 standard errors from p.
        z = 1.959963984540054
        for bound in each.interval:
            assert (each.accuracy - bound) ** 2 == pytest.approx(z**2 * bound * (1 - bound) / each.decisions)
        assert 0 <= each.interval[0] <= each.accuracy < each.interval[1] < 1


@pytest.mark.parametrize(
    ("decisions", "counts"), [(1, [1]), (39, [39]), (40, [20, 20]), (199, [23] + [22] * 8), (200, [20] * 10)]
)
def test_few_decisions_make_few_bins(decisions: int, counts: list[int]):
    bins = calibration.reliability(np.linspace(0, 1, decisions), np.ones(decisions))
    assert [each.decisions for each in bins] == counts
    assert all(each.accuracy == 1 and each.interval[1] == 1 > each.interval[0] for each in bins)


def test_a_threshold_of_zero_gives_every_label():
    scores = {"a": 0.0, "b": 0.3}
    assert assigned_labels(["a", "b"], [0.0, 0.3], 0.0) == {"labels": ["a", "b"], "scores": scores}
    assert assigned_labels(["a", "b"], [0.0, 0.3], None) == {"labels": [], "scores": scores}
