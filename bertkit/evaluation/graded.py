"""Answers of a classifier beside the targets they should have hit, and all that can be said of the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bertkit.evaluation import calibration, intervals, metrics
from bertkit.evaluation.hf_metrics import compute_user_metric
from bertkit.evaluation.metrics import Floats, Kind, Scores


@dataclass(frozen=True)
class Graded:
    """One kind of target, and as many answers as references.

    references: label ids `(rows,)`, 0/1 `(rows, labels)` or numbers `(rows,)`. given: the answers' decisions,
    in the same form. table: their probabilities `(rows, labels)`; empty for regression.
    """

    kind: Kind
    names: list[str]
    references: Any
    given: Any
    table: Any

    @classmethod
    def of(cls, kind: Kind, names: list[str], references: Any, answers: Sequence[dict[str, Any]]) -> Graded:
        """From answers as they are written: `label`, `labels` or `score`, and `scores`; of each only numbers stay."""
        rows = len(answers)
        if kind == "regression":
            numbers = np.fromiter((answer["score"] for answer in answers), np.float64, rows)
            return cls(kind, names, references, numbers, np.empty((rows, 0)))
        table = np.empty((rows, len(names)))
        given = np.zeros(rows if kind == "single-label" else table.shape, dtype=np.int64)
        ids = {name: index for index, name in enumerate(names)}
        for row, answer in enumerate(answers):
            table[row] = [answer["scores"][name] for name in names]
            if kind == "single-label":
                given[row] = ids[answer["label"]]
            else:
                given[row, [ids[name] for name in answer["labels"]]] = 1
        return cls(kind, names, references, given, table)

    @cached_property
    def scores(self) -> Scores:
        """The metrics of this kind."""
        if self.kind == "regression":
            return metrics.regression(self.references, self.given)
        if self.kind == "single-label":
            return metrics.single_label(self.references, self.table, self.names, self.given)
        return metrics.multi_label(self.references, self.table, self.given, self.names)

    def intervals(self) -> dict[str, tuple[float, float] | None]:
        """Bootstrap 95 % intervals of `scores`."""
        if self.kind == "regression":
            return intervals.intervals_regression(self.references, self.given)
        if self.kind == "single-label":
            return intervals.intervals_single_label(self.references, self.table, self.names, self.given)
        return intervals.intervals_multi_label(self.references, self.table, self.given, self.names)

    def user_scores(self, metric: Any) -> Scores:
        """What a user's `evaluate.Metric` says of decisions and references."""
        return compute_user_metric(metric, self.given, self.references)

    def confusion(self) -> Any:
        """`(labels, labels)` counts, rows truth; for multi-label `(labels, 2, 2)`."""
        if self.kind == "single-label":
            return metrics.confusion_matrix(self.references, self.given, len(self.names))
        return metrics.multi_label_confusion_matrices(self.references, self.given)

    def tempered(self, temperature: float) -> Graded:
        """The same decisions with probabilities at `temperature` times the one in use."""
        from scipy.special import logit

        tiny = np.finfo(np.float64).tiny
        table: Floats
        if self.kind == "single-label":
            table = calibration.apply_temperature_softmax(np.log(np.maximum(self.table, tiny)), temperature)
        else:
            logits = logit(np.clip(self.table, tiny, np.nextafter(1, 0)))
            table = calibration.apply_temperature_sigmoid(logits, temperature)
        return replace(self, table=table)

    def temperature(self) -> float:
        """The temperature of least log loss (Guo et al. 2017)."""
        fit = (
            calibration.fit_temperature_softmax if self.kind == "single-label" else calibration.fit_temperature_sigmoid
        )
        return fit(self.table, self.references)

    def thresholds(self) -> dict[str, float]:
        """Label -> the probability from which giving it has the best F1."""
        return dict(zip(self.names, calibration.fit_thresholds(self.table, self.references), strict=True))
