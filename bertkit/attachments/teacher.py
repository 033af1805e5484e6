"""Teacher and student, measured one after the other on the same rows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from datasets import Dataset

from bertkit.engine.attachment import Finished
from bertkit.inference.evaluate import score
from bertkit.inference.predictor import Predictor

SINGLE_ROWS, BATCHED_ROWS, REPEATS = 20, 64, 3  # rows timed one by one, and in batches of 32
MEASURES = ("parameters", "megabytes", "latency_ms", "rows_per_second", "score")


def compare_with_teacher(teacher: Predictor, folder: Path, finished: Finished) -> dict[str, Any]:
    """Both models' sizes, speed on the split's rows in this process, and headline metric; the ratios student / teacher.

    folder: of the teacher.
    """
    rows, headline, student = finished.rows, finished.headline, finished.predictor
    theirs = _measured(teacher, folder, rows, score(teacher, rows, finished.metrics)[1], headline)
    ours = _measured(student, finished.folder, rows, finished.graded, headline)
    return {
        "split": finished.split,
        "headline": headline,
        "rows": len(rows),
        "device": student.device.type,
        "threads": torch.get_num_threads(),
        "teacher": theirs,
        "student": ours,
        "student / teacher": {
            name: ours[name] / theirs[name] if ours[name] is not None and theirs[name] else None for name in MEASURES
        },
    }


def _measured(
    predictor: Predictor, folder: Path, rows: Dataset, graded: Mapping[str, Any], headline: str
) -> dict[str, Any]:
    single = [rows.select([index]) for index in range(min(len(rows), SINGLE_ROWS))]
    batched = rows.select(range(min(len(rows), BATCHED_ROWS)))
    files = [*folder.glob("*.safetensors"), *folder.glob("[0-9]_*/*.safetensors")]
    return {
        "parameters": sum(parameter.numel() for parameter in predictor.model.parameters()),
        "megabytes": sum(file.stat().st_size for file in files) / 1e6,
        "latency_ms": 1000 * _seconds(predictor, single, 1),
        "rows_per_second": len(batched) / _seconds(predictor, [batched] * REPEATS, 32),
        "precision": predictor.precision,
        "score": graded["metrics"].get(headline),
        "interval": graded["intervals"].get(headline),
    }


def _seconds(predictor: Predictor, parts: list[Dataset], batch_size: int) -> float:
    """The median time for one of these parts, from text to answer; the first runs once more, to warm up."""
    runner = replace(predictor, batch_size=batch_size).predict_features
    times = []
    for part in [parts[0], *parts]:
        started = time.perf_counter()
        list(predictor.task.answer(part, runner))
        times.append(time.perf_counter() - started)
    return median(times[1:])
