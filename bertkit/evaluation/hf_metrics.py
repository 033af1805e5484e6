"""A user's own metrics, such as those of the library `evaluate`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from bertkit.errors import Problem, UserError
from bertkit.evaluation.graded import Graded
from bertkit.evaluation.intervals import Scores
from bertkit.text import short_repr


def compute_user_metric(metric: Any, predictions: Any, references: Any) -> Scores:
    """The numbers of a user's own metric: {name: float}, None for one that is not finite.

    metric: anything whose `compute(predictions=…, references=…)` returns named numbers.
    predictions, references: one per row, as the metric expects them. Raises UserError: what `compute` returned is not a
    dictionary of names and numbers.
    """
    result = metric.compute(predictions=predictions, references=references)
    if not isinstance(result, Mapping) or not all(
        isinstance(k, str) and isinstance(v, Real) for k, v in result.items()
    ):
        what = f"the metric returned {short_repr(result)}, not names and numbers"
        raise UserError(Problem("", what, "Return {name: number}."))
    return {key: float(value) if math.isfinite(value) else None for key, value in result.items()}


def all_scores(graded: Graded, metrics: Sequence[Any]) -> Scores:
    """The task's scores and those of the user's own metrics. Raises UserError like `compute_user_metric`."""
    scores = dict(graded.scores)
    for metric in metrics:
        scores |= compute_user_metric(metric, *graded.pairs())
    return scores
