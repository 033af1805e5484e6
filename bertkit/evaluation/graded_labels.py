"""A classifier's or regressor's answers compared with their targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Self

import numpy as np

from bertkit.evaluation import calibration, metrics, similarity
from bertkit.evaluation.calibration import ByLabel, Limits
from bertkit.evaluation.conformal import Conformal, Coverage, conformal, supported_coverages
from bertkit.evaluation.graded import Decisions, Graded, Scored
from bertkit.evaluation.intervals import Floats, blocks
from bertkit.evaluation.metrics import Kind
from bertkit.text import Json, Record


@dataclass(frozen=True, eq=False)
class GradedLabels(Graded):
    """Decisions and probabilities compared with the references.

    references: label ids `(rows,)`, 0/1 `(rows, labels)` or numbers `(rows,)`. chosen: decisions in the same
    form, -1 where no single label is given. table: probabilities `(rows, labels)`; for regression the numbers
    `(rows, 1)`. temperature, thresholds, cutoffs: what the answers were given with; None where no option
    fixes them yet. conformal: what sets and intervals are taken from, likewise.
    """

    kind: Kind
    names: Sequence[str]
    references: Any
    chosen: Any
    table: Floats
    temperature: float | None = None
    thresholds: Limits = None
    conformal: Conformal | None = None
    cutoffs: ByLabel | None = None

    @classmethod
    def of(
        cls,
        kind: Kind,
        names: Sequence[str],
        references: Any,
        answers: Sequence[Record],
    ) -> Self:
        """From answers as they are written, with `label`, `labels` or `score`, and `scores`.

        No option is fixed yet.
        """
        rows = len(answers)
        single = kind == "single-label"
        if kind == "regression":
            numbers = similarity.of(answers, "score")
            return cls(kind, names, references, numbers, numbers[:, None])
        table = np.empty((rows, len(names)))
        decisions = np.zeros(rows, dtype=np.int64) if single else np.zeros(table.shape, dtype=np.int8)
        ids = {name: index for index, name in enumerate(names)} | {None: -1}
        for row, answer in enumerate(answers):
            table[row] = [answer["scores"][name] for name in names]
            if single:
                decisions[row] = ids[answer["label"]]
            else:
                decisions[row, [ids[name] for name in answer["labels"]]] = 1
        references = references if single else references.astype(np.int8)
        return cls(kind, names, references, decisions, table)

    @classmethod
    def of_table(
        cls,
        kind: Kind,
        names: Sequence[str],
        references: Any,
        table: Floats,
        thresholds: Limits,
        cutoffs: ByLabel | None,
    ) -> Self:
        """From probabilities `(rows, labels)`, or from numbers `(rows, 1)`; their temperature is not
        fixed.
        """
        references = np.asarray(references)
        if kind == "regression":
            return cls(kind, names, references, table[:, 0], table)
        references = references.astype(np.int8 if kind == "multi-label" else np.int64)
        return cls(kind, names, references, None, table, thresholds=thresholds, cutoffs=cutoffs).decided()

    @cached_property
    def scored(self) -> Scored:
        """The metrics of this kind."""
        return metrics.scored(self.kind, self.references, self.table, self.names, self.chosen)

    def details(self) -> Json:
        """Confusion matrix of the labels given (rows: truth; multi-label: 2 x 2 per label), the share of rows
        with a label where some have none, and calibration before and after.
        """
        coverage = {} if self.conformal is None else {"coverage": list(self._coverage(self.conformal))}
        if self.kind == "regression":
            return coverage
        if self.kind == "single-label":
            confusion = _confusion(self.references, self.chosen, len(self.names))
        else:
            columns = zip(self.references.T, self.chosen.T, strict=True)
            confusion = [_confusion(*column, 2) for column in columns]
        temperature = self.temperature or 1.0
        likely = self.table.argmax(axis=1) if self.kind == "single-label" else self.table > 0.5
        right = likely == self.references
        parts = (
            metrics.decision_outcomes(
                self.kind, self.tempered(1 / temperature, rows), self.references[rows], self.chosen[rows]
            )
            for rows in blocks(len(self.table))
        )
        calibrated = {
            "temperature": temperature,
            "decisions": right.size,
            "errors": int((~right).sum()),
            "ece_before": calibration.calibration_error(chain.from_iterable(parts)),
            "ece_after": self.scores["ece"],
            "thresholds": self.thresholds,
        }
        details = {"labels": self.names, "confusion_matrix": confusion, "calibration": calibrated}
        if (self.chosen < 0).any():
            details["answered"] = float((self.chosen >= 0).mean())
        return details | coverage

    def decisions(self) -> Decisions:
        """The most probable label of each row, or of several labels each; none of numbers."""
        if self.kind == "regression":
            return {}

        def outcomes(table: Floats) -> tuple[Any, Any]:
            parts = metrics.decision_outcomes(self.kind, table, self.references, self.chosen)
            confidence, right = (
                np.concatenate([*map(np.ravel, column)]) for column in zip(*parts, strict=True)
            )
            return confidence, right

        return {
            "before": outcomes(self.tempered(1 / (self.temperature or 1.0))),
            "after": outcomes(self.table),
        }

    def _coverage(self, saved: Conformal) -> Iterator[Coverage]:
        """The sets or intervals of these rows at the usual coverages."""
        for coverage, least in supported_coverages(saved).items():
            measured = float((self._gold() >= least).mean())
            sizes = (self.table >= least).sum(axis=1)
            if self.kind == "regression":
                yield Coverage(coverage=coverage, measured=measured, mean_width=-2 * least)
            else:
                size = float(sizes.mean())
                single = float((sizes == 1).mean())
                yield Coverage(coverage=coverage, measured=measured, mean_size=size, single=single)

    def _gold(self) -> Floats:
        """Probabilities of the gold labels `(rows,)`; for regression the residuals, negative, so that more is
        better here too.
        """
        if self.kind == "regression":
            return np.asarray(-np.abs(self.chosen - self.references))
        return np.asarray(self.table[np.arange(len(self.table)), self.references])

    def pairs(self) -> tuple[Any, Any]:
        """Decisions and references, each as `references` is."""
        return self.chosen, self.references

    def tempered(self, temperature: float, rows: slice = slice(None)) -> Floats:
        """The probabilities of these rows at `temperature` times the one in use, `(rows, labels)`."""
        exclusive = self.kind == "single-label"
        logits = calibration.logits_of(self.table[rows], exclusive=exclusive)
        return calibration.apply_temperature(logits, temperature, exclusive=exclusive)

    def after_fit(self) -> Self:
        """These rows, with what is fitted where no option fixes it: the temperature, thresholds of best F1
        (multi-label), and what sets or intervals are taken from."""
        if self.kind == "regression":
            return replace(self, conformal=self.conformal or conformal(self._gold()))
        fitted = self
        exclusive = self.kind == "single-label"
        if self.temperature is None:
            temperature = calibration.fit_temperature(self.table, self.references, exclusive=exclusive)
            fitted = replace(fitted, temperature=temperature, table=self.tempered(temperature))
        if exclusive:
            return replace(fitted.decided(), conformal=self.conformal or conformal(fitted._gold()))
        if self.thresholds is None:
            limits = calibration.fit_thresholds(fitted.table, self.references)
            fitted = replace(fitted, thresholds=dict(zip(self.names, limits, strict=True)))
        return fitted.decided()

    def decided(self) -> Self:
        """These rows, with the decisions that follow from probabilities and thresholds."""
        if self.kind == "single-label":
            best, reached = calibration.best_labels(self.table, self.names, self.thresholds, self.cutoffs)
            return replace(self, chosen=np.where(reached, best, -1))
        limits = calibration.label_thresholds(self.thresholds, self.names, 0.5)
        return replace(self, chosen=(self.table >= limits).astype(np.int8))

    def calibrated(self) -> Json:
        """What `after_fit` fits, of the options `temperature`, `thresholds` and `conformal`."""
        fitted = self.after_fit()
        values = {name: getattr(fitted, name) for name in ("temperature", "thresholds", "conformal")}
        return {
            name: value for name, value in values.items() if value is not None and getattr(self, name) is None
        }


def _confusion(references: Any, decisions: Any, count: int) -> Any:
    """`count` lists by true id, by decided id; rows without a decision, -1, are left out."""
    from sklearn.metrics import confusion_matrix

    return confusion_matrix(references, decisions, labels=range(count)).tolist()
