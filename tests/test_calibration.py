"""Temperatures, thresholds and the calibration error, against grids, brute force and plain loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import expit, logit, softmax
from sklearn import metrics as sk

from bertkit.evaluation import calibration
from bertkit.tasks.labels import assigned_labels


def softmax_loss(logits, truth, temperature):
    return sk.log_loss(truth, softmax(logits / temperature, axis=1), labels=range(logits.shape[1]))


@pytest.mark.parametrize("true_temperature", [0.3, 1.0, 2.5])
def test_softmax_temperature_is_found(true_temperature):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5000, 4)) * 2
    drawn = (rng.random((5000, 1)) < softmax(logits, axis=1).cumsum(axis=1)).argmax(axis=1)
    probabilities = softmax(logits * true_temperature, axis=1)  # so much too sure
    found = calibration.fit_temperature(probabilities, drawn, exclusive=True)
    assert found == pytest.approx(true_temperature, rel=0.05)
    grid = np.geomspace(0.05, 20, 100)
    best = min(softmax_loss(np.log(probabilities), drawn, t) for t in grid)
    assert softmax_loss(np.log(probabilities), drawn, found) <= best
    calibrated = calibration.apply_temperature(np.log(probabilities), found, exclusive=True)
    after = calibration.expected_calibration_error(calibrated.max(axis=1), calibrated.argmax(axis=1) == drawn)
    assert after < 0.03


def test_sigmoid_temperature_is_found():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(8000, 3)) * 2
    truth = (rng.random(logits.shape) < expit(logits)).astype(int)
    found = calibration.fit_temperature(expit(logits * 2), truth, exclusive=False)
    assert found == pytest.approx(2, rel=0.05)
    np.testing.assert_allclose(calibration.apply_temperature(logits * 2, 2.0, exclusive=False), expit(logits))


def test_temperature_never_makes_it_worse():
    for seed in range(50):
        rng = np.random.default_rng(seed)
        rows, labels = int(rng.integers(1, 8)), int(rng.integers(1, 4))
        probabilities = softmax(rng.normal(size=(rows, labels)) * 5, axis=1)
        truth = rng.integers(0, labels, rows)
        found = calibration.fit_temperature(probabilities, truth, exclusive=True)
        assert 0.05 <= found <= 20
        if labels > 1:
            logits = np.log(probabilities)
            assert softmax_loss(logits, truth, found) <= softmax_loss(logits, truth, 1.0) + 1e-15


def test_temperature_of_extremes():
    sure = np.eye(2)[[0, 1, 1]]
    assert calibration.fit_temperature(sure, [0, 1, 1], exclusive=True) == 1.0  # right and sure: nothing to gain
    assert calibration.fit_temperature(sure, [1, 0, 0], exclusive=True) == pytest.approx(20, rel=1e-3)
    assert calibration.fit_temperature([[0.6, 0.4]], [0], exclusive=True) == 1.0  # separable: nothing to learn
    assert calibration.fit_temperature([[1.0], [1.0]], [0, 0], exclusive=True) == 1.0  # one label
    assert calibration.fit_temperature([[1.0], [0.0]], [[0], [1]], exclusive=False) == pytest.approx(20, rel=1e-3)
    assert calibration.fit_temperature([[0.9], [0.2]], [[1], [0]], exclusive=False) == 1.0
    assert calibration.fit_temperature([[0.5]], [[1]], exclusive=False) == 1.0  # logit 0 has no temperature


def test_temperature_misuse():
    with pytest.raises(ValueError, match="rows, labels"):
        calibration.fit_temperature(np.zeros((0, 2)), [], exclusive=True)
    with pytest.raises(ValueError, match="rows, labels"):
        calibration.fit_temperature([[0.5]], [0], exclusive=False)
    with pytest.raises(ValueError, match="above 0"):
        calibration.apply_temperature([1.0, 2.0], 0, exclusive=True)


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
    low = 0.7
    high = np.nextafter(low, 1)
    assert calibration.fit_thresholds([[low], [high]], [[0], [1]]) == [high]  # no float lies between


def test_thresholds_of_many_rows():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, (100_000, 3))
    found = calibration.fit_thresholds(expit(logit(0.3) + truth * 2 + rng.normal(size=truth.shape)), truth)
    assert all(0.3 < threshold < 0.8 for threshold in found)


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
    bars = calibration.reliability(confidence, correct)
    again = sum(bar["count"] * abs(bar["accuracy"] - bar["confidence"]) for bar in bars) / 516
    assert again == pytest.approx(expected, abs=1e-12)
    assert [bar["high"] for bar in bars[:-1]] == [bar["low"] for bar in bars[1:]]


def test_reliability_of_empty_bins():
    bars = calibration.reliability([1.0, 0.95], [True, False], bins=2)
    assert bars == [
        {"low": 0.0, "high": 0.5, "count": 0, "confidence": None, "accuracy": None},
        {"low": 0.5, "high": 1.0, "count": 2, "confidence": 0.975, "accuracy": 0.5},
    ]
    with pytest.raises(ValueError, match="decisions"):
        calibration.expected_calibration_error([], [])


def test_a_threshold_of_zero_gives_every_label():
    scores = {"a": 0.0, "b": 0.3}
    assert assigned_labels(["a", "b"], [0.0, 0.3], 0.0) == {"labels": ["a", "b"], "scores": scores}
    assert assigned_labels(["a", "b"], [0.0, 0.3], None) == {"labels": [], "scores": scores}
