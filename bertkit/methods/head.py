"""Text classification from few rows: a linear model on the vectors of an encoder."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from bertkit.data.on_disk import numbers
from bertkit.data.rows import Columns
from bertkit.evaluation.intervals import Floats
from bertkit.inference.runner import Runner
from bertkit.methods.linear import Examples, Linear, fit_linear, words_of
from bertkit.tasks.text_classification import TextClassification
from bertkit.text import Json, counted

logger = logging.getLogger(__name__)


def fit(runner: Runner, features: Dataset, seed: int) -> tuple[Any, Json]:
    """The runner's model, its head fitted on these features, and the facts of this training."""
    started = time.monotonic()
    linear = fit_head(runner.task, examples_of(runner, features), names_of(runner), seed)
    return with_head(runner.model, linear, features, 0, started)


def with_head(model: Any, linear: Linear, features: Dataset, steps: int, started: float) -> tuple[Any, Json]:
    """The model with this head, and the facts of its training, which are logged.

    steps: of the encoder. started: by time.monotonic.
    """
    layer = model.classifier.linear
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(linear.weight))
        layer.bias.copy_(torch.from_numpy(linear.bias))
    strength = "" if linear.strength is None else f", C = {linear.strength:g}"
    names = ", with the labels' names as further rows" if linear.with_names else ""
    logger.info(
        "head: learned from %s%s%s", counted(len(np.unique(numbers(features, "row"))), "row"), strength, names
    )
    facts = {"steps": steps, "seconds": time.monotonic() - started, "best_step": None}
    return model, facts | {"C": linear.strength, "with_names": linear.with_names}


def fit_head(
    task: Any, examples: Examples, names: Examples | None, seed: int, strength: float | None = None
) -> Linear:
    """`fit_linear` as the task's options have it, on vectors divided by their mean length, for which C is
    meant.
    """
    by_name = task.options.class_weights or {}
    weights = {label: by_name[name] for label, name in enumerate(task.names)} if by_name else None
    length = float(np.linalg.norm(examples.vectors, axis=1).mean()) or 1.0
    rows = examples.scaled(1 / length)
    names = names and names.scaled(1 / length)
    fitted = fit_linear(
        task.kind, rows, len(task.names), names=names, weights=weights, seed=seed, strength=strength
    )
    return replace(fitted, weight=fitted.weight / length)


def examples_of(runner: Runner, features: Dataset) -> Examples:
    """The vectors of the rows of these features, each the mean over its windows, and the targets."""
    starts, counts = np.unique(numbers(features, "row"), return_index=True, return_counts=True)[1:]
    vectors = np.add.reduceat(_vectors(runner, features), starts) / counts[:, None]
    return Examples(vectors, np.asarray(features["labels"][:])[starts])


def names_of(runner: Runner) -> Examples | None:
    """The names of the labels as rows; None where texts are pairs, or where the names say nothing."""
    task: TextClassification = runner.task  # type: ignore[assignment]
    if not (words := label_words(task)):
        return None
    ids = np.arange(len(words))
    targets = np.eye(len(words)) if task.kind == "multi-label" else ids
    return Examples(_vectors(runner, task.encode(Columns({"text": words}))), targets)


def label_words(task: TextClassification) -> list[str]:
    """The names of the labels as texts; none where texts are pairs, or where the names say nothing."""
    return [] if task.options.pair else words_of(task.names)


def _vectors(runner: Runner, features: Any) -> Floats:
    items = replace(runner, keep=lambda outputs, batch: outputs.vectors.cpu().numpy())(features)
    return np.stack(items).astype(np.float64)
