"""The metrics of `metrics` as `evaluate.Metric` objects, and a user's own `evaluate` metric in bertkit.

`evaluate` is an extra, and importing it takes seconds: it is imported only when a metric is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from bertkit.errors import Problem, UserError, extras_required
from bertkit.evaluation.graded import Graded
from bertkit.evaluation.intervals import Scores
from bertkit.evaluation.metrics import PROBABILISTIC, Kind, metric_names, scored
from bertkit.text import short_repr

if TYPE_CHECKING:
    import evaluate


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
    with extras_required():
        import datasets
        import evaluate

    value = datasets.Value("float64" if scoring == "regression" else "int64")
    reference = datasets.Sequence(value) if scoring == "multi-label" else value
    prediction = datasets.Sequence(datasets.Value("float64")) if name in PROBABILISTIC else reference
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


def compute_user_metric(metric: Any, predictions: Any, references: Any) -> Scores:
    """The numbers of a user's own metric: {name: float}, None for one that is not finite.

    metric: an `evaluate.Metric`, or anything whose `compute(predictions=…, references=…)` returns named numbers.
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


def _score(kind: Kind, name: str, labels: Sequence[str] | None, predictions: Any, references: Any) -> float | None:
    table, truth, decisions = np.asarray(predictions), np.asarray(references), None
    if kind == "regression":
        table = table[:, None]
    elif kind == "single-label" and name not in PROBABILISTIC:
        decisions = table
        if labels is None:
            occurring, ids = np.unique(np.concatenate([truth, decisions]), return_inverse=True)
            labels, truth, decisions = [str(label) for label in occurring], ids[: len(truth)], ids[len(truth) :]
        table = decisions[:, None] == np.arange(len(labels))
    names = labels or [str(i) for i in range(table.shape[1])]
    return scored(kind, truth, table, names, decisions).scores[name]
