"""The program: a recipe and data in, a run folder out. Read it from top to bottom."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from bertkit import processes
from bertkit.engine.attachment import Attachment
from bertkit.errors import RecipeError
from bertkit.models.quiet import no_bars
from bertkit.recipe.recipe import AnyRecipe, MultiTaskRecipe, Recipe, read
from bertkit.run import only_writer
from bertkit.text import Record
from bertkit.training.finish import finish
from bertkit.training.folds import calibrated, run_folds
from bertkit.training.job import Extensions
from bertkit.training.metadata import open_run, require_folder
from bertkit.training.publish import check_hub, push_run, write_reports_and_clean
from bertkit.training.seed import train_seed
from bertkit.validation import describe

if TYPE_CHECKING:
    from bertkit.report.view import Run

logger = logging.getLogger(__name__)


def train(
    recipe: Recipe | MultiTaskRecipe | Record | str | Path,
    output_dir: str | Path,
    *,
    data: Any = None,
    resume: bool = False,
    metrics: Sequence[Any] = (),
    callbacks: Sequence[TrainerCallback] = (),
    compute_loss_func: Callable[..., Any] | None = None,
    attachments: Sequence[Attachment] = (),
    changed: bool = False,
    **overrides: Any,
) -> Run:
    """Train, select the best model, calibrate, save, reload and score it: everything a run folder holds.

    recipe: a recipe, a shipped recipe's name or a recipe file, or the name of a task.
    data: replaces the recipe's `data:` section: a pandas or polars DataFrame, a `datasets.Dataset`, a list of
        dicts, a dict of columns, or a path, Hub id or `sample:NAME`; or these by split, such as
        `{"train": …, "validation": 0.1, "test": 0.1}`. A number below 1 holds out a share of train, a whole
        number so many rows. Rows passed from Python are saved in the run folder.
    overrides: sections of the recipe (`model="bert-base-uncased"`, `task={"kind": "multi-label"}`), or their
        keys by their own names (`learning_rate=1e-4`, `max_length=256`); `epochs` is num_train_epochs.
    resume: continue an interrupted run of the same recipe, data and libraries from its latest intact
        checkpoint. changed: continue even if they differ.
    metrics: your own metrics, any objects with `compute(predictions=…, references=…)` that returns numbers by
        name; computed at each evaluation and at the end. `metric_for_best_model` may name one that is better
        when higher.
    callbacks: transformers callbacks, added to bertkit's. An exception in one ends the run, which can be
        resumed.
    compute_loss_func: your own loss, as for transformers' Trainer: outputs, labels and num_items_in_batch,
        the count of the whole step -> the sum of the losses divided by that count.
    attachments: instances of your own subclasses of `bertkit.Attachment`. A resumed run must have the same,
        and the same loss.
    Raises RecipeError, DataError or ModelError, nearly always before anything is trained. During training,
    RecipeError means that memory ran out, UserError that the loss is NaN or infinite; earlier checkpoints
    stay, and `resume` continues from them. No incomplete file is left behind.

    >>> rows = [{"text": f"{word} film {n}", "label": word} for n in range(12) for word in ("good", "bad")]
    >>> data = {"train": rows, "validation": 0.25}
    >>> run = bertkit.train("text-classification", "runs/mine", data=data, model="bert-base-uncased",
    ...     epochs=1)
    >>> sorted(run.results["splits"])
    ['validation']
    """
    try:
        folder = Path(output_dir)
    except TypeError:
        raise RecipeError(
            "output_dir",
            f"expected a folder, found {describe(output_dir)}; data are passed by keyword",
            'bertkit.train("text-classification", "runs/x", data=…)',
        ) from None
    complete_recipe = read(recipe, data, overrides)
    del data  # it is on disk: a frame that nobody else holds need not be in memory
    extensions = Extensions(metrics, callbacks, compute_loss_func, attachments)
    return run_program(complete_recipe, folder, resume, changed, extensions)


def run_program(recipe: AnyRecipe, folder: Path, resume: bool, changed: bool, extensions: Extensions) -> Run:
    """The program, of one task or of several."""
    from bertkit.report.view import Run

    check_hub(recipe)
    run = Run(folder)
    first = processes.first()
    if resume and run.finished:
        if first:
            require_folder(recipe, run, resume, changed)
            with only_writer(run), no_bars():
                write_reports_and_clean(run, recipe)
        logger.info("%s is finished; there is nothing to resume. To upload it: bertkit push", run.folder)
        return run
    with open_run(recipe, run, resume, changed, extensions) as (jobs, metadata):
        held_out = run_folds(jobs, run, metadata)
        settled_jobs = calibrated(jobs, held_out)
        outcomes = [train_seed(settled_jobs, seed, run, metadata) for seed in recipe.seeds]
        metadata.write()  # if nothing was left to train
        if first:
            finish(jobs, run, outcomes, held_out)
            write_reports_and_clean(run, recipe)
    if first:
        push_run(run, recipe)
    return run
