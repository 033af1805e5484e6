"""The program: one recipe and some data in, one run folder out. Read it from top to bottom."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import processes
from bertkit.files import write_json
from bertkit.models.encoder import quiet_logger, resolve_encoder
from bertkit.run import Run, only_writer, open_run
from bertkit.training.finish import draw_report, finish, publish, push_run
from bertkit.training.preflight import begin, check_hub, inspect, prepare, rehearse
from bertkit.training.profile import Profile, profile_lines
from bertkit.training.seed import train_seed

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from bertkit.recipe.recipe import Recipe


logger = logging.getLogger(__name__)


def train(
    recipe: Recipe,
    output_dir: str | Path,
    resume: bool = False,
    *,
    metrics: Sequence[Any] = (),
    callbacks: Sequence[TrainerCallback] = (),
    profile: bool = False,
    changed: bool = False,
) -> Run:
    """Train, choose, calibrate, save, reload, score: everything a run folder holds.

    resume: go on with an interrupted run of the same recipe, data and libraries, from its newest whole checkpoint.
    changed: go on although they are not the same.
    metrics: your own `evaluate.Metric` objects, scored at the end beside the task's own.
    callbacks: of transformers, beside bertkit's own; what they raise ends the run, which can be resumed.
    profile: write profile.json, which says where the time of the training steps of this process went.
    Raises RecipeError, DataError or ModelError before anything is trained, and leaves nothing half-written.
    """
    started = time.monotonic()
    check_hub(recipe)
    first = processes.first()  # under torchrun, one process writes
    run = open_run(recipe, Path(output_dir), resume, changed) if first else Run(Path(output_dir))
    if resume and run.finished:
        logger.info("%s is finished; there is nothing to resume", run.folder)
        return run
    with nullcontext() if first else quiet_logger("bertkit"):  # said once, not by every process
        encoder = resolve_encoder(recipe.model)
        logger.info("encoder: %s (%s)", encoder.name, encoder.origin)
        task, data = prepare(recipe, encoder)
        logger.info("task: %s, %s", task.name, task.describe())
        features, findings = inspect(task, data)
    teacher = rehearse(recipe, encoder, task, data)
    with only_writer(run) if first else nullcontext():
        if first:
            begin(recipe, run, data, findings, changed)
        watch = Profile() if profile else None
        outcomes = [
            train_seed(recipe, seed, run, encoder, task, data, features, teacher, callbacks, watch)
            for seed in recipe.seeds
        ]
        if first and watch:
            write_json(run.folder / "profile.json", watch.facts())
            logger.info("%s", profile_lines(watch.facts()))
        if first:
            best = max(outcomes, key=lambda o: -math.inf if o["headline"] is None else o["headline"])
            publish(run, best["seed"])
            finish(recipe, run, data, outcomes, metrics, started, teacher)
            draw_report(run, recipe.explain)
    if first and recipe.hub and recipe.hub.repo_id:
        push_run(run, recipe.hub, recipe.hub.repo_id)
    return run
