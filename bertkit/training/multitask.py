"""Multi-task learning: the program for a recipe of several tasks. Each task's folder is a run like any other."""

from __future__ import annotations

import copy
import json
import logging
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, set_seed

from bertkit import processes
from bertkit.engine.arguments import Arguments
from bertkit.engine.callbacks import Profile, Record
from bertkit.engine.clock import Clock
from bertkit.engine.sharding import sharded_map
from bertkit.engine.trainer import Trainer
from bertkit.engine.training_data import MixedData, TaskData, mixed_batches
from bertkit.errors import Problem, RecipeError, UserError
from bertkit.evaluation.intervals import mean
from bertkit.files import read_json, write_json, write_text
from bertkit.inference.runner import Runner
from bertkit.models.quiet import no_bars, quiet_logger
from bertkit.recipe.multitask import MEAN, MultiTaskRecipe, tasks_of_recipe, to_yaml
from bertkit.report.facts import lines_of
from bertkit.report.verdict import reported_split
from bertkit.report.view import Run
from bertkit.run import check_folder, only_writer
from bertkit.training.finish import finish, free_checkpoints, publish, write_reports
from bertkit.training.preflight import Job, arguments, checked_job, require_unchanged, write_run_metadata
from bertkit.training.seed import (
    Fitted,
    facts_of,
    merge_and_calibrate,
    run_trainer,
    runner_of,
    settings_of,
    usual_callbacks,
)

logger = logging.getLogger(__name__)

_KEY = re.compile(r"(task|data)(\.|$)")  # of the recipe of one task


@dataclass(frozen=True)
class Jobs:
    """What a training of several tasks works on."""

    recipe: MultiTaskRecipe
    by_task: Mapping[str, Job]

    def headline(self, name: str) -> str:
        """The metric of this task that the choice of the checkpoint depends on."""
        job = self.by_task[name]
        return str(job.recipe.training.get("metric_for_best_model", job.task.metrics[0]))

    def arguments(self, folder: Path, seed: int) -> Arguments:
        """Hugging Face's arguments of one seed's training."""
        first = next(iter(self.by_task.values()))
        shared = first.recipe.model_copy(update={"training": self.recipe.training})
        return arguments(shared, first.task, first.data, folder, seed)

    def training_data(self, runners: Mapping[str, Runner]) -> MixedData:
        """What the trainer asks of the tasks. runners: of each task, with its own model."""
        recipe, tokens = self.recipe, self.recipe.batching.tokens if self.recipe.batching else None
        parts = {
            name: TaskData(
                runners[name],
                job.features,
                job.data.rows.get("validation"),
                tokens=tokens,
                locate=job.data.origins["train"].__getitem__,
            )
            for name, job in self.by_task.items()
        }
        weights = {name: part.weight for name, part in recipe.tasks.items()}
        headlines = {name: self.headline(name) for name in parts}
        return MixedData(parts, weights, headlines, recipe.mixing, recipe.peft is not None)


def checked_jobs(recipe: MultiTaskRecipe) -> tuple[Jobs, dict[str, list[Any]]]:
    """The jobs of a recipe, and the findings about each. Raises UserError with what is wrong with any of them."""
    by_task, findings, problems = dict[str, Job](), dict[str, list[Any]](), list[Problem]()
    for name, part in recipe.parts.items():
        logger.info("%s:", name)
        try:
            by_task[name], findings[name] = checked_job(part)
        except UserError as error:
            problems += [
                each._replace(where=f"tasks.{name}.{each.where}") if _KEY.match(each.where) else each
                for each in error.problems
            ]
    without = [name for name, job in by_task.items() if "validation" not in job.data.rows]
    if len(without) < len(by_task):
        what = "no validation split, which the others have: the checkpoint is chosen by the scores of all tasks"
        fix = "Hold one out: data: {validation: 0.1}"
        problems += [Problem(f"tasks.{name}.data", what, fix) for name in without]
    if problems:
        raise UserError(problems)
    jobs = Jobs(recipe, by_task)
    args = jobs.arguments(Path(), recipe.seeds[0])
    accumulation, world = args.gradient_accumulation_steps, args.world_size
    parts = {name: (job.task, job.features) for name, job in by_task.items()}
    tokens = recipe.batching.tokens if recipe.batching else None
    mixed_batches(parts, recipe.mixing, args.train_batch_size, tokens, accumulation=accumulation, world=world, seed=0)
    return jobs, findings


