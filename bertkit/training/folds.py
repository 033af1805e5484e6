"""Cross-validation: every training row is answered by a model that was trained on the rows of the other folds."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import TrainerCallback

from bertkit import processes
from bertkit.data.disk_list import DiskList
from bertkit.data.schema import Answer
from bertkit.data.table import numbers
from bertkit.evaluation.hf_metrics import all_scores
from bertkit.evaluation.intervals import Scores
from bertkit.evaluation.labels import GradedLabels
from bertkit.evaluation.paired import differences
from bertkit.files import read_json, write_json, write_text, written_aside
from bertkit.inference.decisions import with_word_scores
from bertkit.inference.evaluate import scored
from bertkit.models.quiet import no_bars, quiet_logger
from bertkit.models.trained_parts import merged
from bertkit.recipe.recipe import Recipe, to_yaml
from bertkit.report.table import more_rows
from bertkit.run import OUT_OF_FOLD, Run, check_folder, only_writer
from bertkit.tasks.base import Task, calibrate
from bertkit.tasks.text_classification import TextClassification
from bertkit.training.callbacks import Record
from bertkit.training.checkpoint import checkpoints
from bertkit.training.finish import OutOfFold, over, write_predictions
from bertkit.training.learning_curve import learning_curve
from bertkit.training.preflight import Job, arguments, checked_job, require_unchanged, write_run_metadata
from bertkit.training.seed import fit, untrained

logger = logging.getLogger(__name__)

# `task.method: auto` compares full fine-tuning of more labels than these only from so many rows per label on: of 77
# with 8 each it takes as long as the other methods together, and is the worst (docs/few-shot.md).
MANY_LABELS, ENOUGH_EACH = 20, 16
PREFERRED = ("contrastive", "head", "full")  # of few rows, each was better than the next (docs/few-shot.md)
COUNT = 5  # folds of `cross_validate`, where the recipe names no number


def cross_validate(recipe: Recipe, folder: str | Path, *, callbacks: Sequence[TrainerCallback] = ()) -> Path:
    """Train the models of the folds alone; returns FOLDER/predictions/train-oof.jsonl, the training rows with answers.

    The recipe's number of folds, by default 5. folds.json beside predictions/ has their scores. The same call continues
    what was interrupted. Raises RecipeError, DataError or ModelError before anything is trained.
    """
    recipe = recipe if recipe.folds else recipe.with_(f"folds={COUNT}")
    run, first = Run(Path(folder)), processes.first()
    if first:
        check_folder(run, to_yaml(recipe), resume=True)
    with nullcontext() if first else quiet_logger("bertkit"):
        job, findings = checked_job(recipe)
    job = replace(job, callbacks=callbacks)
    with only_writer(run) if first else nullcontext(), no_bars():
        if first:
            require_unchanged(job, run)
        with Record(partial(write_run_metadata, job, run, findings), run.checkpoints) as record:
            found = validated(job, run, record)[1]
        if found:
            write_json(run.folder / "folds.json", {OUT_OF_FOLD: found.scores, "folds": found.folds})
    return run.predictions(OUT_OF_FOLD)


def validated(job: Job, run: Run, record: Record) -> tuple[Job, OutOfFold | None]:
    """The job, of `task.method: auto` with the method that is chosen, and what `cross_validated` returns for it."""
    if dict(job.task.options).get("method") != "auto":
        return job, cross_validated(job, run, record)
    compared, table = dict[str, OutOfFold](), list[dict[str, Any]]()
    headline = job.recipe.training.get("metric_for_best_model", job.task.metrics[0])
    for method in _methods(job):
        candidate, own = with_method(job, method), Run(run.checkpoints / f"method-{method}")
        if method == "full" and (left := _falls_behind(candidate, own, compared.values(), headline, record)):
            table.append({"method": method, **left})
            continue
        found = cross_validated(candidate, own, record)
        assert found  # in the only process
        compared[method] = found
        table.append({"method": method, **_compared(found, headline)})
    best = _chosen(compared, headline)
    for line in table:
        where = "the first fold, and dropped" if "first_fold" in line else "all folds"
        logger.info(
            "method %s: %s %s on %s", line["method"], headline, line.get("first_fold", line.get("score")), where
        )
    logger.info("method: %s is chosen, and is trained on all rows", best)
    curve = _head_curve(with_method(job, "head"), run, headline)
    logger.info("%s", more_rows(curve, headline, best))
    answers = Run(run.checkpoints / f"method-{best}").predictions(OUT_OF_FOLD)
    write_text(run.predictions(OUT_OF_FOLD), answers.read_text(encoding="utf-8"))
    return with_method(job, best), compared[best]._replace(methods=table, learning_curve=curve)


def _methods(job: Job) -> Sequence[str]:
    """What `task.method: auto` compares, the fastest first."""
    task: TextClassification = job.task  # type: ignore[assignment]
    labels = len(task.names)
    if task.kind == "regression":
        return "head", "full"
    if labels > MANY_LABELS and len(job.folds) < ENOUGH_EACH * labels:
        return "head", "contrastive"
    return "head", "contrastive", "full"


def _head_curve(job: Job, run: Run, headline: str) -> dict[str, Any]:
    """The learning curve of head; from the run folder, if an interrupted training has left it there."""
    file = run.checkpoints / "method-head" / "learning-curve.json"
    if not file.is_file():
        runner = untrained(job, arguments(job.recipe, job.task, job.data, file.parent, job.recipe.seeds[0]))
        write_json(file, learning_curve(job, replace(runner, model=runner.model.to(runner.device)), headline))
    return dict(read_json(file))


def with_method(job: Job, method: str) -> Job:
    """The job, with this `task.method`."""
    return replace(job, task=replace(job.task, options=job.task.options.model_copy(update={"method": method})))


def _falls_behind(job: Job, run: Run, others: Iterable[OutOfFold], headline: str, record: Record) -> dict[str, Any]:
    """What the first fold says of a method whose score there is below the interval of the best other one; else nothing.

    The fold is not trained again if the method goes on.
    """
    best = max(others, key=lambda found: _score(found, headline))
    first, interval = _train_fold(job, 1, run, record), best.scores["intervals"].get(headline)
    score = first["metrics"].get(headline)
    if interval is None or score is None or score >= interval[0]:
        return {}
    return {"first_fold": score, "seconds": first["seconds"]}


def _chosen(compared: Mapping[str, OutOfFold], headline: str) -> str:
    """The first of PREFERRED, unless a later one is clearly better: over a few rows, most differences are chance."""
    best, *others = (method for method in PREFERRED if method in compared)
    for method in others:
        if _is_better(compared[method], compared[best], headline):
            best = method
    return best


def _is_better(one: OutOfFold, other: OutOfFold, headline: str) -> bool:
    found = differences(other.graded.scored, one.graded.scored).get(headline)
    if found is None or found.interval is None:  # such as a metric of the user's own
        return _score(one, headline) > _score(other, headline)
    return found.interval[0] > 0


def _score(found: OutOfFold, headline: str) -> float:
    score = found.scores["metrics"].get(headline)
    return -math.inf if score is None else score


def _compared(found: OutOfFold, headline: str) -> dict[str, Any]:
    """A line of the comparison: over all rows the score and its interval; over folds the mean and sd; seconds."""
    return {
        "score": found.scores["metrics"].get(headline),
        "interval": found.scores["intervals"].get(headline),
        "mean": found.folds["mean"].get(headline),
        "sd": found.folds["sd"].get(headline),
        "seconds": sum(each["seconds"] for each in found.folds["each"]),
    }


def cross_validated(job: Job, run: Run, record: Record) -> OutOfFold | None:
    """Train each fold's model on the other rows, with the recipe's first seed, and write what it answers.

    None in other processes than the first.
    """
    count = max(job.folds)
    outcomes = [_train_fold(job, fold, run, record) for fold in range(1, count + 1)]
    if not processes.first():
        return None
    rows = job.data.rows["train"]
    with ExitStack() as stack:
        files = [stack.enter_context(_answers_file(run, n).open(encoding="utf-8")) for n in range(1, count + 1)]
        answers = DiskList(json.loads(files[fold - 1].readline()) for fold in job.folds)
    write_predictions(run, OUT_OF_FOLD, rows, job.data.origins["train"], answers, {"fold": job.folds})
    graded = job.task.grade(answers, rows)
    means = over([outcome["metrics"] for outcome in outcomes])
    mean, sd = ({metric: found[name] for metric, found in means.items()} for name in ("mean", "sd"))
    folds = {"count": count, "each": outcomes, "mean": mean, "sd": sd}
    return OutOfFold(graded, scored(graded, len(rows), job.metrics), _baselines(job), folds)


def calibrated(job: Job, found: OutOfFold) -> Job:
    """The job, whose model will have the temperature and thresholds of the out-of-fold answers, if there are no
    validation rows to fit them on.

    What sets with a coverage are taken from is not fitted: its guarantee holds for rows that one model has answered.
    """
    if "validation" in job.data.rows or not isinstance(found.graded, GradedLabels):
        return job
    options = {name: value for name, value in found.graded.calibrated().items() if name != "conformal"}
    return replace(job, task=replace(job.task, options=job.task.options.model_copy(update=options)))


def _answers_file(run: Run, fold: int) -> Path:
    return run.checkpoints / f"fold-{fold}" / "answers.jsonl"


def _train_fold(job: Job, fold: int, run: Run, record: Record) -> dict[str, Any]:
    """Train on the rows of other folds, and answer those of this one; returns the content of its done.json."""
    file, held = _answers_file(run, fold), np.flatnonzero(np.equal(job.folds, fold))
    done = file.with_name("done.json")
    if done.is_file():
        return dict(read_json(done))
    learned = np.flatnonzero(~np.isin(numbers(job.features, "row"), held))
    part = replace(job, features=job.features.select(learned))
    title, log = f"fold {fold} of {max(job.folds)}", file.with_name("metrics.jsonl")
    fitted = fit(part, job.recipe.seeds[0], file.parent, title, log, record)
    if fitted is None:
        return {}
    runner, task, rows = fitted.runner, job.task, job.data.rows["train"]
    if job.recipe.peft:
        runner = replace(runner, model=merged(runner.model))
    if "validation" in job.data.rows:
        task = calibrate(task, job.data.rows["validation"], runner)
    answers = _held_out_answers(with_word_scores(task), rows, held, runner)
    with written_aside(file) as opened:
        opened.writelines(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
    metrics = all_scores(task.grade(answers, rows.select(held)), job.metrics)
    outcome = {"fold": fold, "rows": len(held), "metrics": metrics, **fitted.facts}
    write_json(done, outcome)
    for checkpoint in checkpoints(file.parent):  # no later step needs them
        shutil.rmtree(checkpoint)
    return outcome


def _held_out_answers(task: Task, rows: Dataset, held: np.ndarray, runner: Any) -> Sequence[Answer]:
    """The answers to these rows; to queries, from the documents of all rows."""
    if not task.schema.together:
        return DiskList(task.answer(rows.select(held), runner))
    chosen = set(held.tolist())
    return DiskList(answer for row, answer in enumerate(task.answer(rows, runner)) if row in chosen)


def _baselines(job: Job) -> dict[str, Scores]:
    """Each baseline's scores: the mean over the folds of what it learned on the others."""
    task, rows, fold_of = job.task, job.data.rows["train"], np.asarray(job.folds)
    if task.schema.together:  # they learn from the rows that they answer
        return task.baselines(rows, rows)
    parts = []
    for fold in range(1, max(job.folds) + 1):
        learned, held = (np.flatnonzero(chosen) for chosen in (fold_of != fold, fold_of == fold))
        parts.append(task.baselines(rows.select(learned), rows.select(held)))
    shared = [name for name in parts[0] if all(name in each for each in parts)]
    means = {name: over([each[name] for each in parts]) for name in shared}
    return {name: {metric: found["mean"] for metric, found in scores.items()} for name, scores in means.items()}
