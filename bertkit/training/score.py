"""Scores of a trained model: by split beside baselines, and over seeds."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from datasets import Dataset

from bertkit.data.origin import Origin
from bertkit.data.table import Data
from bertkit.evaluation.graded import Graded
from bertkit.evaluation.intervals import Scores
from bertkit.files import written_aside
from bertkit.inference.evaluate import score
from bertkit.inference.predictor import Predictor
from bertkit.run import Run
from bertkit.tasks.base import HeldOut
from bertkit.text import Json
from bertkit.training.job import Job


def fitted_on(data: Data) -> list[tuple[Dataset, Dataset]]:
    """Train and validation, as `Task.baselines` takes them; nothing without validation rows."""
    return [(data.rows["train"], data.rows["validation"])] if "validation" in data.rows else []


class OutOfFold(NamedTuple):
    """The answers of cross-validation to the training rows, graded; and what results.json has of them."""

    graded: Graded
    scores: Json  # as those of a split
    baselines: dict[str, Scores]
    folds: Json
    fitted_on: (
        HeldOut  # where thresholds are those of out-of-fold answers: of each fold the other rows, and its own
    )


def score_splits(
    run: Run, predictor: Predictor, job: Job, chosen: Collection[str], held_out: HeldOut
) -> tuple[dict[str, Json], Json]:
    """Write predictions/SPLIT.jsonl for all rows not trained on; scores and baselines of the chosen splits.

    held_out: what baselines are fitted on, as `Task.baselines` takes them.
    """
    data = job.data
    splits = {}
    baselines = {}
    answers: Iterable[Any]
    for split, rows in data.rows.items():
        if split in chosen:
            answers, splits[split] = score(predictor, rows, job.extensions.metrics, job.recipe.data.by)
            baselines[split] = job.task.baselines(data.rows["train"], rows, held_out)
            for attachment in job.attachments:
                baselines[split] |= attachment.score_references(rows, job.extensions.metrics)
        elif split != "train":
            answers = predictor.task.answer(rows, predictor.predict_features)
        else:
            continue
        write_predictions(run, split, rows, data.origins[split], answers)
    return splits, baselines


def write_predictions(
    run: Run,
    split: str,
    rows: Dataset,
    origin: Origin,
    answers: Iterable[Any],
    more: Mapping[str, Sequence[Any]] = {},
) -> None:
    """Write predictions/SPLIT.jsonl: a line per row with its location and answer. more: further columns."""
    with written_aside(run.predictions(split)) as file:
        for index, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            further = {name: values[index] for name, values in more.items()}
            line = {**row, "location": origin.public(index), **further, "answer": answer}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def over_seeds(outcomes: list[Json]) -> dict[str, dict[str, dict[str, float]]]:
    """split -> metric -> mean and sample standard deviation over the seeds, where each seed has the
    metric.
    """
    summary = {}
    for split in outcomes[0]["metrics"]:
        summary[split] = mean_and_sd([outcome["metrics"][split] for outcome in outcomes])
    return summary


def mean_and_sd(scores: Sequence[Scores]) -> dict[str, dict[str, float]]:
    """Metric -> mean and sample standard deviation, where it is defined each time."""
    summary = {}
    for name in scores[0]:
        cells = (metrics.get(name) for metrics in scores)
        values = [value for value in cells if value is not None]
        if len(values) == len(scores):
            summary[name] = {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else 0.0}
    return summary