def fit(
    jobs: Jobs, seed: int, folder: Path, log: Path, callbacks: Sequence[TrainerCallback], profile: Profile | None
) -> dict[str, Fitted] | None:
    """Train the models in `folder`, a folder of RUN/checkpoints; None in other processes than the first."""
    recipe, args = jobs.recipe, jobs.arguments(folder, seed)
    set_seed(seed)
    runners = {name: runner_of(job, args) for name, job in jobs.by_task.items()}
    if args.world_size > 1:
        runners = {name: replace(runner, mapper=sharded_map) for name, runner in runners.items()}
    title = f"seed {seed}" if len(recipe.seeds) > 1 else "training"
    best = str(args.metric_for_best_model)
    clock = Clock(args.seconds)
    own = usual_callbacks(recipe.early_stopping, title, best, log, seed, clock)
    data, first = jobs.training_data(runners), next(iter(jobs.by_task.values()))
    trainer = Trainer(
        data, args, callbacks=[*own, *callbacks], attachments=first.attachments, clock=clock, profile=profile
    )
    if trainer.is_fsdp_enabled:
        what = "several tasks are not trained with FSDP, which divides a model between processes"
        raise RecipeError(Problem("", what, "Start it with torchrun, or with accelerate and multi-GPU."))
    seconds = run_trainer(trainer, folder)
    trainer.accelerator.wait_for_everyone()  # all have read the best checkpoint, which may be deleted from here on
    if not args.should_save:
        return None
    fitted = {}
    for name, job in jobs.by_task.items():
        model = data.model.of(name)
        if recipe.peft:
            model = copy.deepcopy(model)  # adapters are merged into the encoder, once for each
        runner = replace(runners[name], model=model, mapper=map)
        fitted[name] = Fitted(runner, jobs.headline(name), settings_of(job, args), facts_of(trainer.state, seconds))
    return fitted


def train_seed(
    jobs: Jobs, seed: int, run: Run, callbacks: Sequence[TrainerCallback], profile: Profile | None
) -> dict[str, dict[str, Any]]:
    """Train one seed; calibrate and save each task's model; returns the contents of their done.json."""
    folders = {name: Run(run.folder / name).checkpoints / f"seed-{seed}" for name in jobs.by_task}
    done = {name: folder / "done.json" for name, folder in folders.items()}
    if all(file.is_file() for file in done.values()):
        return {name: dict(read_json(file)) for name, file in done.items()}
    fitted = fit(jobs, seed, run.checkpoints / f"seed-{seed}", run.folder / "metrics.jsonl", callbacks, profile)
    outcomes = {}
    for name, each in (fitted or {}).items():
        scores = merge_and_calibrate(jobs.by_task[name], each.runner, folders[name], each.settings)
        headline = scores.get("validation", {}).get(each.headline)
        outcomes[name] = {"seed": seed, "headline": headline, "metrics": scores, **each.facts}
    for name, outcome in outcomes.items():
        write_json(done[name], outcome)
    return outcomes


