"""A small model learns from a larger one: its outputs, computed once and kept, stand beside the labels."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from bertkit.cache import cache_root, cached_folder, model_key
from bertkit.encoding.padding import SOFT, Collator
from bertkit.errors import ModelError, Problem, UserError
from bertkit.inference.predictor import (
    Predictor,
    load_as,
    model_folder,
    require_torch_model,
)
from bertkit.inference.settings import resolve_max_length
from bertkit.models.encoder import Encoder
from bertkit.models.heads import soft_losses
from bertkit.training.soft_targets import SOFT_TARGETS

if TYPE_CHECKING:
    from datasets import Dataset

    from bertkit.sections import Distillation
    from bertkit.tasks.base import Batch, Task


logger = logging.getLogger(__name__)

WHERE = "distillation.teacher"
FILE = "soft.arrow"
CHUNK = 4096  # features whose outputs are in memory at a time


@dataclass(frozen=True)
class Teacher:
    """A trained model of the same task, in its own precision."""

    folder: Path
    predictor: Predictor

    def soft(self, batch: Batch) -> tuple[Any, Tensor]:
        """The model's outputs for a batch on its device, and its soft targets, `(features, numbers)`."""
        own = self.predictor
        with torch.no_grad(), torch.autocast(own.device.type, torch.bfloat16, enabled=own.precision == "bf16"):
            outputs = own.task.forward(own.model, batch)
            return outputs, SOFT_TARGETS[own.task.name].outputs(own.task, outputs, batch)


def find_teacher(spec: Distillation, task: Task) -> Teacher:
    """The teacher that a recipe names. Raises ModelError with all in which it differs from what the student needs."""
    try:
        folder = model_folder(spec.teacher)
        own = require_torch_model(load_as(task.name, folder), folder)
    except UserError as error:
        raise ModelError([each._replace(where=f"{WHERE}, {each.where}") for each in error.problems]) from error
    problems = []
    if task.name not in SOFT_TARGETS:
        raise UserError(Problem("distillation", f"{task.name} cannot be distilled"))
    if own.task.name != task.name:
        problems.append(Problem(WHERE, f"{spec.teacher} was trained for {own.task.name}, not {task.name}"))
    else:
        must_match = SOFT_TARGETS[task.name].must_match
        for option, ours in must_match(task).items():
            if (theirs := must_match(own.task)[option]) != ours:
                verb = "are" if isinstance(ours, list) else "is"
                what = f"{option} {verb} {_listed(theirs)}, the student's {verb} {_listed(ours)}"
                problems.append(Problem(WHERE, what, f"Write  task: {{{option}: …}}  as the teacher has it."))
    ours, theirs = (each.tokenizer for each in (task, own.task))
    if ours.get_vocab() != theirs.get_vocab() or ours.model_input_names != theirs.model_input_names:
        what = f"its word pieces ({len(theirs):,}) are not the student's ({len(ours):,})"
        problems.append(Problem(WHERE, what, "Take a student with the teacher's vocabulary."))
    most = resolve_max_length(Encoder(spec.teacher, folder, "folder"), theirs, None)
    if most < task.max_length:
        what = f"it reads {most} word pieces, the student {task.max_length}"
        problems.append(Problem(WHERE, what, f"Write  model: {{max_length: {most}}}"))
    if problems:
        raise ModelError(problems)
    return Teacher(folder, own)


def _listed(value: Any) -> str:
    shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return shown if shown and len(shown) <= 200 else f"{shown[:200]!r}"


def check_sizes(spec: Distillation, teacher: Teacher, task: Task, model: Any, features: Dataset) -> None:
    """Try one feature on teacher and student. Raises ModelError where their outputs are not of one size."""
    columns = task.examples(features, [0])
    batch = Collator.of(task.tokenizer, task.padding)(columns)
    device = teacher.predictor.device
    sizes = [teacher.soft({name: values.to(device) for name, values in batch.items()})[1].shape[-1]]
    with torch.no_grad():
        sizes.append(SOFT_TARGETS[task.name].outputs(task, task.forward(model, batch), batch).shape[-1])
    if sizes[0] != sizes[1]:
        what = f"its vectors have {sizes[0]:,} numbers, the student's {sizes[1]:,}"
        raise ModelError(Problem(WHERE, what, f"Give the student a dense layer:  task: {{dense: {sizes[0]}}}"))
    hidden = [each.config.hidden_size for each in (teacher.predictor.model, model)]
    if spec.hidden and hidden[0] != hidden[1]:
        what = f"the teacher's hidden states have {hidden[0]:,} numbers, the student's {hidden[1]:,}"
        raise ModelError(Problem("distillation.hidden", what, "Write false, or take a student of the teacher's width."))


# --- the student


def keep_layers(model: Any, count: int) -> Any:
    """The model with `count` of its encoder's layers, evenly spaced, the first and the last included.

    DistilBERT takes every second (Sanh et al. 2019, section 3). Raises ModelError where there are not as many layers,
    or they are not of one kind.
    """
    config = model.config
    total = int(config.num_hidden_layers)
    if count > total:
        what = f"{count} layers to keep, but the encoder has {total}"
        raise ModelError(Problem("distillation.student.layers", what))
    homes = [
        (owner, name)
        for owner in model.base_model.modules()
        for name, child in owner.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == total
    ]
    if len(homes) != 1 or len(set(config.to_dict().get("layer_types") or [None])) > 1:
        what = f"the layers of a {config.model_type} are not of one kind, and can not be left out one by one"
        raise ModelError(Problem("distillation.student", what, "Remove it, and name a smaller model."))
    owner, name = homes[0]
    stack: Any = getattr(owner, name)
    setattr(owner, name, nn.ModuleList(stack[index] for index in chosen_layers(total, count)))
    config.num_hidden_layers = count
    return model


