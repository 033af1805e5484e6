"""Runs as `train` leaves them, but for the training: what the tests of the card and of the Hub share."""

from __future__ import annotations

import json
from array import array

import small
import torch
from cases import SETTINGS, encoder
from transformers import set_seed

from bertkit.data import Data
from bertkit.data.origin import Origin
from bertkit.data.schema import Finding
from bertkit.inference.runner import Runner
from bertkit.recipe.recipe import load_recipe
from bertkit.report import html
from bertkit.report.card import write_card
from bertkit.report.mistakes import mistakes
from bertkit.run import Run
from bertkit.tasks.base import calibrate
from bertkit.training.finish import finish_job
from bertkit.training.job import Job, Jobs
from bertkit.training.metadata import write_metadata
from bertkit.training.seed import save

FOUND = Finding("warn", "something is `odd` ```", "Look at it.")


def report(facts):
    """The page that `write_report` writes into the run's folder."""
    return html.report(facts, mistakes(facts), "mistakes.csv")


def saved(case, folder, where, seed=3):
    """Save the model of a case as it was drawn by `seed`; the task, calibrated on its rows."""
    task = case.task(folder)
    set_seed(seed)
    model = task.model(encoder(folder))
    task = task.finished(model)
    task = calibrate(task, case.rows(), Runner(task, model, torch.device("cpu"), "fp32", 4))
    save(model, task, where, SETTINGS)
    return task


def finished(case, folder, where, seed=3, **sections):
    """A run of this case with the model as it was drawn by `seed`; its train rows are its validation rows
    too.

    sections: of the recipe, in place of the usual ones or beside them.
    """
    run = Run(where)
    rows = case.rows()
    task = saved(case, folder, run.model, seed)
    usual = {"task": case.options, "model": {"name": str(folder)}, "data": {"source": "sample:sentiment"}}
    once = where.with_name("once.yaml")
    small.write_rows(once, [{**usual, "verify": False, "explain": False, **sections}])
    own = {"train": rows, "validation": rows}
    target = next((name for name in task.schema.targets if name in rows.column_names), None)
    prints = dict.fromkeys(own, "0" * 64)
    origin = Origin(["rows.jsonl:"], array("H", bytes(2 * len(rows))), array("q", range(1, len(rows) + 1)))
    data = Data(
        own,
        dict(task.schema.columns),
        target,
        [],
        prints,
        [],
        task.options,
        dict.fromkeys(own, origin),
        task.schema.corpus,
    )
    recipe = load_recipe(once, check_files=False)
    job = Job(recipe, encoder(folder), task, data, features=rows)
    write_metadata(Jobs(recipe, {"": job}), run, {"": [FOUND]})
    small.write_rows(
        where / "metrics.jsonl", [{"seed": 1, "step": step, "loss": 1 / step} for step in (1, 2, 3)]
    )
    outcome = {"seed": 1, "headline": None, "metrics": {"validation": {}}, "steps": 1, "seconds": 1.0}
    finish_job(job, run, [outcome | {"best_step": None}], 0.0, None, ())
    write_card(run)
    return run


def restate(run, file, *without, **changed):
    """Change what a JSON file of the run states, and take some of it out."""
    stated = json.loads((run.folder / file).read_text(encoding="utf-8")) | changed
    kept = {key: value for key, value in stated.items() if key not in without}
    (run.folder / file).write_text(json.dumps(kept), encoding="utf-8")
