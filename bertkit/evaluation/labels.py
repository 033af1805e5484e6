"""A classifier's or regressor's answers compared with their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Self

import numpy as np

from bertkit.evaluation import calibration, metrics
from bertkit.evaluation.graded import Graded, Scored
from bertkit.evaluation.intervals import Floats
from bertkit.evaluation.metrics import Kind


class GradedLabels(Graded):
    """Answers as they are written, with `label`, `labels` or `score`, and `scores`; only their numbers are held.

    references: label ids `(rows,)`, 0/1 `(rows, labels)` or numbers `(rows,)`. given: decisions in the same form.
    table: probabilities `(rows, labels)`; for regression the numbers `(rows, 1)`. temperature, thresholds: what the
    answers were given with; None where no option fixes them yet.
    """

    def __init__(
        self,
        kind: Kind,
        names: list[str],
        references: Any,
        answers: Sequence[dict[str, Any]],
        temperature: float | None = None,
        thresholds: Mapping[str, float] | float | None = None,
    ) -> None:
        self.kind, self.names, self.references = kind, names, references
        self.temperature, self.thresholds = temperature, thresholds
        rows, single = len(answers), kind == "single-label"
        if kind == "regression":
            self.given: Any = np.fromiter((answer["score"] for answer in answers), np.float64, rows)
            self.table = self.given[:, None]
            return
        self.table = np.empty((rows, len(names)))
        self.given = np.zeros(rows if single else self.table.shape, dtype=np.int64)
        ids = {name: index for index, name in enumerate(names)}
        for row, answer in enumerate(answers):
            self.table[row] = [answer["scores"][name] for name in names]
            if single:
                self.given[row] = ids[answer["label"]]
            else:
                self.given[row, [ids[name] for name in answer["labels"]]] = 1

    @cached_property
    def scored(self) -> Scored:
        """The metrics of this kind."""
        return metrics.scored(self.kind, self.references, self.table, self.names, self.given)

    def details(self) -> dict[str, Any]:
        """Confusion matrix (rows: truth; multi-label: 2 x 2 per label), and calibration before and after."""
        from sklearn.metrics import confusion_matrix

        if self.kind == "regression":
            return {}
        if self.kind == "single-label":
            confusion = confusion_matrix(self.references, self.given, labels=range(len(self.names))).tolist()
        else:
            columns = zip(self.references.T, self.given.T, strict=True)
            confusion = [confusion_matrix(*column, labels=[0, 1]).tolist() for column in columns]
        temperature = self.temperature or 1.0
        before = metrics.scored(self.kind, self.references, self.tempered(1 / temperature), self.names, self.given)
        ece = {"ece_before": before.scores["ece"], "ece_after": self.scores["ece"]}
        right = self.given == self.references if self.kind == "single-label" else (self.table > 0.5) == self.references
        counts = {"decisions": right.size, "errors": int((~right).sum())}
        calibrated = {"temperature": temperature, **counts, **ece, "thresholds": self.thresholds}
        return {"labels": self.names, "confusion_matrix": confusion, "calibration": calibrated}

    def pairs(self) -> tuple[Any, Any]:
        """Decisions and references, each as `references` is."""
        return self.given, self.references

    def tempered(self, temperature: float) -> Floats:
        """The probabilities at `temperature` times the one in use, `(rows, labels)`."""
        exclusive = self.kind == "single-label"
        logits = calibration.logits_of(self.table, exclusive=exclusive)
        return calibration.apply_temperature(logits, temperature, exclusive=exclusive)

    def after_fit(self) -> Self:
        """The same rows with fitted values of what is not set: temperature, then thresholds of best F1 per label."""
        if self.kind == "regression":
            return self
        again, exclusive = copy(self), self.kind == "single-label"
        for name in ("scored", "scores"):  # they are cached
            vars(again).pop(name, None)
        if self.temperature is None:
            again.temperature = calibration.fit_temperature(self.table, self.references, exclusive=exclusive)
            again.table = self.tempered(again.temperature)
        if self.thresholds is None and not exclusive:
            best = calibration.fit_thresholds(again.table, self.references)
            again.thresholds = dict(zip(self.names, best, strict=True))
            again.given = (again.table >= best).astype(np.int64)
        return again

    def calibrated(self) -> dict[str, Any]:
        """What `after_fit` fits, of the options `temperature` and `thresholds`."""
        found = vars(self.after_fit())
        return {name: found[name] for name in ("temperature", "thresholds") if found[name] is not vars(self)[name]}
