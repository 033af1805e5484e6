"""`audit`: cross-validate a recipe, and list the training rows that are worth a second look."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bertkit import processes
from bertkit.audits.duplicates import near_duplicates
from bertkit.audits.entity_errors import sentences
from bertkit.audits.label_errors import label_sets, numbers, questions, single_labels
from bertkit.audits.next_rows import next_part, read_unlabelled
from bertkit.audits.parts import Row, Section, rows_of, unit_vectors
from bertkit.data.delimited import guarded, write_csv
from bertkit.data.python_rows import keep_rows
from bertkit.data.schema import Schema
from bertkit.errors import ModelError, RecipeError, UserError
from bertkit.files import lines_of, write_text, written_aside
from bertkit.inference.decisions import with_word_scores
from bertkit.inference.predictor import load
from bertkit.recipe.recipe import Recipe, read, to_yaml
from bertkit.report.facts import EDITED
from bertkit.report.html import render
from bertkit.report.mistakes import place_of, shortened
from bertkit.run import OUT_OF_FOLD, Run, names_in, only_writer
from bertkit.sections import DataSpec
from bertkit.tasks import get_task, task_names
from bertkit.training.folds import DEFAULT_FOLDS, cross_validate

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_ROWS = 100  # of a part on the page; its files have all
OTHERS = (
    " Rows of train are predicted by models of the other folds. All others are predicted by one model that "
    "was not trained on them; its checkpoint and calibration are chosen on validation."
)
LABELS: Mapping[str, Callable[[Recipe, Sequence[Row], str, str], Section]] = {
    "label": single_labels,
    "labels": label_sets,
    "number": numbers,
    **dict.fromkeys(("tags", "word_labels"), sentences),
    "answers": questions,
}
"""What a target holds -> what finds the wrong ones in this column."""


@dataclass(frozen=True)
class Audit:
    """An audit's folder: audit.html, and the rows of each part as NAME.jsonl and NAME.csv.

    parts: none on other ranks.
    """

    folder: Path
    parts: Sequence[Section] = field(repr=False)

    def frame(self, name: str = "labels") -> DataFrame:
        """The rows of a part, the first to look at first. Raises KeyError: there is no part of this name."""
        import pandas as pd

        return pd.DataFrame([*{part.name: part.rows for part in self.parts}[name]])


def audit(
    source: Any,
    output_dir: str | Path,
    *,
    data: Any = None,
    overrides: Sequence[str] = (),
    unlabelled: str | Path | None = None,
    next: int | None = None,
    **values: Any,
) -> Audit:
    """Answer each row with a model that was not trained on it, and list the rows that may be wrong.

    source: a recipe, a shipped recipe's name, a recipe file or the name of a task; or a run folder, whose
        out-of-fold answers are used if it has them and nothing is overridden.
    output_dir: a new or empty folder; the same call continues what was interrupted.
    data, values: as for `train`.
    overrides: as for `load_recipe`.
    unlabelled: a file from which `next` rows are chosen for labelling, 100 by default.
    Raises UserError, RecipeError, DataError or ModelError before anything is trained; ModelError on damaged
    answers.

    >>> audit = bertkit.audit("my.yaml", "audits/mine")
    >>> [part.name for part in audit.parts]
    ['labels', 'duplicates']
    """
    if next is not None and not unlabelled:
        raise UserError("next", "there is no file to choose rows from", "Add the file: unlabelled.")
    choose = (Path(unlabelled), 100 if next is None else next) if unlabelled else None
    folder = Path(output_dir).expanduser()
    run = None
    if isinstance(source, PathLike):
        source = fspath(source)
    named = isinstance(source, str) and data is None and source not in task_names()
    if isinstance(source, str) and (stored := Run(Path(source)).folder / "recipe.yaml").is_file():
        run = Run(stored.parent)
        source = str(stored)
    trained = [str(source), *(word for word in overrides if word.startswith("data."))]
    if not named or values.keys() & DataSpec.model_fields.keys():
        trained = [f"{folder}/recipe.yaml", "folds=null"]
    if run and data is None and not (overrides or values):
        return _audit(run.recipe, folder, choose, trained, run)
    recipe = read(source, data, values, overrides, own_metrics=not overrides, several=False)
    return _audit(cast(Recipe, recipe), folder, choose, trained)


def _audit(
    recipe: Recipe,
    folder: Path,
    choose: tuple[Path, int] | None,
    trained: Sequence[str],
    run: Run | None = None,
) -> Audit:
    """The program. choose: a file, and how many of its rows to choose for labelling.

    trained: what `bertkit train` is called with to train on corrected labels: the recipe that was named,
    which need not be that of the judging models. run: a run of this recipe, whose out-of-fold answers and
    model are used, if it has them.
    """
    if get_task(recipe.task.name).schema.corpus:
        raise RecipeError(
            "task.name",
            f"{recipe.task.name} has no labels to audit",
            "Audit the data of a task with labels.",
        )
    if not recipe.folds:
        recipe = recipe.with_(f"folds={DEFAULT_FOLDS}")
    _check_folder(folder, recipe)
    model = run.folder if run and (run.model / "config.json").is_file() else None
    new = read_unlabelled(recipe, *choose, model) if choose else None
    encode = unit_vectors(recipe.model) if recipe.model.name or new else None
    stored = run.predictions(OUT_OF_FOLD) if run else None
    answers = stored if stored and stored.is_file() else cross_validate(recipe, folder)
    if not processes.first():
        return Audit(folder, ())
    rows = _answered(recipe, answers)
    others = _others(recipe, rows, folder, run)
    parts = [labels(recipe, rows, others), *([near_duplicates(recipe, rows, encode)] if encode else [])]
    parts += [next_part(recipe, rows, new, encode, model)] if new and encode else []
    html = page(_schema(recipe), parts, folder, [*trained, corrections(recipe, folder)])
    with only_writer(Run(folder)):
        _check_folder(folder, recipe)  # another program may have written there in the meantime
        keep_rows(recipe.data, folder / "data")
        write_text(folder / "recipe.yaml", to_yaml(recipe))
        for part in parts:
            write_lists(part, folder)
        write_text(folder / "audit.html", html)
    return Audit(folder, parts)


def labels(recipe: Recipe, rows: Sequence[Row], others: Sequence[Row] = ()) -> Section:
    """The rows whose targets are likely wrong; none where a target says nothing about a row by itself.

    rows: of train. others: those of the other splits that a model answered, with their `split`.
    """
    if target := _judged(recipe, rows[0]):
        if others := [row for row in others if target in row]:  # test may be unlabelled
            rows = [*({"split": "train", **row} for row in rows), *others]
        column = _schema(recipe).columns[target]
        part = LABELS[column.holds](recipe, rows, target, column.answered)
        counts = Counter(row.get("split", "train") for row in rows)
        looked = f"Audited rows: {', '.join(f'{count:,} of {split}' for split, count in counts.items())}."
        return replace(part, notes=(looked + OTHERS * bool(others), *part.notes))
    what = f"There is no audit of labels for {recipe.task.name} with these targets"
    return Section("labels", "Labels", f"{what}: their predictions are not label probabilities.")


def _others(recipe: Recipe, rows: Sequence[Row], folder: Path, run: Run | None) -> list[Row]:
    """The rows of the other splits, with answers of the run's model, or of the first fold's in the audit's
    folder.
    """
    if not _judged(recipe, rows[0]):
        return []
    splits = ("validation", "test")
    if run is None:
        files = {split: Run(folder).predictions(split) for split in splits}
        return [
            {"split": split, **row}
            for split, file in files.items()
            if file.is_file()
            for row in _answered(recipe, file)
        ]
    if not (run.model / "config.json").is_file():
        return []
    predictor = load(run.folder)
    data = rows_of(recipe)
    task = with_word_scores(predictor.task)
    return [
        {"split": split, **row, "location": data.origins[split].public(number), "answer": answer}
        for split in splits
        if split in data.rows
        for number, (row, answer) in enumerate(
            zip(data.rows[split], task.answer(data.rows[split], predictor.predict_features), strict=True)
        )
    ]


def _judged(recipe: Recipe, row: Row) -> str:
    """The target that is audited; empty where no answer is a probability of it."""
    schema = _schema(recipe)
    target = next((name for name in schema.targets if name in row), "")
    column = schema.columns.get(target)
    return target if column and column.answered and column.holds in LABELS else ""


def _schema(recipe: Recipe) -> Schema:
    return get_task(recipe.task.name).schema_of(recipe.task)


def _answered(recipe: Recipe, file: Path) -> list[Row]:
    """The rows with their answers. Raises ModelError on a damaged one, or one that lacks what is compared."""
    rows: list[Row] = [*lines_of(file)]
    target = _judged(recipe, rows[0]) if rows else ""
    answered = target and _schema(recipe).columns[target].answered
    for number, row in enumerate(rows or [{}], 1):
        answer = row.get("answer")
        if not isinstance(answer, dict) or (target and not (target in row and answered in answer)):
            raise ModelError(f"{file}:{number}", "is not a row with a model's answer", EDITED)
    return rows


def _check_folder(folder: Path, recipe: Recipe) -> None:
    """Raises UserError unless the folder is new or empty, or holds an audit of this recipe."""
    if not names_in(folder):
        return
    stored = folder / "recipe.yaml"
    if not stored.is_file() or Run(folder).finished:
        raise UserError(folder, "is neither empty nor an audit", "Use another folder.")
    if stored.read_text(encoding="utf-8", errors="replace") != to_yaml(recipe):
        raise RecipeError(
            stored,
            "the audit was started with another recipe",
            "Use the same recipe and overrides, or another folder.",
        )


def page(schema: Schema, parts: Sequence[Section], folder: Path, trained: Sequence[str]) -> str:
    """audit.html. Everything that comes from the data is escaped. folder: where it and the lists are.

    trained: what `bertkit train` is called with to train on the corrected labels.
    """
    figures = {title: value for part in parts for title, value in part.figures.items()}
    return render(
        "audit.html",
        name=folder.resolve().name,
        figures=figures,
        parts=parts,
        command=shlex.join(["bertkit", "train", *trained, "--output-dir", "runs/corrected"]),
        place_of=place_of,
        texts_of=lambda row: schema.shown(row).values(),
        shortened=shortened,
        most=MAX_ROWS,
    )


def corrections(recipe: Recipe, folder: Path) -> str:
    """The override that names the corrected labels, and those of earlier corrections."""
    earlier = recipe.data.relabel or []
    files = [*([earlier] if isinstance(earlier, str) else earlier), f"{folder}/labels.jsonl"]
    return f"data.relabel={files[0] if len(files) == 1 else json.dumps(files, ensure_ascii=False)}"


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else guarded(value)


def write_lists(part: Section, folder: Path) -> None:
    """The rows as NAME.jsonl and NAME.csv, if there are any. In csv lists are JSON, and no cell is a
    formula.
    """
    if not part.rows:
        return
    with written_aside(folder / f"{part.name}.jsonl") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in part.rows)
    with written_aside(folder / f"{part.name}.csv", "utf-8-sig") as file:
        names = dict.fromkeys(chain(*part.rows))
        lines = [names, *(map(row.get, names) for row in part.rows)]
        write_csv(file, lines, f"{part.name}.csv", written=_cell)
