"""Distillation: a student learns from the labels and from a teacher's outputs, which are computed once and
cached.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from torch import Tensor, nn

from bertkit.attachments.soft_targets import soft_targets_of
from bertkit.cache import cache_root, cached_folder, model_key
from bertkit.encoding.padding import SOFT
from bertkit.engine.arguments import Arguments
from bertkit.engine.attachment import Attachment, Draft
from bertkit.engine.training_data import Loss
from bertkit.errors import ModelError, Problem, UserError, translated
from bertkit.evaluation.intervals import Scores
from bertkit.inference.evaluate import score
from bertkit.inference.predictor import Predictor, load_as, model_folder, require_torch_model
from bertkit.inference.runner import Runner
from bertkit.inference.settings import resolve_max_length
from bertkit.models.encoder import Encoder
from bertkit.models.untrusted import vet
from bertkit.recipe.recipe import Recipe
from bertkit.run import TEACHER
from bertkit.sections import Distillation
from bertkit.tasks.base import Batch, Task
from bertkit.text import short_repr

logger = logging.getLogger(__name__)

WHERE = "distillation.teacher"
FILE = "soft.arrow"
CHUNK = 4096  # features whose outputs are in memory at a time


@dataclass(frozen=True)
class Teacher:
    """A trained model of the same task, in its own precision."""

    folder: Path
    predictor: Predictor


def soft(runner: Runner) -> Runner:
    """What gives the soft targets of each feature, `(numbers,)` fp32, instead of the task's items."""
    task = runner.task

    def keep(outputs: Any, batch: Batch) -> Sequence[Any]:
        return list(soft_targets_of(task).outputs(task, outputs, batch).float().cpu().numpy())

    return replace(runner, keep=keep)


def find_teacher(spec: Distillation, task: Task) -> Teacher:
    """The teacher named in a recipe. Raises ModelError with all that does not match the student."""
    targets = soft_targets_of(task)
    try:
        folder = model_folder(spec.teacher)
        predictor = require_torch_model(load_as(task.name, folder), folder)
    except UserError as error:
        raise ModelError(
            [problem._replace(where=f"{WHERE}, {problem.where}") for problem in error.problems]
        ) from error
    problems = []
    if predictor.task.name != task.name:
        problems.append(
            Problem(
                WHERE,
                f"{spec.teacher} was trained for {predictor.task.name}, not {task.name}",
                "Use a teacher for the same task as the student's.",
            )
        )
    elif predictor.task.unit != task.unit:
        what = f"{spec.teacher} has a tag for {predictor.task.unit}, not for {task.unit}"
        problems.append(Problem(WHERE, what, f"Set task: {{words: {predictor.task.unit}}}."))
    else:
        for option, ours in targets.must_match(task).items():
            if (theirs := targets.must_match(predictor.task)[option]) != ours:
                what = f"{option} is {short_repr(theirs)}, the student's is {short_repr(ours)}"
                problems.append(Problem(WHERE, what, f"Set task: {{{option}: …}} to the teacher's value."))
    ours = task.tokenizer
    theirs = predictor.task.tokenizer
    if ours.get_vocab() != theirs.get_vocab():
        what = f"its vocabulary ({len(theirs):,} tokens) differs from the student's ({len(ours):,})"
        problems.append(Problem(WHERE, what, "Use a student with the teacher's vocabulary."))
    elif more := {*theirs.model_input_names} - {*ours.model_input_names}:
        what = f"it reads {', '.join(sorted(more))}, which the student does not read"
        problems.append(Problem(WHERE, what, "Use a student of the teacher's architecture."))
    limit = resolve_max_length(Encoder(spec.teacher, vet(folder), "folder"), theirs, None)
    if limit < task.max_length:
        what = f"it reads {limit} tokens, the student {task.max_length}"
        problems.append(Problem(WHERE, what, f"Set model: {{max_length: {limit}}}."))
    if problems:
        raise ModelError(problems)
    labels = getattr(task.options, "labels", None)
    if isinstance(labels, dict):  # as these rows write them
        predictor = replace(predictor, task=predictor.task.with_options({"labels": labels}))
    return Teacher(folder, predictor)


def check_sizes(teacher: Teacher, task: Task, model: Any, features: Dataset) -> None:
    """Try one feature on teacher and student. Raises ModelError where their outputs differ in size."""
    student = Runner(task, model, model.device, "fp32", 1)
    feature = features.select([0])
    theirs = len(soft(teacher.predictor.predict_features)(feature)[0])
    ours = len(soft(student)(feature)[0])
    if theirs != ours:
        raise ModelError(
            WHERE,
            f"its vectors have {theirs:,} numbers, the student's {ours:,}",
            f"Set task: {{dense: {theirs}}}, which gives the student a dense layer.",
        )


