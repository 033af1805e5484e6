"""What a run is trained with, as its folder has it: recipe, data and versions; a resumed run must have the
same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from bertkit import processes
from bertkit.data.python_rows import keep_rows
from bertkit.data.schema import Finding
from bertkit.engine.callbacks import MetadataWriter
from bertkit.errors import DataError, Problem, RecipeError, UserError
from bertkit.files import read_json, write_json, write_text
from bertkit.models.quiet import no_bars, quiet_logger
from bertkit.recipe.recipe import AnyRecipe, tasks_of_recipe, to_yaml
from bertkit.run import Run, names_in, only_writer, versions
from bertkit.text import Json
from bertkit.training.job import NO_EXTENSIONS, Extensions, Job, Jobs, prepare_jobs

ANYWAY = "continue anyway: resume and changed"
MARK = "recipe.sha256"  # in the folder of each seed and fold: see `trained_with`


@contextmanager
def open_run(
    recipe: AnyRecipe,
    run: Run,
    resume: bool,
    changed: bool = False,
    extensions: Extensions = NO_EXTENSIONS,
) -> Iterator[tuple[Jobs, MetadataWriter]]:
    """Within the block, no other program writes into the run: its jobs, and what writes what they are trained
    with.

    resume, changed: as for `train`. Raises UserError before anything is written.
    """
    first = processes.first()  # under torchrun, one process writes
    if first:
        require_folder(recipe, run, resume, changed)
    with nullcontext() if first else quiet_logger("bertkit"):  # and reports for all
        jobs, findings = prepare_jobs(recipe, extensions)
    with only_writer(run) if first else nullcontext(), no_bars():
        if first:
            # another program may have trained there in the meantime
            require_folder(recipe, run, resume, changed)
            for name, part in jobs.runs(run).items():
                require_unchanged(jobs.by_task[name], part, changed)
        metadata = MetadataWriter(partial(write_metadata, jobs, run, findings))
        # a training may refuse the one that it continues from
        if not any(run.checkpoints.rglob("checkpoint-*")):
            metadata.write()
        yield jobs, metadata


def require_folder(recipe: AnyRecipe, run: Run, resume: bool, changed: bool) -> None:
    """Raises UserError unless the folder is new or empty or, to resume, a run of this recipe, and of the same
    tasks.

    changed: accept a run of another recipe for the same tasks, and trainings with another recipe. Nothing is
    written, so that errors in data or model leave no folder behind.
    """
    folder = run.folder
    stored = run.folder / "recipe.yaml"
    if not names_in(folder):
        return
    if not resume:
        raise UserError(
            folder,
            "holds a finished run" if run.finished else "is not empty",
            "Choose another folder" + (", or resume it." if stored.is_file() and not run.finished else "."),
        )
    if not stored.is_file():
        raise UserError(
            folder, "is not a run: it has no recipe.yaml", "Use a new folder, or the folder of a run."
        )
    text = to_yaml(recipe)
    before = stored.read_text(encoding="utf-8", errors="replace")
    if before != text and not changed:
        new = [line.strip() for line in text.splitlines() if line not in before.splitlines()]
        raise RecipeError(
            stored,
            "the run was started with another recipe; new lines: "
            f"{'; '.join(new[:5]) or 'none, some are missing'}",
            f"Use the same recipe and overrides, or another folder, or {ANYWAY}.",
        )
    fix = f"Remove it, start a new run in another folder, or {ANYWAY}."
    for training in () if changed or run.finished else sorted(run.checkpoints.glob("*-*")):
        mark = training / MARK
        recorded = mark.read_text(errors="replace") if mark.is_file() else ""
        if names_in(training) and recorded != trained_with(recipe):
            raise RecipeError(training, "contains checkpoints of another recipe", fix)
    tasks = tasks_of_recipe(stored)
    now = [name for name in recipe.parts if name]
    if tasks != now:
        started, wanted = (
            f"the tasks {', '.join(names)}" if names else "one task by itself" for names in (tasks, now)
        )
        raise RecipeError(
            stored,
            f"the run was started with {started}, and has {wanted} now",
            "List the same tasks in the same order, or start a new run in another folder.",
        )


def require_unchanged(job: Job, run: Run, changed: bool) -> None:
    """Raises DataError on a resume with other data, libraries or attachments; with other folds even if
    `changed`.
    """
    record = run.folder / "data.json"
    environment = run.folder / "environment.json"
    now = versions()
    before = _section(environment, "versions", now)
    other = [f"{name} {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
    attached = job.extensions.names
    started = _section(environment, "attachments", attached)
    first, second = (", ".join(names) or "no attachments of yours" for names in (started, attached))
    mixed = _section(record, "folds", {}) not in ({}, _folds(job))
    changes = (
        (
            mixed,
            record,
            "the folds differ from those this run was started with: a model may predict rows that it was "
            "trained on",
            "Start a new run.",
        ),
        (
            _section(record, "fingerprints", job.data.fingerprints) != job.data.fingerprints,
            record,
            "the data differ from those this run was started with (their sha256 differs)",
            f"Restore the data, start a new run, or {ANYWAY}.",
        ),
        (
            other,
            environment,
            f"the libraries differ from those this run was started with: {'; '.join(other)}",
            f"Install those versions, start a new run, or {ANYWAY}.",
        ),
        (
            attached != started,
            environment,
            f"the run was started with {first}, and has {second} now",
            "Resume it from Python with the same compute_loss_func and attachments, start a new run, or "
            f"{ANYWAY}.",
        ),
    )
    problems = [Problem(str(file), what, fix) for differs, file, what, fix in changes if differs]
    if problems and (mixed or not changed):
        raise DataError(problems)


def trained_with(recipe: AnyRecipe) -> str:
    """sha256 of the sections of a recipe that determine a training."""
    later = "seeds folds verify explain checkpoints hub expected".split()
    return hashlib.sha256(to_yaml(recipe, later).encode()).hexdigest()


def write_metadata(jobs: Jobs, run: Run, findings: Mapping[str, Sequence[Finding]]) -> None:
    """Write what the run and each of its tasks is trained with: recipe, versions, data, and rows from
    Python.
    """
    write_text(run.folder / "recipe.yaml", to_yaml(jobs.recipe))
    for name, part in jobs.runs(run).items():
        job = jobs.by_task[name]
        # first: without it the folder is not a run
        write_text(part.folder / "recipe.yaml", to_yaml(job.recipe))
        write_json(part.folder / "environment.json", {"versions": versions()} | job.extensions.recorded)
        rows = {split: len(rows) for split, rows in job.data.rows.items()}
        facts: Json = {"fingerprints": job.data.fingerprints, "rows": rows}
        if folds := _folds(job):
            facts["folds"] = folds
        if files := keep_rows(job.recipe.data, part.folder / "data"):
            facts["files"] = files
        facts["findings"] = [finding._asdict() for finding in findings[name]]
        write_json(part.folder / "data.json", facts)


def _folds(job: Job) -> Json:
    """The number of folds, and what tells them and their rows from others; empty without folds."""
    parts = json.dumps([job.data.fingerprints["train"], *job.folds])
    return (
        {"count": max(job.folds), "sha256": hashlib.sha256(parts.encode()).hexdigest()} if job.folds else {}
    )


def _section(file: Path, name: str, default: Any) -> Any:
    """A section of a JSON file; the default without the file, empty where it is missing or of another
    kind.
    """
    if not file.is_file():
        return default
    content = read_json(file)
    section = content.get(name) if isinstance(content, dict) else None
    return section if isinstance(section, type(default)) else type(default)()
