"""Agreement of an exported model with the trained one: outputs, answers and scores on the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from bertkit.data.schema import Answer
from bertkit.encoding.padding import Arrays
from bertkit.exports.graph import Reduced
from bertkit.inference.onnx_session import OnnxModel
from bertkit.inference.predictor import Predictor
from bertkit.inference.runner import Runner
from bertkit.text import Json

CLOSE = 1e-4  # of outputs and scores in fp32; of numbers beyond 1, relative to them
RANKED = ("n_best", "found")  # lists in which items of equal score may change places


def agreement(ours: Predictor, exported: OnnxModel, rows: Dataset) -> tuple[Json, list[Answer]]:
    """Figures as in `compared` on these rows, in the same batches; and the torch model's answers."""
    task = ours.task
    worst = [0.0]
    reduced = Reduced(task, ours.model, extra=False)

    def both(batch: Arrays) -> Arrays:
        with torch.inference_mode():
            outputs = reduced({name: torch.from_numpy(values) for name, values in batch.items()})
        arrays = {name: values.numpy() for name, values in outputs.items()}
        worst.append(output_difference(arrays, exported(batch)))
        return arrays

    expected = list(task.answer(rows, Runner(task, both, None, "fp32", ours.batch_size)))
    return compared(ours, exported, rows, expected, max(worst)), expected


def compared(
    ours: Predictor,
    exported: OnnxModel,
    rows: Dataset,
    expected: Sequence[Answer],
    difference: float,
    close: float = CLOSE,
) -> Json:
    """The exported model compared with the expected answers. close: difference up to which numbers are equal.

    `output_difference` is the largest over all outputs of floating point, `answers_differ` a number of rows,
    `drop` by how much the headline metric fell: NaN if only one of the models has it. `answered` is the share
    of rows that have a decision.
    """
    task = ours.task
    answers = list(task.answer(rows, replace(ours, model=exported, device=None).predict_features))
    graded = {"torch": task.grade(expected, rows), "onnx": task.grade(answers, rows)}
    metrics = {name: grades.scores for name, grades in graded.items()}
    before, after = (scores.get(task.metrics[0]) for scores in metrics.values())
    undefined = 0.0 if before is after else math.nan
    return {
        "rows": len(rows),
        "output_difference": difference,
        "answers_differ": sum(not same(*pair, close) for pair in zip(expected, answers, strict=True)),
        "metrics": metrics,
        "answered": {name: grades.details().get("answered", 1.0) for name, grades in graded.items()},
        "drop": undefined if before is None or after is None else before - after,
    }


def output_difference(ours: Arrays, theirs: Arrays) -> float:
    """The largest difference over floating-point outputs, relative to numbers beyond 1.

    Infinite for NaN in one of them, and for another shape.
    """
    worst = 0.0
    for name, one in ours.items():
        other = theirs[name]
        if one.shape != other.shape:
            return math.inf
        if one.size and one.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                apart = np.where(one == other, 0.0, np.abs(one - other) / np.maximum(np.abs(one), 1.0))
            worst = max(worst, float(np.nan_to_num(apart, nan=np.inf).max()))
    return worst


def same(one: Any, other: Any, close: float = CLOSE, name: str = "") -> bool:
    """Whether two answers are equal, numbers up to `close`; of ranked lists, whose items may swap, only the
    scores.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key], close, key) for key in one)
    if name == "rank":  # moves with any near-tie; scores and metrics are compared
        return True
    if name in RANKED:
        one, other = (list(map(itemgetter("score"), ranked)) for ranked in (one, other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair, close) for pair in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= close * max(abs(one), 1.0)
    return bool(one == other)