def keep_layers(model: Any, count: int) -> Any:
    """The model with `count` of its encoder's layers, evenly spaced, the first and the last included.

    DistilBERT keeps every second (Sanh et al. 2019, section 3). Raises ModelError where there are fewer
    layers, or several kinds of them.
    """
    config = model.config
    total = int(config.num_hidden_layers)
    if count > total:
        raise ModelError(
            "distillation.student.layers",
            f"{count} layers to keep, but the encoder has {total}",
            "Keep fewer layers.",
        )
    homes = [
        (owner, name)
        for owner in model.base_model.modules()
        for name, child in owner.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == total
    ]
    if len(homes) != 1 or len(set(config.to_dict().get("layer_types") or [None])) > 1:
        raise ModelError(
            "distillation.student",
            f"the layers of a {config.model_type} are of several kinds and cannot be removed one by one",
            "Remove this section, and use a smaller encoder.",
        )
    owner, name = homes[0]
    stack = getattr(owner, name)
    kept = chosen_layers(total, count)
    setattr(owner, name, nn.ModuleList(stack[index] for index in kept))
    for key, value in config.to_dict().items():  # a value per layer, such as Longformer's attention_window
        if isinstance(value, list) and len(value) == total:
            setattr(config, key, [value[index] for index in kept])
    config.num_hidden_layers = count
    return model


def chosen_layers(total: int, count: int) -> list[int]:
    """The layers, counted from 0, that a student with `count` layers keeps."""
    return [int(index) for index in np.linspace(0, total - 1, count).round()]


@final
class TeacherLoss(Attachment):
    """Adds the teacher's losses, and its scores to those of the student."""

    spec: Distillation
    teacher: Teacher
    task: Task

    def join(self, draft: Draft) -> bool:
        if not draft.recipe.distillation:
            return False
        self.spec = draft.recipe.distillation
        self.task = draft.task
        self.teacher = find_teacher(self.spec, self.task)
        check_sizes(self.teacher, self.task, draft.model, draft.features)
        return True

    def build_model(self, recipe: Recipe, model: Any) -> Any:
        student = recipe.distillation.student if recipe.distillation else None
        if not student or model.config.is_encoder_decoder:  # which `join` refuses
            return model
        return keep_layers(model, student.layers)

    def extend_features(self, features: Dataset, args: Arguments) -> Dataset:
        with args.main_process_first():  # the others read them from the cache
            return with_soft_targets(features, self.teacher)

    def wrap_loss(self, loss: Loss) -> Loss:
        def taught(outputs: Any, batch: Batch, terms: Tensor) -> Tensor:
            hard = loss(outputs, batch, terms)
            soft = soft_targets_of(self.task).loss(self.task, outputs, batch, self.spec.temperature)
            return self.spec.alpha * soft + (1 - self.spec.alpha) * hard

        return taught

    def score_references(self, rows: Dataset, metrics: Sequence[Any]) -> Mapping[str, Scores]:
        return {TEACHER: score(self.teacher.predictor, rows, metrics)[1]["metrics"]}


def with_soft_targets(features: Dataset, teacher: Teacher) -> Dataset:
    """The features with a column `soft`, from the cache or computed. Raises UserError on a full disk."""
    started = time.monotonic()
    key = {
        **model_key(teacher.folder),
        "teacher": teacher.predictor.task.name,
        "features": _digest(features),
        "precision": teacher.predictor.precision,
        "device": teacher.predictor.device.type,
    }
    what = "the teacher's outputs cannot be cached"
    fix = "Start again. If it fails again, free some space, or set BERTKIT_CACHE to another folder."
    with translated(OSError, UserError, cache_root(), what, fix):
        folder, hit = cached_folder(key, partial(_write, features, teacher))
        targets = Dataset.from_file(str(folder / FILE))
    source = "from the cache" if hit else f"computed in {time.monotonic() - started:.0f} s"
    logger.info("teacher: %s features (%s)", f"{len(features):,}", source)
    return concatenate_datasets([features, targets], axis=1)


def _digest(features: Dataset) -> str:
    """sha256 of everything that a model may read of the features: all but the labels."""
    digest = hashlib.sha256()
    names = sorted(name for name in features.column_names if name != "labels")
    for part in features.iter(CHUNK):
        for column in names:
            digest.update(json.dumps([column, part[column]]).encode())
    return digest.hexdigest()


def _write(features: Dataset, teacher: Teacher, folder: Path) -> None:
    """Write the soft targets of each feature, `(numbers,)` fp32 each, a chunk of features at a time."""
    kind = pa.list_(pa.float32())
    runner = soft(teacher.predictor.predict_features)
    schema = pa.schema({SOFT: kind})
    with (folder / FILE).open("wb") as raw:
        with pa.ipc.new_stream(raw, schema) as stream:
            for start in range(0, len(features), CHUNK):
                targets = runner(features.select(range(start, min(start + CHUNK, len(features)))))
                if not all(np.isfinite(row).all() for row in targets):
                    raise ModelError(
                        WHERE,
                        "its outputs contain NaN or infinity",
                        "Its weights are damaged or its training diverged: use another teacher.",
                    )
                stream.write_batch(pa.record_batch([pa.array(targets, kind)], schema=schema))
        raw.flush()
        os.fsync(raw.fileno())
