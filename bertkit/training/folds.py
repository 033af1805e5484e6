"""Cross-validation: every training row is answered by a model that was trained on the rows of the other
folds.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from bertkit import processes
from bertkit.data.disk_list import DiskList
from bertkit.data.on_disk import numbers
from bertkit.engine.callbacks import MetadataWriter
from bertkit.engine.checkpoint import checkpoints
from bertkit.evaluation.graded import all_scores
from bertkit.evaluation.graded_labels import GradedLabels
from bertkit.evaluation.intervals import Scores
from bertkit.files import lines_of, read_json, write_json, write_lines
from bertkit.inference.decisions import with_word_scores
from bertkit.inference.evaluate import scored
from bertkit.models.trained_parts import merged
from bertkit.recipe.recipe import Recipe, read
from bertkit.run import OUT_OF_FOLD, Run
from bertkit.tasks.base import HeldOut, calibrate
from bertkit.text import Json, Record
from bertkit.training.job import Job, Jobs
from bertkit.training.metadata import open_run
from bertkit.training.score import OutOfFold, mean_and_sd, write_predictions
from bertkit.training.seed import DONE, fit

DEFAULT_FOLDS = 5  # folds of `cross_validate`, where the recipe names no number


def cross_validate(recipe: Recipe | Record | str | Path, folder: str | Path) -> Path:
    """Train only the models of the folds; returns FOLDER/predictions/train-oof.jsonl, the training rows with
    answers.

    The number of folds is the recipe's `folds`, by default 5. FOLDER/folds.json has their scores. The model
    of the first fold also predicts the other splits, in files beside train-oof.jsonl. The same call continues
    an interrupted one. Raises RecipeError, DataError or ModelError, as `train` does.

    >>> bertkit.cross_validate(bertkit.load_recipe("my.yaml", ["folds=2"]), "folds/mine").name
    'train-oof.jsonl'
    """
    recipe = cast(Recipe, read(recipe, several=False))
    recipe = recipe if recipe.folds else recipe.with_(f"folds={DEFAULT_FOLDS}")
    run = Run(Path(folder))
    with open_run(recipe, run, resume=True) as (jobs, metadata):
        others = [split for split in jobs.only.data.rows if split != "train"]
        held_out = run_folds(jobs, run, metadata, others)
        metadata.write()
        if held_out:
            write_json(run.folder / "folds.json", {OUT_OF_FOLD: held_out.scores, "folds": held_out.folds})
    return run.predictions(OUT_OF_FOLD)


def run_folds(
    jobs: Jobs, run: Run, metadata: MetadataWriter, others: Collection[str] = ()
) -> OutOfFold | None:
    """Train each fold's model on the other rows, with the recipe's first seed, and write what it answers.

    others: splits that the model of the first fold answers too. None without folds, and on other ranks than
    the first.
    """
    if not jobs.first.folds:
        return None
    job = jobs.only
    count = max(job.folds)
    outcomes = [
        _train_fold(jobs, fold, run, metadata, others if fold == 1 else ()) for fold in range(1, count + 1)
    ]
    if not processes.first():
        return None
    rows = job.data.rows["train"]
    by_fold = {fold: lines_of(_answers_file(run, fold)) for fold in range(1, count + 1)}
    answers = DiskList(next(by_fold[fold]) for fold in job.folds)
    write_predictions(run, OUT_OF_FOLD, rows, job.data.origins["train"], answers, {"fold": job.folds})
    graded, scores = scored(job.task, answers, rows, job.extensions.metrics, job.recipe.data.by)
    summary = mean_and_sd([outcome["metrics"] for outcome in outcomes])
    folds = {"count": count, "each": outcomes, "mean": _only(summary, "mean"), "sd": _only(summary, "sd")}
    fold_of = np.asarray(job.folds)
    parts = [] if job.task.schema.together else [fold_of == fold for fold in np.unique(fold_of)]
    # of each fold the rows of the others, and its own
    pairs = [(rows.select(np.flatnonzero(~inside)), rows.select(np.flatnonzero(inside))) for inside in parts]
    return OutOfFold(
        graded, scores, _baselines(job, pairs), folds, pairs if isinstance(graded, GradedLabels) else []
    )


def calibrated(jobs: Jobs, held_out: OutOfFold | None) -> Jobs:
    """The jobs; after folds without validation rows, with temperature and thresholds of the out-of-fold
    answers.

    Prediction sets are not fitted: their guarantee holds for rows that one model has answered.
    """
    job = jobs.first
    if not held_out or "validation" in job.data.rows or not held_out.fitted_on:
        return jobs
    options = {name: value for name, value in held_out.graded.calibrated().items() if name != "conformal"}
    task = job.task.with_options(options)
    return replace(jobs, by_task=dict.fromkeys(jobs.by_task, replace(job, task=task)))


def _answers_file(run: Run, fold: int) -> Path:
    return run.checkpoints / f"fold-{fold}" / "answers.jsonl"


def _train_fold(jobs: Jobs, fold: int, run: Run, metadata: MetadataWriter, others: Collection[str]) -> Json:
    """Train on the rows of other folds, and answer those of this one and of other splits; returns its
    done.json.
    """
    job = jobs.only
    file = _answers_file(run, fold)
    held = np.flatnonzero(np.equal(job.folds, fold))
    done = file.with_name(DONE)
    if done.is_file():
        return dict(read_json(done))
    learned = np.flatnonzero(~np.isin(numbers(job.features, "row"), held))
    part = replace(job, features=job.features.select(learned))
    title = f"fold {fold} of {max(job.folds)}"
    log = file.with_name("metrics.jsonl")
    fold_jobs = replace(jobs, by_task=dict.fromkeys(jobs.by_task, part))
    models = fit(fold_jobs, job.recipe.seeds[0], file.parent, title, log, metadata)
    if not models:
        return {}
    (trained,) = models.values()
    runner = trained.runner
    task = job.task
    splits = job.data.rows
    rows = splits["train"]
    if job.recipe.peft:
        runner = replace(runner, model=merged(runner.model))
    if "validation" in splits:
        task = calibrate(task, splits["validation"], runner)
    judge = with_word_scores(task)
    for split in others:
        unseen = splits[split]
        write_predictions(run, split, unseen, job.data.origins[split], judge.answer(unseen, runner))
    if task.schema.together:  # to queries, from the documents of all rows
        chosen = set(held.tolist())
        answers = DiskList(answer for row, answer in enumerate(judge.answer(rows, runner)) if row in chosen)
    else:
        answers = DiskList(judge.answer(rows.select(held), runner))
    write_lines(file, answers)
    metrics = all_scores(task.grade(answers, rows.select(held)), job.extensions.metrics)
    outcome = {"fold": fold, "rows": len(held), "metrics": metrics, **trained.facts}
    write_json(done, outcome)
    for checkpoint in checkpoints(file.parent):  # no later step needs them
        shutil.rmtree(checkpoint)
    return outcome


def _baselines(job: Job, pairs: HeldOut) -> dict[str, Scores]:
    """Each baseline's scores: the mean over the folds of a model fitted on the other folds."""
    task = job.task
    rows = job.data.rows
    if not pairs:  # they learn from the rows that they answer
        return task.baselines(rows["train"], rows["train"])
    parts = []
    for learned, held in pairs:
        fitting = [(learned, rows["validation"])] if "validation" in rows else []
        parts.append(task.baselines(learned, held, fitting))
    means = {}
    for name in parts[0]:
        if all(name in part for part in parts):
            means[name] = _only(mean_and_sd([part[name] for part in parts]), "mean")
    return means


def _only(summary: Mapping[str, Mapping[str, float]], name: str) -> Scores:
    """Metric -> its value of this name, `mean` or `sd`."""
    return {metric: values[name] for metric, values in summary.items()}
