"""What distillation gains and costs: the teacher beside the student, measured in one process."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from bertkit.inference.evaluate import score
from bertkit.inference.predictor import Predictor

if TYPE_CHECKING:
    from datasets import Dataset

    from bertkit.training.distillation import Teacher


ALONE, TOGETHER, REPEATS = 20, 64, 3  # rows that are timed one by one, and in batches of 32


def compare_with_teacher(
    teacher: Teacher, folder: Path, student: Predictor, rows: Dataset, graded: dict[str, Any], headline: str
) -> dict[str, Any]:
    """Teacher beside student, for results.json: sizes, speed on these rows in this process, and the headline metric.

    folder: of the student. graded: what `evaluate.score` says of the student on these rows.
    """
    sides = {
        "teacher": _side(teacher.predictor, teacher.folder, rows, score(teacher.predictor, rows)[1], headline),
        "student": _side(student, folder, rows, graded, headline),
    }
    measures = ("parameters", "megabytes", "latency_ms", "rows_per_second", "score")
    pairs = {name: (sides["student"][name], sides["teacher"][name]) for name in measures}
    ratios = {name: ours / theirs if ours is not None and theirs else None for name, (ours, theirs) in pairs.items()}
    told = {"headline": headline, "rows": len(rows), "device": student.device.type, "threads": torch.get_num_threads()}
    return {**told, **sides, "student / teacher": ratios}


def _side(own: Predictor, folder: Path, rows: Dataset, graded: dict[str, Any], headline: str) -> dict[str, Any]:
    alone = [rows.select([index]) for index in range(min(len(rows), ALONE))]
    together = rows.select(range(min(len(rows), TOGETHER)))
    files = [*folder.glob("*.safetensors"), *folder.glob("[0-9]_*/*.safetensors")]
    return {
        "parameters": sum(parameter.numel() for parameter in own.model.parameters()),
        "megabytes": sum(file.stat().st_size for file in files) / 1e6,
        "latency_ms": 1000 * _seconds(own, alone, 1),
        "rows_per_second": len(together) / _seconds(own, [together] * REPEATS, 32),
        "precision": own.precision,
        "score": graded["metrics"].get(headline),
        "interval": graded["intervals"].get(headline),
    }


def _seconds(own: Predictor, parts: list[Dataset], batch_size: int) -> float:
    """The median time that one of these parts takes from text to answer; a first one, to warm up, is not counted."""
    predict = replace(own, batch_size=batch_size).predict_features
    times = []
    for part in [parts[0], *parts]:
        started = time.perf_counter()
        list(own.task.answer(part, predict))
        times.append(time.perf_counter() - started)
    return median(times[1:])
