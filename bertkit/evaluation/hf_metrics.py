"""The metrics of `metrics` as `evaluate.Metric` objects, and a user's own `evaluate` metric in bertkit.

`evaluate` is an extra, and importing it takes seconds: it is imported only when a metric is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np

from bertkit.errors import Problem, UserError
from bertkit.evaluation.intervals import Scores
from bertkit.evaluation.metrics import Kind, metric_names, multi_label, regression, single_label

if TYPE_CHECKING:
    import evaluate

FROM_PROBABILITIES = ("roc_auc", "neg_log_loss", "ece")


class UserMetric(Protocol):
    """An `evaluate.Metric`, or anything else that computes named numbers from predictions and references."""

    def compute(self, *, predictions: Any, references: Any) -> Mapping[str, Any] | None:
        """Named numbers, from one prediction and one reference per row."""


def as_evaluate_metric(name: str, labels: Sequence[str] | None = None, *, kind: Kind | None = None) -> evaluate.Metric:
    """One score of `metrics` as an `evaluate.Metric`, for `compute`, `add_batch` and `evaluate.combine`.

    `compute(predictions=..., references=...)` takes these, and returns {name: float or None}:

    - single-label: label ids (rows,) twice; `roc_auc`, `neg_log_loss` and `ece` take probabilities
      (rows, labels) as predictions.
    - multi-label: 0 and 1 (rows, labels) twice; the same three take probabilities, and `ece` decides at 0.5.
    - regression: numbers (rows,) twice.

    name: one of `metrics.metric_names`, such as "f1_macro", "spearman" or "f1/positive". labels: names, by id; needed
    for a per-label score; without them single-label averages go over the labels that occur, as in scikit-learn, instead
    of over all labels. kind: by default the first of single-label, multi-label, regression that has such a score.
    Raises UserError: `evaluate` is not installed, or there is no such score.
    """
    kinds: tuple[Kind, ...] = (kind,) if kind else get_args(Kind)
    scoring = next((each for each in kinds if name in metric_names(each, labels or ())), None)
    if scoring is None:
        known = sorted({known for each in kinds for known in metric_names(each, labels or ())})
        raise UserError(Problem("", f"there is no metric {name!r}", f"Known: {', '.join(known)}."))
    try:
        import datasets
        import evaluate
    except ModuleNotFoundError as error:
        raise UserError(
            Problem("", f"{error.name} is not installed", 'Install it: pip install "bertkit[torch]"')
        ) from error

    value = datasets.Value("float64" if scoring == "regression" else "int64")
    reference = datasets.Sequence(value) if scoring == "multi-label" else value
    prediction = datasets.Sequence(datasets.Value("float64")) if name in FROM_PROBABILITIES else reference
    info = evaluate.MetricInfo(
        description=f"bertkit's {name} ({scoring}), as bertkit.evaluation.metrics defines it.",
        citation="",
        features=datasets.Features({"predictions": prediction, "references": reference}),
    )

    def compute(_: object, predictions: Any, references: Any) -> Scores:
        return {name: _score(scoring, name, labels, predictions, references)}

    # `evaluate` names a metric, and a folder of its cache, after its class.
    members = {"_info": lambda _: info, "_compute": compute}
    return type(re.sub(r"\W", "_", name), (evaluate.Metric,), members)()


def compute_user_metric(metric: UserMetric, predictions: Any, references: Any) -> Scores:
    """The numbers of a user's own metric: {name: float}, None for one that is not finite.

    predictions, references: one per row, as the metric expects them. Raises UserError: what `compute` returned is not a
    dictionary of names and numbers.
    """
    result = metric.compute(predictions=predictions, references=references)
    if not isinstance(result, Mapping):
        raise UserError(
            Problem("", f"the metric returned {type(result).__name__}, not a dictionary", "Return {name: number}.")
        )
    bad = [key for key, value in result.items() if not (isinstance(key, str) and isinstance(value, Real))]
    if bad:
        values = ", ".join(f"{key!r}: {type(result[key]).__name__}" for key in bad)
        raise UserError(
            Problem("", f"the metric returned values that are not numbers ({values})", "Return {name: number}.")
        )
    return {key: float(value) if math.isfinite(value) else None for key, value in result.items()}


def _score(kind: Kind, name: str, labels: Sequence[str] | None, predictions: Any, references: Any) -> float | None:
    if kind == "regression":
        return regression(references, predictions).scores[name]
    given, truth = np.asarray(predictions), np.asarray(references)
    if name in FROM_PROBABILITIES or kind == "multi-label":
        names = labels or [str(i) for i in range(given.shape[1])]
        if kind == "single-label":
            return single_label(truth, given, names).scores[name]
        return multi_label(truth, given, given >= 0.5, names).scores[name]
    if labels is None:
        occurring, ids = np.unique(np.concatenate([truth, given]), return_inverse=True)
        labels, truth, given = [str(label) for label in occurring], ids[: len(truth)], ids[len(truth) :]
    certain = (given[:, None] == np.arange(len(labels))).astype(np.float64)
    return single_label(truth, certain, labels, given).scores[name]
