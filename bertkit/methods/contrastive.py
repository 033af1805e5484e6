"""Contrastive fine-tuning of an encoder: a text is pulled towards the prototype of its label, and away from
the others.

A prototype is a vector of length 1 for each label. It starts as the mean of its texts and its name (Snell et
al. 2017), and is learned with the encoder (proxies, Movshovitz-Attias et al. 2017).
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch.nn import functional as F

from bertkit.data.on_disk import first_features
from bertkit.data.rows import Columns
from bertkit.encoding.padding import Collator, model_inputs
from bertkit.evaluation.intervals import Floats
from bertkit.inference.runner import Runner
from bertkit.methods.head import examples_of, fit_head, label_words, names_of, with_head
from bertkit.methods.linear import Linear
from bertkit.models.cpu_kernels import faster
from bertkit.models.device import attention_kernels, autocast
from bertkit.models.malloc import memory_kept
from bertkit.models.trained_parts import freeze
from bertkit.sections import Freeze
from bertkit.tasks.class_labels import weight_tensor
from bertkit.tasks.text_classification import TextClassification
from bertkit.text import Json, counted

logger = logging.getLogger(__name__)

SCALE = 20.0  # factor on cosines: 1 / temperature
# of AdamW: encoder, prototypes
LEARNING_RATE = 1e-4
PROTOTYPES = 1e-3
WEIGHT_DECAY = 0.01
# C of a linear head: no held-out row shows which is best, since the encoder has learned them all.
STRENGTH = 16.0
PASSES = 6  # over the texts
MIN_STEPS = 20
MAX_STEPS = 400
WARMUP = 0.1  # of the steps; the learning rate then falls to zero, linearly
TEXTS = 64  # of a batch
CLIPPING = 1.0  # the largest norm of the encoder's gradients
MICRO = 24  # texts of similar length that the encoder reads at a time


class Texts(NamedTuple):
    """Model inputs of texts, and what labels they have."""

    inputs: dict[str, list[Any]]  # by name, unpadded
    targets: Floats  # `(texts, labels)`, 0 or 1


def fit(runner: Runner, features: Dataset, seed: int) -> tuple[Any, Json]:
    """The runner's model, its encoder and head fitted on these features, and the facts of this training.

    The head of one label per text is the softmax that the encoder was trained with; of several, a linear
    model.
    """
    started = time.monotonic()
    task: TextClassification = runner.task  # type: ignore[assignment]
    single = task.kind == "single-label"
    words = label_words(task)
    starts = first_features(features)
    columns = task.examples(features, starts.tolist())
    inputs = model_inputs(task.tokenizer, columns)
    targets = np.asarray(columns["labels"])
    targets = np.eye(len(task.names))[targets] if single else targets
    if words:
        named: Any = task.encode(Columns({"text": words}))
        more = model_inputs(task.tokenizer, task.examples(named, range(len(words))))
        inputs = {name: [*values, *more[name]] for name, values in inputs.items()}
        targets = np.concatenate([targets, np.eye(len(words))])
    steps, linear = pull_to_prototypes(runner, Texts(inputs, targets), seed)
    if single:
        linear = replace(linear, with_names=bool(words))
    else:
        linear = fit_head(task, examples_of(runner, features), names_of(runner), seed, STRENGTH)
    return with_head(runner.model, linear, features, steps, started)


def pull_to_prototypes(runner: Runner, texts: Texts, seed: int) -> tuple[int, Linear]:
    """Train the encoder of the runner's model; returns the number of steps, and the softmax: the scaled
    prototypes, and as bias the log of each label's share of the texts.

    The loss of a text is the cross-entropy of a softmax over its scaled cosines with the prototypes, plus
    biases; with several labels, the mean over them. The embeddings stay as they are, and nothing is dropped
    out. A pure function of model, texts and seed.
    """
    task: Any = runner.task
    model: Any = freeze(runner.model, Freeze(embeddings=True))
    device = next(model.parameters()).device
    model.eval()
    targets = torch.from_numpy(texts.targets).to(device, torch.float32)
    with torch.no_grad():
        means = targets.T @ F.normalize(_vectors(runner, texts, np.arange(len(targets))), dim=-1)
    bias = ((targets.sum(0) + 1) / (len(targets) + targets.shape[1])).log()
    prototypes = torch.nn.Parameter(F.normalize(means, dim=-1))
    encoder = [
        p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("classifier.")
    ]
    groups = [{"params": encoder, "lr": LEARNING_RATE}, {"params": [prototypes], "lr": PROTOTYPES}]
    optimizer = torch.optim.AdamW(groups, weight_decay=WEIGHT_DECAY, fused=True)
    batches = min(ceil(len(targets) / TEXTS), MAX_STEPS)
    steps = min(max(PASSES * batches, MIN_STEPS), MAX_STEPS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _factor(step, steps))
    targets /= targets.sum(1, keepdim=True).clamp(min=1)
    factors = weight_tensor(task.options.class_weights, task.names, targets)
    losses = list[float]()
    draw = np.random.default_rng(seed)
    scaler = torch.amp.GradScaler(device.type, enabled=runner.precision == "fp16")
    with memory_kept(), faster(device), attention_kernels(device):
        for step in range(steps):
            if step % batches == 0:
                order = draw.permutation(len(targets))
            rows = order[step % batches * TEXTS :][:TEXTS]
            cosines = F.normalize(_vectors(runner, texts, rows), dim=-1) @ F.normalize(prototypes, dim=-1).T
            loss = F.cross_entropy(SCALE * cosines + bias, targets[rows], weight=factors)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(encoder, CLIPPING)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    logger.info("contrastive: %s, loss %.4f to %.4f", counted(steps, "step"), losses[0], losses[-1])
    final = F.normalize(prototypes.detach(), dim=-1)
    return steps, Linear(SCALE * final.cpu().double().numpy(), bias.cpu().double().numpy(), None)


def _factor(step: int, steps: int) -> float:
    """The factor of the learning rates at this step."""
    warm = ceil(WARMUP * steps)
    return (step + 1) / warm if step < warm else (steps - step) / max(steps - warm, 1)


def _vectors(runner: Runner, texts: Texts, chosen: np.ndarray) -> torch.Tensor:
    """The vectors of these texts `(texts, size)`, with gradients; texts of similar length are padded
    together.
    """
    collate = Collator.of(runner.task.tokenizer, runner.task.padding)
    device = next(runner.model.parameters()).device
    order = chosen[np.argsort([len(texts.inputs["input_ids"][text]) for text in chosen], kind="stable")]
    vectors = []
    for start in range(0, len(order), MICRO):
        rows = order[start : start + MICRO]
        batch = collate(Columns(texts.inputs)[rows.tolist()], device)
        with autocast(device, runner.precision):
            vectors.append(runner.task.forward(runner.model, batch).vectors)
    places = {text: place for place, text in enumerate(order.tolist())}
    return torch.cat(vectors)[[places[text] for text in chosen.tolist()]]
