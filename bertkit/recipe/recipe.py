"""The recipe: what to train, on what, and how. It is read, changed and completed here, and written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from pydantic import PrivateAttr

from bertkit import sections
from bertkit.data.python_rows import Rows, store_rows
from bertkit.errors import RecipeError
from bertkit.recipe import shipped_recipes
from bertkit.recipe.cross_checks import format_problems
from bertkit.recipe.fields import MEAN, Sections, Several, TaskPart, Training
from bertkit.recipe.key_problems import Report
from bertkit.recipe.overrides import apply_overrides, fill_sections, plain_sections
from bertkit.recipe.parts import SHARED, check_parts, mapping
from bertkit.recipe.plain_data import resolve_paths, texts_in, without
from bertkit.recipe.yaml import written
from bertkit.sections import DataSpec, ModelSpec, Section, Seed
from bertkit.tasks import task_names
from bertkit.text import Json, KeyPath, Record, escape_controls
from bertkit.validation import KeyProblem, describe, did_you_mean, validate


class Recipe(Sections):
    """The complete settings of one run: task, encoder, data, training. Immutable; every default is filled in.

    `Recipe(task="text-classification", model="bert-base-uncased", data=frame)`: sections are dicts, as in
    YAML; task and model may be a name, and data what `bertkit.train` takes. Raises RecipeError with
    everything that is wrong, and DataError on rows that cannot be read.

    >>> data = "sample:sentiment"
    >>> recipe = bertkit.Recipe(task="text-classification", model="bert-base-uncased", data=data)
    >>> recipe.with_(learning_rate=1e-4).training["learning_rate"]
    0.0001
    """

    def __init__(self, **sections: Any) -> None:
        super().__init__(**_source(read(sections, several=False)).stated)

    def with_(self, *overrides: str, **values: Any) -> Recipe:
        """A recipe with changes, checked again: `key.sub=value` as on the command line, or as `bertkit.train`
        has them.

        Such as `recipe.with_("training.learning_rate=1e-4", "~early_stopping")` and `recipe.with_(epochs=2)`.
        What the recipe states is kept, what it leaves out is filled in again. Raises RecipeError, and
        DataError on rows that cannot be read.
        """
        return cast(Recipe, read(self, None, values, overrides, several=False))

    @property
    def parts(self) -> Mapping[str, Recipe]:
        """The recipe of each task: of one task, which has no name."""
        return {"": self}


class MultiTaskRecipe(Several):
    """The complete settings of a run of several tasks. Immutable; every default is filled in."""

    model: ModelSpec
    batching: sections.Batching | None
    training: Json
    seeds: list[Seed]
    early_stopping: sections.EarlyStopping | None
    peft: sections.Lora | None
    freeze: sections.Freeze | None
    verify: bool
    explain: bool
    checkpoints: sections.Checkpoints
    _parts: dict[str, Recipe] = PrivateAttr()

    @property
    def parts(self) -> Mapping[str, Recipe]:
        """Name -> the recipe that would train this task by itself."""
        return self._parts


AnyRecipe: TypeAlias = Recipe | MultiTaskRecipe


def read(
    source: Any,
    data: Any = None,
    values: Mapping[str, Any] = {},
    overrides: Sequence[str] = (),
    *,
    check_files: bool = True,
    own_metrics: bool = True,
    several: bool = True,
) -> AnyRecipe:
    """Read, change, check and complete a recipe of one task or of several.

    source: a recipe, a dict of what `Recipe` takes, a file, the name of a shipped recipe, or that of a task.
    data: replaces its `data:`, if not None. values: sections, and keys of sections by their own names.
    overrides: as for `load_recipe`, after the values; as are check_files and own_metrics. several: whether it
    may be of several tasks. Raises RecipeError with everything that is wrong, and DataError on rows that
    cannot be read.
    """
    if isinstance(source, AnyRecipe if several else Recipe) and data is None and not values and not overrides:
        return source
    origin = _source(source)
    stated = origin.stated
    report = origin.report
    plain, more = plain_sections(values if data is None else {"data": data, **values})
    fill_sections(stated, plain, report)
    apply_overrides(stated, overrides, report)
    if "tasks" in stated and not several:
        fix = "Use a recipe of one task; a run has them: RUN/NAME/recipe.yaml."
        report.add(KeyProblem(("tasks",), "expected a recipe of one task, found several tasks", fix))
        report.raise_if_any()
    checked = check_parts(stated, report, check_files, own_metrics)
    for name, splits in {**origin.rows, **more}.items():
        if splits:
            checked[name]["data"] |= store_rows(splits)
    parts = {}
    for name, section in checked.items():
        valid = Sections.model_validate(section)
        parts[name] = Recipe.model_construct(valid.model_fields_set, **dict(valid))
    return _together(stated, parts) if "tasks" in stated else parts[""]


def _together(stated: Json, parts: dict[str, Recipe]) -> MultiTaskRecipe:
    """The recipe of several tasks, from the recipe of each."""
    tasks = {}
    for name, part in parts.items():
        entry = {**stated["tasks"][name], "task": part.task, "data": part.data}
        if "metric_for_best_model" in entry:
            entry["metric_for_best_model"] = part.training.get("metric_for_best_model")
        tasks[name] = TaskPart(**entry)
    first = next(iter(parts.values()))
    shared = {name: getattr(first, name) for name in SHARED}
    length = mapping(stated.get("model")).get("max_length", ModelSpec.model_fields["max_length"].default)
    shared["model"] = first.model.model_copy(update={"max_length": length})
    training = mapping(stated.get("training"))
    shared["training"] = Training({**first.training, "metric_for_best_model": MEAN, **training}, training)
    recipe = MultiTaskRecipe.model_construct({*stated}, **{**stated, **shared, "tasks": tasks})
    recipe._parts = parts
    return recipe


def load_recipe(
    source: str | Path | Record,
    overrides: Sequence[str] = (),
    *,
    check_files: bool = True,
    own_metrics: bool = True,
) -> Recipe:
    """Read, override, check and complete a recipe.

    source: a file, the name of a shipped recipe, or a dict of what `Recipe` takes.
    overrides: `key.sub=value` (YAML values) and `~key.sub`. Paths in a recipe file are relative to its
    folder, those in overrides and shipped recipes to the working directory; in the result all are absolute.
    check_files: whether data files and model folders must exist.
    own_metrics: whether `metric_for_best_model` may be unknown, as one of your own metrics that `train`
    takes.

    Raises RecipeError with everything that is wrong.

    >>> bertkit.load_recipe("quickstart", ["seeds=[1, 2]"]).seeds
    [1, 2]
    """
    recipe = read(
        source, None, {}, overrides, check_files=check_files, own_metrics=own_metrics, several=False
    )
    return cast(Recipe, recipe)


def copied(source: str | Path, target: Path) -> str:
    """The text of a recipe for the file `target`: its relative paths name what they name now. Raises
    RecipeError.
    """
    origin = _source(source)
    report = origin.report
    sections = without(origin.stated, set())
    check_parts(origin.stated, report, check_files=False, own_metrics=True)
    home = os.path.abspath(target.parent)
    paths = dict[KeyPath, str]()
    entries: list[tuple[KeyPath, Json]] = [((), sections)]
    entries += [(("tasks", name), part) for name, part in mapping(sections.get("tasks")).items()]
    for prefix, entry in entries:
        before = dict(texts_in(entry))
        list(resolve_paths(entry, lambda path: report.home, must_exist=False))
        for path, absolute in texts_in(entry):
            text = os.path.expanduser(before[path])  # joined to a folder, an absolute path stays as it is
            if before[path] != absolute and os.path.abspath(os.path.join(home, text)) != absolute:
                text = Path(os.path.relpath(absolute, home)).as_posix()
                paths[*prefix, *path] = text if text.startswith("..") else f"./{text}"
    return report.document.with_texts(paths)


def tasks_of_recipe(file: Path) -> list[str]:
    """The names of the tasks that a recipe file has, in their order; of a recipe of one task, none."""
    return [*mapping(_source(file).stated.get("tasks"))]


def parse_data_spec(data: Record, overrides: Sequence[str] = ()) -> DataSpec:
    """A `data:` section from plain data and `data.key=value` overrides. Raises RecipeError like
    load_recipe.
    """
    section = {"data": dict(data)}
    report = Report("")
    apply_overrides(section, overrides, report)
    problems = validate(_DataOnly, section)
    clean = without(section, {problem.path for problem in problems})
    report.add(*problems, *format_problems(clean), *resolve_paths(clean, report.folder))
    report.raise_if_any()
    return _DataOnly.model_validate(clean).data


def parse_layout(overrides: Sequence[str]) -> DataSpec:
    """How one file is written, from overrides such as `data.delimiter=";"`; `source` has no meaning.

    Raises RecipeError, also where another key of `data:` is given.
    """
    spec = parse_data_spec({"source": "-"}, overrides)
    if other := spec.model_fields_set.difference(LAYOUT, ["source"]):
        raise RecipeError(
            f"override data.{min(other)}",
            f"only the layout of the file can be set here: {', '.join(f'data.{name}' for name in LAYOUT)}",
            "Map columns by the option for columns.",
        )
    return spec


def to_yaml(recipe: sections.Section, without: Iterable[str] = ()) -> str:
    """A recipe of one task or of several as YAML text with every default written: read again, it is an equal
    recipe.

    The folder of rows given from Python is left out: a run has them in data/, wherever it is moved. without:
    sections that are left out too.
    """
    left_out: Json = {"data": {"folder"}, "tasks": {"__all__": {"data": {"folder"}}}}
    return written(recipe.model_dump(exclude=left_out | dict.fromkeys(without, True)))


LAYOUT = "format sheet header delimiter extra_fields encoding".split()  # of `data:`, for a file


class _DataOnly(Section):
    data: DataSpec


class _Source(NamedTuple):
    """A source of `read`."""

    stated: Json  # as plain data
    rows: dict[str, Mapping[str, Rows]]  # by task and split
    report: Report  # what is wrong so far


def _source(source: Any) -> _Source:
    """What a source states. A file is read once: it may be a pipe. Raises RecipeError where it cannot be
    read.
    """
    if isinstance(source, AnyRecipe):
        stated = source.model_dump(exclude_unset=True)
        if isinstance(source.training, Training):
            stated["training"] = {
                name: source.training[name] for name in source.training if name in source.training.stated
            }
        return _Source(stated, {}, Report(""))
    if isinstance(source, Mapping):
        return _Source(*plain_sections(source), Report(""))
    if not isinstance(source, str | Path):
        raise RecipeError(
            "",
            f"expected a task, a recipe or its name first, found {describe(source)}",
            'bertkit.train("text-classification", "runs/x", data=…, model=…)',
        )
    name = str(source)
    if name in task_names():
        return _Source({"task": {"name": name}}, {}, Report(""))
    shipped = shipped_recipes()
    file = shipped.get(name) or Path(os.path.expanduser(source))
    # Not of a pipe, nor of /dev/stdin, which may be a file.
    folder = file.absolute().parent
    in_folder = os.path.isfile(file) and not folder.is_relative_to("/dev") and name not in shipped
    home = folder if in_folder else Path()
    report = Report(escape_controls(str(file)), home)
    fix = "Start with `task:`, `model:` and `data:`, or with a copy: bertkit copy quickstart my.yaml."
    try:
        return _Source(report.read_file(file, "recipe", fix), {}, report)
    except RecipeError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        near = [path.name for path in folder.glob("*.y*ml")]
        raise RecipeError(
            report.name,
            f"no such recipe or task{did_you_mean(file.name, [*task_names(), *shipped, *near])}",
            f"Tasks: {', '.join(task_names())}. Shipped recipes: {', '.join(shipped) or 'none'}.",
        ) from None
