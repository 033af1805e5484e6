"""Scoring a model on labelled rows: the same for training's last evaluation and for `bertkit evaluate`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from bertkit.data import load as load_data
from bertkit.data import log_findings
from bertkit.data.disk_list import DiskList, disk_full_as_error
from bertkit.data.on_disk import column_values
from bertkit.data.python_inputs import scored_section
from bertkit.data.schema import Answer
from bertkit.data.values import is_blank
from bertkit.encoding.texts import unknown_findings
from bertkit.errors import DataError, Problem, RecipeError, UserError
from bertkit.evaluation.graded import Graded, all_scores
from bertkit.evaluation.ranking import MAX_HITS, ids, rows_by_query
from bertkit.inference.multitask_predictor import tasks_of_run
from bertkit.inference.predictor import Predictor, load, load_as
from bertkit.recipe.recipe import load_recipe, parse_data_spec
from bertkit.sections import DataSpec
from bertkit.tasks.base import Predict, Task
from bertkit.text import Json
from bertkit.validation import describe, did_you_mean

# keys of `data:` that decide which rows are held out
HOLD_OUT = (
    "validation test group_by seed splits exclude relabel columns labels labels_separator missing_labels"
).split()
# of `data:`; not for a file given in its place
OF_SOURCE = "validation test limit splits exclude relabel fingerprint".split()

# of a column; beyond, the rarest are scored as one, and numbers by quartile
MOST_VALUES = 50
MOST_NUMBERS = 20
DEPTH = 20  # documents per query that a cross-encoder reorders
NONE = "(none)"  # the name of a missing value


def score(
    predictor: Predictor, rows: Dataset, metrics: Sequence[Any] = (), by: str | None = None
) -> tuple[Iterable[Any], Json]:
    """The answers for these rows, and `rows`, `metrics`, `intervals` (95 %, bootstrap) and the task's
    details.

    Where vectors are learned at several sizes (`task.dims`), `dims` has the metrics of each.
    metrics: a user's own `evaluate.Metric` objects; their scores are added to the task's. by: as for
    `scored`.
    Raises UserError where the disk has no room for the answers.
    """
    task = predictor.task
    predict = predictor.predict_features
    if not task.sizes:
        answers = DiskList(task.answer(rows, predict))
        return answers, scored(task, answers, rows, metrics, by)[1]
    with tempfile.TemporaryFile() as file:  # of vectors, which may not fit into memory

        def keep(features: Dataset) -> Sequence[Any]:
            vectors = predict(features)
            with disk_full_as_error():
                np.save(file, np.stack(vectors))
            return vectors

        def first(size: int) -> Predict:
            return lambda features: list(np.load(file)[:, :size])

        answers = DiskList(task.answer(rows, keep))
        scores = {**scored(task, answers, rows, metrics, by)[1], "dims": {}}
        for size in task.sizes:
            file.seek(0)
            scores["dims"][str(size)] = task.grade(DiskList(task.answer(rows, first(size))), rows).scores
    return answers, scores


def scored(
    task: Task, answers: DiskList, rows: Dataset, metrics: Sequence[Any] = (), by: str | None = None
) -> tuple[Graded, Json]:
    """The answers, graded; and `rows`, `metrics`, `intervals` (95 %, bootstrap) and the task's details.

    metrics: as for `score`. by: a column; `by` is then column -> value -> the first three for its rows.
    """

    def overall(graded: Graded, count: int) -> Json:
        return {"rows": count, "metrics": all_scores(graded, metrics), "intervals": dict(graded.intervals())}

    graded = task.grade(answers, rows)
    scores = {**overall(graded, len(rows)), **graded.details()}
    if by is not None and by in rows.column_names:
        parts = rows_by_value(rows, by).items()
        of_value = {
            value: overall(task.grade(answers.select(places), rows.select(places)), len(places))
            for value, places in parts
        }
        scores["by"] = {by: of_value}
    return graded, scores


def rows_by_value(rows: Dataset, column: str) -> dict[str, list[int]]:
    """Value of a column -> its rows, the most frequent first. Many numbers, such as lengths, are cut at
    quartiles.
    """
    places: dict[str, list[int]] = {}
    cells = column_values(rows, column)
    values = [NONE if is_blank(cell) or cell != cell else str(cell) for cell in cells]
    present = [value for value in values if value != NONE]
    names = {value: value for value in values}
    if len(set(present)) > MOST_NUMBERS:
        with suppress(ValueError):  # not numbers
            numbers = np.array(present, dtype=float)
            edges = np.unique(np.nanquantile(numbers, [0.25, 0.5, 0.75, 1], method="higher"))
            cut = [
                f"up to {edges[place]:.15g}" if place < len(edges) else NONE  # the text NaN
                for place in np.searchsorted(edges, numbers)
            ]
            names |= dict(zip(present, cut, strict=True))
    for number, value in enumerate(values):
        places.setdefault(names[value], []).append(number)
    ranked = sorted(places.items(), key=lambda item: (-len(item[1]), item[0]))
    if rest := ranked[MOST_VALUES:]:
        ranked[MOST_VALUES:] = [
            (f"{len(rest)} other values", sorted(chain.from_iterable(dict(rest).values())))
        ]
    return dict(ranked)


def rows_of_split(
    source: str | Path,
    predictor: Predictor,
    data: Any,
    split: str | None,
    preferred: Sequence[str],
    overrides: Sequence[str] = (),
) -> tuple[str, Dataset]:
    """A split of the run's data, or of `data`, with the split's name. Raises DataError, RecipeError.

    data: as for `evaluate`. split: None: the first of `preferred` that has targets, or else train.
    """
    unknown = [override for override in overrides if not override.lstrip("~").startswith("data.")]
    if unknown:
        what = "is part of the model; only keys of `data` can be overridden here"
        raise RecipeError([Problem(f"override {override}", what, "Leave it out.") for override in unknown])
    recipe = Path(source).expanduser() / "recipe.yaml"
    section = None if data is None else _section_of(data)
    if recipe.is_file():
        spec = load_recipe(recipe, overrides, check_files=section is None).data
        if section is None and overrides:
            _require_same_hold_out(spec, load_recipe(recipe, check_files=False).data)
    elif section is None:
        raise DataError(source, "has no data: it is not a run", "Pass labelled rows as `data`.")
    else:
        spec = parse_data_spec({"columns": dict(predictor.columns), **section}, overrides)
    task = predictor.task
    splits = None
    known_labels = None
    if section is not None:
        if isinstance(data, Mapping) and "source" in section:
            parse_data_spec(section)  # only for its errors
        kept = {key for key in OF_SOURCE for text in overrides if text.startswith(f"data.{key}")}
        spec = spec.model_copy(update={**dict.fromkeys({*OF_SOURCE} - kept), **section})
        split = split or "test"
        splits = {split}
        known_labels = task.known_labels
    schema = task.schema_of(task.options)
    rules = task.rules(task.options)
    read = load_data(spec, schema, rules, splits=splits, known_labels=known_labels)
    if section is not None:  # training reported those of the run's own data
        log_findings(read.findings)
    labelled = [name for name, rows in read.rows.items() if read.target in rows.column_names]
    split = split or next((name for name in preferred if name in labelled), "train")
    if split not in read.rows:
        have = f"the data have {', '.join(read.rows)}"
        raise DataError(
            "split",
            f"no split {split!r}{did_you_mean(split, read.rows)}; {have}",
            "Train again with  data: {validation: 0.1, test: 0.1}.  Or pass labelled rows as `data`.",
        )
    targets = task.schema.targets
    rows = read.rows[split]
    if targets and not set(targets) & set(rows.column_names):
        what = f"no column {' or '.join(f'`{name}`' for name in targets)} to score answers by"
        key = f"{targets[0]}=NAME" if len(targets) == 1 else "COLUMN=NAME, where COLUMN is the model's target"
        raise DataError(
            str(data) if isinstance(data, str | Path) else f"split {split}",
            what,
            f"If it has another name, map it: data.columns.{key}. For answers without scores, use predict.",
        )
    return split, rows


def _require_same_hold_out(spec: DataSpec, trained: DataSpec) -> None:
    """Raises RecipeError where other rows of the same source would be held out than in training."""
    changed = [key for key in HOLD_OUT if getattr(spec, key) != getattr(trained, key)]
    held_out = {spec.validation, spec.test, trained.validation, trained.test} != {None}
    if changed and held_out and spec.source == trained.source:
        what = "another hold-out has rows that the model was trained on"
        raise RecipeError(f"override data.{changed[0]}", what, "Train again with it, or pass other rows.")


def _section_of(data: Any) -> Json:
    """Keys of a `data:` section that take the place of the run's source: for rows, a file, or a folder of
    splits.
    """
    if not isinstance(data, str | Path):
        return scored_section(data)
    return {"source": str(data) if Path(data).is_dir() else {"test": str(data)}}


def evaluate(
    source: str | Path,
    data: Any = None,
    *,
    split: str | None = None,
    overrides: Sequence[str] = (),
    revision: str | None = None,
    task: str | None = None,
    metrics: Sequence[Any] = (),
    rerank: str | None = None,
    depth: int = DEPTH,
    by: str | None = None,
) -> Json:
    """Score a run, a model folder or a Hub model on a split of the run's data, or on other rows in the same
    layout.

    data: a file in the layout of the run's data; a folder of split files, from which `split` (by default
        test) is read; or rows as for `bertkit.train`, alone or by split.
    split: by default the first of test, validation and train that has targets; with `data`, test.
    by: a column; the scores of each of its values are reported too.
    rerank, depth: a cross-encoder that reorders the first `depth` documents of a retrieval model.
    overrides: of keys of `data`, such as `data.columns.text=sentence`. revision, task, metrics: as for
    `load` and `score`.
    Returns `split` and the result of `score`; for a run of several tasks, a dict of these by task, each
    scored on its own data. Raises ModelError, RecipeError or DataError.

    >>> scores = bertkit.evaluate("runs/quickstart", split="test")
    >>> 0 <= scores["metrics"]["accuracy"] <= 1
    True
    """
    if not isinstance(metrics, list | tuple):
        raise RecipeError("metrics", f"expected a list, found {describe(metrics)}", "Pass metrics=[…].")
    if rerank is None and depth != DEPTH:
        raise UserError("depth", "has no effect without rerank", "Leave it out, or name a cross-encoder.")
    folder = Path(source).expanduser()
    if names := tasks_of_run(folder):
        if data is not None:
            raise RecipeError(
                source,
                "is a run of several tasks, and each is scored on its own data",
                f"Pass {source}/NAME, the run of one task.",
            )
        return {
            name: evaluate(
                folder / name,
                split=split,
                overrides=overrides,
                revision=revision,
                task=task,
                metrics=metrics,
                rerank=rerank,
                depth=depth,
                by=by,
            )
            for name in names
        }
    if split is not None and isinstance(data, str | Path) and not Path(data).is_dir():
        raise RecipeError("`split` is a split of the run's data, `data` another file: pass only one of them")
    predictor = load(source, revision=revision, task=task)
    overrides = [*overrides, f"data.by={json.dumps(by)}"] if by else overrides
    split, rows = rows_of_split(source, predictor, data, split, ("test", "validation"), overrides)
    unknown = unknown_findings(predictor.task.tokenizer, str(source), rows, predictor.task.schema, split)
    log_findings(finding._replace(level="warn") for finding in unknown)
    if rerank is None:
        return {"split": split, **score(predictor, rows, metrics, by)[1]}
    ranker = load_as("text-ranking", rerank)
    return {"split": split, **evaluate_two_stages(predictor, ranker, rows, depth, metrics)}


def evaluate_two_stages(
    retriever: Predictor, ranker: Predictor, rows: Dataset, depth: int, metrics: Sequence[Any] = ()
) -> Json:
    """Scores of a search whose hits a cross-encoder reorders (Nogueira & Cho 2019), and of the search alone.

    Returns what `score` does of both stages, `first_stage` and `depth`.
    depth: number of documents per query that the cross-encoder reorders; the rest follow in the retriever's
    order.
    Raises UserError where the models are not for retrieval and text-ranking, or depth is out of range.
    """
    if not 1 <= depth <= MAX_HITS:
        raise UserError(
            "depth",
            f"expected 1 to {MAX_HITS}, found {depth}",
            f"The retriever returns the first {MAX_HITS} documents of a query.",
        )
    task = retriever.task
    if not task.schema.together:
        raise UserError(
            "the model", f"a model for {task.name} retrieves no documents", "Use a model for retrieval."
        )
    if not ranker.task.ranks:
        raise UserError("rerank", f"is a model for {ranker.task.name}", "Use one for text-ranking.")
    answers = list(task.answer(rows, retriever.predict_features))
    both = DiskList(reranked(answers, rows, ranker, depth))
    return {
        **scored(task, both, rows, metrics)[1],
        "first_stage": task.grade(answers, rows).scores,
        "depth": depth,
    }


def reranked(answers: Sequence[Answer], rows: Dataset, ranker: Predictor, depth: int) -> list[Answer]:
    """The answers, with the first `depth` documents of each query in the ranker's order."""
    names = list(ids(rows, "document"))
    queries = rows["query"][:]
    texts = dict(zip(names, rows["document"][:], strict=True))
    pairs = (
        {"query": query, "document": texts[hit["id"]]}
        for query, answer in zip(queries, answers, strict=True)
        for hit in answer.get("found", ())[:depth]
    )
    scores = (answer["score"] for answer in ranker.stream(pairs))
    results = [dict(answer) for answer in answers]
    for theirs in rows_by_query(rows).values():
        first = results[int(theirs[0])]
        reordered = {hit["id"]: next(scores) for hit in first["found"][:depth]}
        ordered = sorted(reordered, key=lambda name: -reordered[name])
        first["found"] = [{"id": name, "score": reordered[name]} for name in ordered] + first["found"][depth:]
        for row in theirs.tolist():
            if (score := reordered.get(names[row])) is not None:
                results[row]["rank"] = sum(other >= score for other in reordered.values())
    return results
