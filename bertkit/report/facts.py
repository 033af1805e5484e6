"""The facts of a finished run folder: report, comparison and model card are made from these alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, cast

from jinja2 import TemplateError
from pydantic import ValidationError
from safetensors.numpy import load_file

from bertkit.data.schema import Finding, Schema
from bertkit.errors import ModelError, Problem, translated
from bertkit.evaluation.graded import Graded
from bertkit.files import lines_of, read_json
from bertkit.inference.settings import damaged_settings
from bertkit.models.untrusted import shapes_of
from bertkit.recipe.plain_data import texts_in
from bertkit.recipe.recipe import Recipe
from bertkit.report.verdict import reported_split
from bertkit.run import Run
from bertkit.tasks import get_task
from bertkit.tasks.base import Task
from bertkit.text import Json, Record

Row = Mapping[str, Any]

RESULTS = "task headline splits baselines seeds over_seeds verified expected".split()
DATA = ("rows", "fingerprints", "findings")
ENVIRONMENT = ("python", "versions", "device", "precision")
EDITED = "It was edited or written by another version of bertkit: train it again."


@dataclass(frozen=True)
class Facts:
    """The contents of a run folder. Local paths in recipe and findings are reduced to their last part."""

    name: str
    recipe: Recipe
    recipe_text: str
    results: Record
    data: Record
    environment: Record
    log: tuple[Row, ...]  # metrics.jsonl
    options: Record  # of the settled task, with the types of its `Options`, as it was scored
    calibrated: Record  # what `bertkit calibrate` fitted after that, and on which rows; else empty
    split: str  # the split that is reported in detail: test, else validation, else the only one
    rows: tuple[Row, ...] = field(repr=False)  # its rows, each with its `answer`; empty without predictions
    max_length: int  # tokens of a window
    transitions: Any  # of a CRF, `(tags, tags)` fp64, from row to column; else None
    parameters: int  # of the saved model
    megabytes: float  # of its safetensors
    explanations: Record = field(default_factory=dict, repr=False)  # explanations.json, if it exists

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.results["task"]["name"])

    @property
    def schema(self) -> Schema:
        """The columns of the task."""
        return get_task(self.task).schema

    @property
    def headline(self) -> str:
        """The metric that selected the checkpoint."""
        return str(self.results["headline"])

    @property
    def scores(self) -> Record:
        """`rows`, `metrics`, `intervals` and task-specific details of the reported split."""
        return dict(self.results["splits"][self.split])

    @property
    def findings(self) -> list[Finding]:
        """What the checks of the data told."""
        return [Finding(**finding) for finding in self.data["findings"]]

    @property
    def truncated(self) -> int:
        """How many rows of the reported split had a text that was truncated."""
        return sum(bool(row["answer"].get("truncated")) for row in self.rows)


def read_facts(folder: str | Path, split: str = "") -> Facts:
    """Read a finished run folder. split: the one to report in detail; by default test, validation or the only
    one.

    Raises ModelError if the run is not finished, or if a file lacks required values, which are listed;
    UserError if a file is damaged.
    """
    run = Run(Path(folder))
    run.require_finished()
    root = run.folder
    model = run.model
    recipe = run.recipe
    results = _mapping(root / "results.json", RESULTS)
    settings = _mapping(model / "config.json", ("bertkit",))["bertkit"]
    task = get_task(settings["task"]["name"])
    calibrated = settings.get("calibration") or {}
    try:
        options = dict(task.Options.model_validate(settings["task"] | calibrated.get("before", {})))
    except ValidationError as error:
        raise damaged_settings(model, error, "bertkit.task") from error
    split = split or reported_split(results)
    # Answers for a corpus are counts, which the results already sum up.
    rows = () if task.schema.corpus else tuple(lines_of(run.predictions(split)))
    public = partial(without_folders, recipe)
    data = dict(_mapping(root / "data.json", DATA))
    data["findings"] = [
        {**finding, "what": public(finding["what"]), "fix": public(finding["fix"])}
        for finding in data["findings"]
    ]
    explanations = root / "explanations.json"
    crf = model / "crf.safetensors"
    weights = sorted([*model.glob("*.safetensors"), *model.glob("[0-9]_*/*.safetensors")])
    return Facts(
        name=root.resolve().name,
        recipe=recipe,
        recipe_text=public((root / "recipe.yaml").read_text(encoding="utf-8")),
        results=results,
        data=data,
        environment=_mapping(root / "environment.json", ENVIRONMENT),
        log=tuple(lines_of(root / "metrics.jsonl", appended=True)),
        options=options,
        calibrated=calibrated,
        split=split,
        rows=rows,
        max_length=settings["max_length"],
        transitions=load_file(crf)["transitions"].astype(float) if crf.is_file() else None,
        parameters=sum(prod(shape) for file in weights for shape in shapes_of(file)),
        megabytes=sum(file.stat().st_size for file in weights) / 1e6,
        explanations=_mapping(explanations, ("examples",)) if explanations.is_file() else {},
    )


def damage_as_error(folder: str | Path) -> AbstractContextManager[None]:
    """Within the block, values of another type or shape than those that bertkit writes raise a ModelError."""
    kinds = (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        StopIteration,
        TemplateError,
    )
    what = "one of its files has unexpected content"
    fix = f"{EDITED} Otherwise please report a bug of bertkit."
    return translated(kinds, ModelError, folder, what, fix)


def data_of(row: Row) -> Json:
    """A row of the data, without what a run adds, in which equal rows of two runs may differ."""
    return {name: value for name, value in row.items() if name not in ("answer", "id", "location")}


def task_of(facts: Facts) -> Task:
    """The task as it was scored, without a tokenizer, which `grade` does not need."""
    kind = get_task(facts.task)
    task: Any = object.__new__(kind)  # `__post_init__` may read the tokenizer
    options = kind.Options.model_construct(**facts.options)
    vars(task).update(options=options, tokenizer=None, max_length=facts.max_length)
    return cast(Task, task)


def graded(task: Task, rows: Sequence[Row]) -> Graded:
    """The answers of these rows, compared with their targets."""
    from datasets import Dataset

    return task.grade([row["answer"] for row in rows], Dataset.from_list([*map(data_of, rows)]))


def without_folders(recipe: Recipe, text: str) -> str:
    """The text, with the recipe's local paths cut to their last part."""
    for path in map(Path, local_paths(recipe)):  # whole ones: /data is not in facebook/data2vec
        parts = re.split(rf"(?<![\w.-]){re.escape(str(path))}(?![\w-])", text)
        text = path.name.join(parts)
    return text


def local_paths(recipe: Recipe) -> list[str]:
    """The absolute paths in a recipe, the longest first."""
    paths = {
        text for _, text in texts_in(recipe.model_dump(mode="json")) if text.startswith("/") and len(text) > 1
    }
    return sorted(paths, key=lambda path: (-len(path), path))


def _mapping(path: Path, required: Iterable[str]) -> Record:
    """The mapping in a JSON file, which must have the required keys."""
    if not path.is_file():
        raise ModelError(path, "is missing", "Restore the file from a copy, or train the run again.")
    value = read_json(path)
    stated = value if isinstance(value, Mapping) else {}
    if missing := [Problem(str(path), f"lacks `{name}`", EDITED) for name in required if name not in stated]:
        raise ModelError(missing)
    return stated