def train_tasks(
    recipe: MultiTaskRecipe,
    folder: Path,
    resume: bool,
    callbacks: Sequence[TrainerCallback],
    profile: bool,
    changed: bool,
) -> Run:
    """The program. Raises UserError before anything is trained."""
    started, run, first = time.monotonic(), Run(folder), processes.first()
    if first:
        check_folder(run, to_yaml(recipe), resume, changed)
    if resume and run.finished:
        logger.info("%s is finished; there is nothing to resume", run.folder)
        return run
    if first:
        _require_same_tasks(recipe, run.folder / "recipe.yaml")
    with nullcontext() if first else quiet_logger("bertkit"):
        jobs, findings = checked_jobs(recipe)
    with only_writer(run) if first else nullcontext(), no_bars():
        if first:
            for name, job in jobs.by_task.items():
                require_unchanged(job, Run(run.folder / name), changed)
        stopwatch = Profile() if profile else None
        with Record(partial(_write_metadata, jobs, run, findings), run.checkpoints) as record:
            watching = [record, *callbacks]
            outcomes = [train_seed(jobs, seed, run, watching, stopwatch) for seed in recipe.seeds]
        if first and stopwatch:
            stopwatch.write(run.folder)
        if first:
            finish_all(jobs, run, outcomes, started)
            free_checkpoints(run, recipe.checkpoints)
    return run


def _require_same_tasks(recipe: MultiTaskRecipe, stored: Path) -> None:
    """Raises RecipeError where the run was started with other tasks. stored: the run's recipe, if it has one yet."""
    now = [*recipe.tasks]
    before = tasks_of_recipe(stored) if stored.is_file() else now
    if before != now:
        started = f"the tasks {', '.join(before)}" if before else "one task by itself"
        what = f"the run was started with {started}; the tasks are {', '.join(now)} now"
        fix = "Name the same tasks in the same order, or start a new run in another folder."
        raise RecipeError(Problem(str(stored), what, fix))


def _write_metadata(jobs: Jobs, run: Run, findings: Mapping[str, Sequence[Any]]) -> None:
    write_text(run.folder / "recipe.yaml", to_yaml(jobs.recipe))
    for name, job in jobs.by_task.items():
        (run.folder / name).mkdir(exist_ok=True)
        write_run_metadata(job, Run(run.folder / name), findings[name])


def finish_all(jobs: Jobs, run: Run, outcomes: Sequence[Mapping[str, Any]], started: float) -> None:
    """Publish the best seed's models, score each; RUN/results.json is written last."""
    best = jobs.recipe.training["metric_for_best_model"]

    def rank(outcome: Mapping[str, Any]) -> float:
        scores = [each["headline"] for name, each in outcome.items() if best in (MEAN, name)]
        chosen = mean(scores)
        return -math.inf if chosen is None else chosen

    chosen, told = max(outcomes, key=rank), dict[str, Any]()
    for name, job in jobs.by_task.items():
        part, weight = Run(run.folder / name), jobs.recipe.tasks[name].weight
        publish(part, chosen[name]["seed"])
        own = "".join(json.dumps(event) + "\n" for event in events_of(name, lines_of(run.folder / "metrics.jsonl")))
        write_text(part.folder / "metrics.jsonl", own)
        others = [each for each in jobs.by_task if each != name]
        finish(job, part, [each[name] for each in outcomes], started, trained_with=others)
        write_reports(part, jobs.recipe.explain)
        results = part.results
        split, headline = reported_split(results), results["headline"]
        score, interval = (results["splits"][split][kind].get(headline) for kind in ("metrics", "intervals"))
        kept = {"task": results["task"]["name"], "weight": weight, "headline": headline, "split": split}
        told[name] = {**kept, "score": score, "interval": interval}
    write_json(
        run.folder / "results.json",
        {"tasks": told, MEAN: mean(each["score"] for each in told.values()), "seconds": time.monotonic() - started},
    )


def events_of(name: str, events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events of metrics.jsonl that are about this task, with its metrics as those of a run of its own."""
    prefix = f"eval_{name}/"
    for event in events:
        own = {f"eval_{key.removeprefix(prefix)}": value for key, value in event.items() if key.startswith(prefix)}
        common = {key: value for key, value in event.items() if not key.startswith("eval_")}
        if own or len(common) == len(event):
            yield {**common, **own}