def chosen_layers(total: int, count: int) -> list[int]:
    """Which layers, counted from 0, a student of so many has."""
    return [int(place) for place in np.linspace(0, total - 1, count).round()]


class Distiller:
    """The loss of a student: alpha * soft + (1 - alpha) * hard, over the terms that the task counts.

    With `hidden`, a loss more: alpha * (1 - cosine of the last hidden states), over the real word pieces.
    """

    def __init__(self, spec: Distillation, teacher: Teacher, task: Task, encoder: Any) -> None:
        """encoder: the student's, whose hidden states are learned."""
        self.spec, self.teacher, self.task = spec, teacher, task
        self.states: dict[str, Tensor] = {}  # of the last batch
        if spec.hidden:
            for side, module in (("student", encoder), ("teacher", teacher.predictor.model.base_model)):
                # Before other hooks, which may make vectors of what the encoder gives.
                module.register_forward_hook(partial(self._see, side), prepend=True)

    def _see(self, side: str, module: Any, inputs: Any, outputs: Any) -> None:
        self.states[side] = outputs.last_hidden_state

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """`()`, or `(losses,)`; as `Task.loss`."""
        if is_online(self.spec, self.task):
            batch = {**batch, SOFT: self.teacher.soft(batch)[1]}
        hard = self.task.loss(outputs, batch, label_smoothing)
        soft = SOFT_TARGETS[self.task.name].loss(self.task, outputs, batch, self.spec.temperature)
        mixed = self.spec.alpha * soft + (1 - self.spec.alpha) * hard
        if not self.spec.hidden:
            return mixed
        apart = soft_losses.distance(self.states["student"], self.states["teacher"])
        hidden = apart[batch["attention_mask"].bool()].sum()
        return torch.cat([mixed.reshape(-1), self.spec.alpha * hidden[None]])

    def count(self, batch: Batch) -> float | tuple[float, ...]:
        """As `Task.count`; with `hidden`, word pieces too."""
        counted = self.task.count(batch)
        if not self.spec.hidden:
            return counted
        several = counted if isinstance(counted, tuple) else (counted,)
        return (*several, float(batch["attention_mask"].sum()))


# --- the teacher's outputs


def is_online(spec: Distillation, task: Task) -> bool:
    """Is the teacher asked in every step, since what it says is too much to keep, or never the same?"""
    return spec.hidden or SOFT_TARGETS[task.name].online


def with_soft_targets(features: Dataset, teacher: Teacher) -> Dataset:
    """The features with a column `soft`, kept from before or computed. Raises UserError on a full disk."""
    from datasets import Dataset, concatenate_datasets

    own, started = teacher.predictor, time.monotonic()
    key = {
        **model_key(teacher.folder),
        "teacher": own.task.name,
        "features": _digest(features),
        "precision": own.precision,
        "device": own.device.type,
    }

    def write(folder: Path) -> None:
        _write(folder / FILE, features, teacher)

    try:
        place, there = cached_folder(key, f"teacher {teacher.folder}", write)
        if there and _damaged(place / FILE, len(features)):
            logger.warning("%s is damaged; the teacher is asked again", place)
            shutil.rmtree(place)
            place, there = cached_folder(key, f"teacher {teacher.folder}", write)
        soft = Dataset.from_file(str(place / FILE))
    except OSError as error:
        what = f"the teacher's outputs can not be kept there ({error.strerror or error})"
        fix = "Make room there, or name another folder in BERTKIT_CACHE."
        raise UserError(Problem(str(cache_root()), what, fix)) from error
    told = "kept from before" if there else f"computed in {time.monotonic() - started:.0f} s"
    logger.info("teacher: %s features (%s)", f"{len(features):,}", told)
    return concatenate_datasets([features, soft], axis=1)


def _digest(features: Dataset) -> str:
    """sha256 of all that a model may read of the features: everything but the labels."""
    digest = hashlib.sha256()
    names = sorted(name for name in features.column_names if name != "labels")
    for start in range(0, len(features), CHUNK):
        part = features[start : start + CHUNK]
        for column in names:
            digest.update(json.dumps([column, part[column]]).encode())
    return digest.hexdigest()


def _damaged(file: Path, count: int) -> bool:
    """Does the file not hold the outputs of so many features?"""
    from datasets import Dataset

    try:
        return len(Dataset.from_file(str(file))) != count
    except (OSError, pa.ArrowException):
        return True


def _write(file: Path, features: Dataset, teacher: Teacher) -> None:
    """What the teacher says of each feature, `(numbers,)` fp32 each, a chunk of features at a time."""
    own = teacher.predictor
    kind = pa.list_(pa.float32())
    schema = pa.schema({SOFT: kind})

    def soft(outputs: Any, batch: Batch) -> Sequence[Any]:
        return list(SOFT_TARGETS[own.task.name].outputs(own.task, outputs, batch).float().cpu().numpy())

    ask = replace(own.predict_features, keep=soft)
    with file.open("wb") as raw:
        with pa.ipc.new_stream(raw, schema) as stream:
            for start in range(0, len(features), CHUNK):
                said = ask(features.select(range(start, min(start + CHUNK, len(features)))))
                if not all(np.isfinite(row).all() for row in said):
                    what = "its outputs are not finite"
                    raise ModelError(Problem(WHERE, what, "Its weights are damaged, or its training diverged."))
                stream.write_batch(pa.record_batch([pa.array(said, kind)], schema=schema))
        raw.flush()
        os.fsync(raw.fileno())
