"""Text classification from few rows: a linear model on the vectors of an encoder."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from bertkit.data.rows import Columns
from bertkit.data.table import numbers
from bertkit.evaluation.intervals import Floats
from bertkit.inference.runner import Runner
from bertkit.tasks.base import Task
from bertkit.tasks.text_classification import ON_VECTORS, TextClassification
from bertkit.training.contrastive import STRENGTH, pull_together
from bertkit.training.linear import Examples, Linear, fit_linear, words_of

logger = logging.getLogger(__name__)


def applies(task: Task) -> bool:
    """Whether the task's model is trained by `learn`."""
    return isinstance(task, TextClassification) and task.options.method in ON_VECTORS


def learn(runner: Runner, features: Dataset, seed: int) -> tuple[Any, dict[str, Any]]:
    """The runner's model, its head fitted on these features, and the facts of this training."""
    started, task = time.monotonic(), runner.task
    steps = pull_together(runner, features, seed) if task.options.method == "contrastive" else 0
    examples = examples_of(runner, features)
    linear = fit_head(task, examples, names_of(runner), seed, STRENGTH if steps else None)
    head: Any = runner.model.classifier.linear
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(linear.weight))
        head.bias.copy_(torch.from_numpy(linear.bias))
    names = ", with the labels' names as further rows" if linear.with_names else ""
    logger.info("head: fitted on %d rows, C = %g%s", len(examples.targets), linear.strength, names)
    facts = {"steps": steps, "seconds": time.monotonic() - started, "best_step": None}
    return runner.model, facts | {"C": linear.strength, "with_names": linear.with_names}


def fit_head(task: Any, examples: Examples, names: Examples | None, seed: int, strength: float | None = None) -> Linear:
    """`fit_linear` as the task's options have it."""
    by_name = task.options.class_weights or task.options.pos_weight or {}
    weights = {label: by_name[name] for label, name in enumerate(task.names)} if by_name else None
    return fit_linear(task.kind, examples, len(task.names), names=names, weights=weights, seed=seed, strength=strength)


def examples_of(runner: Runner, features: Dataset) -> Examples:
    """The vectors of the rows of these features, each the mean over its windows, and the targets."""
    _, starts, counts = np.unique(numbers(features, "row"), return_index=True, return_counts=True)
    vectors = np.add.reduceat(_vectors(runner, features), starts) / counts[:, None]
    return Examples(vectors, np.asarray(features["labels"][:])[starts])


def names_of(runner: Runner) -> Examples | None:
    """The names of the labels as rows; None where texts are pairs, or where the names say nothing."""
    task: TextClassification = runner.task  # type: ignore[assignment]
    words = [] if task.options.pair else words_of(task.names)
    if not words:
        return None
    ids = np.arange(len(words))
    targets = np.eye(len(words)) if task.kind == "multi-label" else ids
    return Examples(_vectors(runner, task.encode(Columns({"text": words}))), targets)


def _vectors(runner: Runner, features: Any) -> Floats:
    items = replace(runner, keep=lambda outputs, batch: outputs.vectors.cpu().numpy())(features)
    return np.stack(items).astype(np.float64)
