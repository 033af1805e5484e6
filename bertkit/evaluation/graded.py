"""What is reported about answers that were compared with their references: the contract, and scores by row
weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, Self

import numpy as np

from bertkit.errors import UserError, translated
from bertkit.evaluation.intervals import Interval, Scores, Weighted, bootstrap
from bertkit.text import Json, short_repr

Decisions = dict[str, tuple[Any, Any]]  # when -> confidences, and which are right


class Graded:
    """Answers compared with their references, once; everything that is reported about them."""

    @property
    def scored(self) -> Scored:
        """The metrics as a function of row weights."""
        raise NotImplementedError

    @cached_property
    def scores(self) -> Scores:
        """Metrics; None where one is not defined."""
        return self.scored.scores

    def after_fit(self) -> Self:
        """These rows, decided with what is fitted on them where no option fixes it. Default: nothing is
        fitted.
        """
        return self

    def calibrated(self) -> Json:
        """What `after_fit` fits: option -> value."""
        return {}

    def intervals(self, *, resamples: int = 1000, seed: int = 0) -> dict[str, Interval | None]:
        """Bootstrap 95 % intervals of the metrics; None where one is not defined in most resamples."""
        return bootstrap(self.scored.weighted, self.scored.rows, resamples=resamples, seed=seed)

    def details(self) -> Json:
        """What else results.json says about the answers, such as a confusion matrix."""
        return {}

    def decisions(self) -> Decisions:
        """`after` calibration, and `before` where it is known -> confidences `(decisions,)`, and which are
        right.
        """
        return {}

    def pairs(self) -> tuple[Any, Any]:
        """Predictions and references for a user's own `evaluate.Metric`. Raises UserError where there are
        none.
        """
        raise UserError(
            "metrics",
            "this task does not support metrics of your own: its answers are not single predictions",
            "Leave them out.",
        )


@dataclass(frozen=True)
class Scored(Graded):
    """Metrics as a function of row weights: weights of one give the scores, resampled weights their
    intervals.

    weighted: that function of weights `(rows, resamples)`. rows: how many rows there are. exact: scores whose
    last digit depends on the order of the sums; those are a library's.
    """

    weighted: Weighted
    rows: int
    exact: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def scored(self) -> Self:
        """These metrics: of answers without details they are all that is reported."""
        return self

    @cached_property
    def scores(self) -> Scores:
        values = self.weighted(np.ones((self.rows, 1)))
        scores = {name: float(value[0]) if np.isfinite(value[0]) else None for name, value in values.items()}
        return {**scores, **self.exact}


def compute_user_metric(metric: Any, predictions: Any, references: Any) -> Scores:
    """The numbers of a user's own metric, such as those of `evaluate`: {name: float}, None for one that is
    not finite.

    metric: anything whose `compute(predictions=…, references=…)` returns named numbers.
    predictions, references: one per row, as the metric expects them. Raises UserError where `compute` fails,
    or does not return a dictionary of names and numbers.
    """
    with translated(
        Exception,
        UserError,
        "metrics",
        f"{type(metric).__name__}.compute failed on these answers",
        "Correct the metric, or leave it out.",
    ):
        result = metric.compute(predictions=predictions, references=references)
    if not isinstance(result, Mapping) or not all(
        isinstance(k, str) and isinstance(v, Real) for k, v in result.items()
    ):
        raise UserError(
            "metrics",
            f"the metric returned {short_repr(result)}, not names and numbers",
            "Return {name: number}.",
        )
    return {key: float(value) if math.isfinite(value) else None for key, value in result.items()}


def all_scores(graded: Graded, metrics: Sequence[Any]) -> Scores:
    """The task's scores and those of the user's own metrics.

    Raises UserError like `compute_user_metric`, and where two scores have the same name.
    """
    scores = dict(graded.scores)
    for metric in metrics:
        numbers = compute_user_metric(metric, *graded.pairs())
        if taken := sorted(numbers.keys() & scores.keys()):
            raise UserError(
                "metrics",
                f"{type(metric).__name__}.compute returned a score called {', '.join(taken)}, which "
                "exists already",
                "Choose another name.",
            )
        scores |= numbers
    return scores
