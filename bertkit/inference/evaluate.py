"""Scoring a model on labelled rows: the same for training's last evaluation and for `bertkit evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import data as sources
from bertkit.data.disk_list import DiskList
from bertkit.errors import DataError, Problem, RecipeError
from bertkit.inference.predictor import Predictor, Spread, load, load_as
from bertkit.recipe.recipe import load_recipe, parse_data_spec

if TYPE_CHECKING:
    from datasets import Dataset


def score(predictor: Predictor, rows: Dataset, metrics: Sequence[Any] = ()) -> tuple[DiskList, dict[str, Any]]:
    """The answers for these rows, and `rows`, `metrics`, `intervals` (95 %, bootstrap) and the task's details.

    metrics: a user's own `evaluate.Metric` objects; their scores stand beside the task's.
    Raises UserError where the disk has no room for the answers.
    """
    task = predictor.task
    answers = DiskList(task.answer(rows, predictor.predict_features))
    scores = task.score(answers, rows)
    for metric in metrics:
        scores |= task.user_score(metric, answers, rows)
    details = task.details(answers, rows)
    return answers, {
        "rows": len(rows),
        "metrics": scores,
        "intervals": task.intervals(answers, rows),
        **details,
    }


def evaluate(
    source: str | Path,
    *,
    split: str | None = None,
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    revision: str | None = None,
    task: str | None = None,
    metrics: Sequence[Any] = (),
    rerank: str | None = None,
    depth: int = 20,
    spread: Spread = map,
) -> dict[str, Any]:
    """Score a run, a model folder or a Hub model on a split of the run's data, or on a file in their layout.

    file: rows in the layout of the run's data; or a folder of split files, of which `split` (test) is taken.
    rerank, depth: a cross-encoder that orders the first so many documents that a model for retrieval finds.
    overrides: of the data's settings, such as `data.columns.text=sentence`. revision, task, metrics: as for `load`
    and `score`. spread: as for `predictor`.
    Returns `split` and what `score` says. Raises ModelError, RecipeError or DataError.
    """
    unknown = [override for override in overrides if not override.lstrip("~").startswith("data.")]
    if unknown:
        what = "only `data.` settings can be changed here; the rest is the model's"
        raise RecipeError([Problem(f"override {override}", what) for override in unknown])
    folder = file is not None and Path(file).is_dir()
    if split is not None and file is not None and not folder:
        raise RecipeError(Problem("", "--split names a part of the run's data, --data a file: one or the other"))
    predictor = replace(load(source, revision=revision, task=task), spread=spread)
    kept = Path(source).expanduser() / "recipe.yaml"
    if kept.is_file():
        spec = load_recipe(kept, overrides, check_files=file is None).data
    elif file is None:
        raise DataError(Problem(str(source), "a model folder has no data of its own", "Name a file: --data FILE"))
    else:
        spec = parse_data_spec({"source": {"test": str(file)}, "columns": dict(predictor.columns)}, overrides)
    if file is not None:
        source_of_rows = str(file) if folder else {"test": str(file)}
        whole = {"source": source_of_rows, "validation": None, "limit": None, "splits": None}
        spec, split = spec.model_copy(update=whole), split or "test"
    data = sources.load(
        spec,
        predictor.task.schema,
        partial(predictor.task.refine, predictor.task.options),
        splits=None if file is None else {split or "test"},
        known_labels=None if file is None else predictor.task.known_labels,
    )
    labelled = [name for name, rows in data.rows.items() if data.target in rows.column_names]
    split = split or next((name for name in ("test", "validation") if name in labelled), "train")
    if split not in data.rows:
        fix = f"They have {', '.join(data.rows)}."
        raise DataError(Problem(f"--split {split}", "the run's data have no such split", fix))
    targets = predictor.task.schema.targets
    if targets and not set(targets).intersection(data.rows[split].column_names):
        *first, last = (f"`{name}`" for name in targets)
        what = f"no column {', '.join(first)}{' or ' if first else ''}{last} to score answers by"
        key = "COLUMN=NAME, where COLUMN is the one the model learned" if first else f"{targets[0]}=NAME"
        fix = f"If it has another name there: data.columns.{key}. Answers alone: bertkit predict."
        raise DataError(Problem(str(file or f"split {split}"), what, fix))
    if rerank is not None:
        from bertkit.inference.two_stage import evaluate_two_stages

        ranker = replace(load_as("text-ranking", rerank), spread=spread)
        return {"split": split, **evaluate_two_stages(predictor, ranker, data.rows[split], depth)}
    return {"split": split, **score(predictor, data.rows[split], metrics)[1]}
