"""Contrastive fine-tuning of an encoder: vectors of texts with a label in common are pulled together, others apart.

The first step of SetFit (Tunstall et al. 2022), with all pairs of a batch (supervised contrastive learning, Khosla et
al. 2020) in place of sampled pairs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from math import ceil
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from bertkit.data.table import numbers
from bertkit.encoding.padding import Collator
from bertkit.inference.runner import Runner
from bertkit.models.cpu_kernels import faster, memory_kept
from bertkit.models.heads.vector_losses import supervised_contrastive
from bertkit.models.trained_parts import freeze
from bertkit.sections import Freeze
from bertkit.text import counted

logger = logging.getLogger(__name__)

SCALE = 15.0  # factor on cosines: 1 / temperature
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01  # of AdamW
PASSES, MAX_STEPS = 6, 400  # over the rows; steps at most
WARMUP = 0.1  # of the steps; the learning rate then falls to zero, linearly
LABELS, ROWS = 32, 64  # of a batch
CLIPPING = 1.0  # the largest norm of the gradients
STRENGTH = 16.0  # C of the head: no held-out row shows which is best, since the encoder has learned them all
MICRO = 24  # texts of similar length that the encoder reads at a time

Ints = np.ndarray[Any, np.dtype[np.int64]]


def pull_together(runner: Runner, features: Dataset, seed: int) -> int:
    """Train the encoder of the runner's model on the first window of each row; returns the number of steps.

    The embeddings stay as they are, and nothing is dropped out. A pure function of model, features and seed.
    """
    _, starts = np.unique(numbers(features, "row"), return_index=True)
    of_rows = np.asarray(features["labels"][:])[starts]
    targets = of_rows > 0 if of_rows.ndim > 1 else of_rows[:, None] == np.unique(of_rows)
    groups = [rows for column in targets.T if len(rows := np.flatnonzero(column)) > 1]
    if not groups:
        logger.warning("contrastive: no label has two rows, so the encoder stays as it is")
        return 0
    steps = min(ceil(PASSES * len(starts) / ROWS), MAX_STEPS)
    model: Any = freeze(runner.model, Freeze(embeddings=True))
    model.eval()
    learned = [p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("classifier.")]
    optimizer = torch.optim.AdamW(learned, LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _factor(step, steps))
    losses = []
    with memory_kept(), faster(_device(runner)):
        for rows in islice(batches(groups, np.random.default_rng(seed)), steps):
            alike = torch.from_numpy((targets[rows].astype(np.int64) @ targets[rows].T) > 0)
            vectors = _vectors(runner, features, starts[rows])
            loss = supervised_contrastive(vectors, alike.to(vectors.device), SCALE)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(learned, CLIPPING)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    logger.info("contrastive: %s, loss %.4f to %.4f", counted(steps, "step"), losses[0], losses[-1])
    return steps


def batches(groups: Sequence[Ints], rng: np.random.Generator) -> Iterator[Ints]:
    """Rows of each batch, sorted, without end: of up to LABELS groups the same number, of smaller ones all.

    Groups, and the rows of each, take turns in an order that is drawn again each time. A row may be in several groups.
    """
    order, turns = _Turns(np.arange(len(groups)), rng), [_Turns(rows, rng) for rows in groups]
    labels = min(LABELS, len(groups))
    each = max(ROWS // labels, 2)
    while True:
        yield np.unique(np.concatenate([turns[group].take(each) for group in order.take(labels)]))


class _Turns:
    """Values that take turns, in an order that is drawn again each time; never one twice in what is taken at a time."""

    def __init__(self, values: Ints, rng: np.random.Generator) -> None:
        self.values, self.rng = values, rng
        self.queue = deque[int]()

    def take(self, count: int) -> list[int]:
        """So many values, or all of them if there are fewer."""
        taken, later = list[int](), list[int]()
        while len(taken) < min(count, len(self.values)):
            if not self.queue:
                self.queue.extend(self.rng.permutation(self.values).tolist())
            value = self.queue.popleft()
            (later if value in taken else taken).append(value)
        self.queue.extendleft(reversed(later))
        return taken


def _factor(step: int, steps: int) -> float:
    """Of the learning rate."""
    warm = ceil(WARMUP * steps)
    return (step + 1) / warm if step < warm else (steps - step) / max(steps - warm, 1)


def _device(runner: Runner) -> torch.device:
    return next(runner.model.parameters()).device  # type: ignore[no-any-return]


def _vectors(runner: Runner, features: Dataset, chosen: Ints) -> torch.Tensor:
    """The vectors of these features `(features, size)`, with gradients; texts of similar length are padded together."""
    columns = runner.task.examples(features, chosen.tolist())
    inputs = {name: columns[name] for name in runner.task.tokenizer.model_input_names if name in columns}
    collate, device = Collator.of(runner.task.tokenizer, runner.task.padding), _device(runner)
    order = np.argsort(columns["length"], kind="stable")
    vectors = []
    for start in range(0, len(order), MICRO):
        batch = collate({n: [values[at] for at in order[start : start + MICRO]] for n, values in inputs.items()})
        with torch.autocast(device.type, torch.bfloat16, enabled=runner.precision == "bf16"):
            outputs = runner.task.forward(runner.model, {name: each.to(device) for name, each in batch.items()})
        vectors.append(outputs.vectors)
    return torch.cat(vectors)[torch.from_numpy(np.argsort(order)).to(device)]
