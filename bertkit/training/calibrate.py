"""Temperature and thresholds of a trained model, fitted again on labelled rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit.data import fingerprint
from bertkit.data.disk_list import DiskList
from bertkit.data.forms import temporary_rows
from bertkit.errors import DataError, ModelError, Problem, UserError
from bertkit.evaluation.calibration import thresholds_of
from bertkit.evaluation.graded import Graded
from bertkit.evaluation.labels import GradedLabels
from bertkit.evaluation.similarity import LabelledPairs
from bertkit.files import read_json, write_json
from bertkit.inference.evaluate import rows_of_split
from bertkit.inference.predictor import Predictor, load, model_folder, require_torch_model
from bertkit.run import Run
from bertkit.tasks import base
from bertkit.tasks.base import Task
from bertkit.tasks.labels import names_of
from bertkit.training.finish import write_reports

FITTED = ("temperature", "thresholds", "threshold", "null_threshold", "conformal")  # options that a task may fit


class Goal(NamedTuple):
    """What thresholds are fitted for: the best F1, or the least precision or recall of each label."""

    metric: str = "f1"
    least: float = 0.0

    def __str__(self) -> str:
        return f"{self.metric} of at least {self.least:g}" if self.least else "best F1"


def calibrate(
    source: str | Path,
    data: Any = None,
    *,
    overrides: Sequence[str] = (),
    precision: float | None = None,
    recall: float | None = None,
) -> dict[str, Any]:
    """Fit temperature and thresholds of a trained model again, and write them into its config.json.

    What the recipe fixed is fitted too. source: a run, or a model folder trained by bertkit.
    data: labelled rows, as for `evaluate`; None: the run's validation rows. overrides: as for `evaluate`.
    precision: instead of the threshold of best F1, the lowest one of each label with at least this precision on these
    rows. recall: the highest one with at least this recall.

    Returns `rows`, `sha256` of the rows, `goal`, `options` (what is now in use), `before` (with what the run was
    scored) and `labels`: for each label its `threshold`, `precision`, `recall`, `f1` and `support` on these rows. The
    first five are also written into config.json and into the run's results.json, whose scores stay as they are.
    Raises ModelError, DataError, RecipeError, and UserError where there is nothing to fit, or the goal is out of reach.
    """
    goal, folder = _goal(precision, recall), _folder(source)
    predictor = require_torch_model(load(folder), source)
    file = data if isinstance(data, str | Path) else None
    with nullcontext() if data is None or file else temporary_rows(data) as given:
        split, rows = rows_of_split(source, predictor, file, None, ("validation",), overrides, given)
    if data is None and split != "validation":
        raise DataError(Problem(str(source), "has no labelled validation rows", "Name labelled rows: --data FILE"))
    names = [name for name in FITTED if name in type(predictor.task.options).model_fields]
    task, labels = _fitted(predictor, names, rows, goal)
    recorded = [name for name in names if name != "conformal"]  # a thousand numbers
    settled = task.options.model_dump(mode="json")
    config = read_json(folder / "config.json")
    section = config["bertkit"]
    current = {name: section["task"].get(name) for name in recorded}
    section["task"] |= {name: settled[name] for name in names}
    section["calibration"] = {
        "rows": len(rows),
        "sha256": fingerprint({name: rows[name][:] for name in rows.column_names}),
        "goal": str(goal),
        "options": {name: settled[name] for name in recorded},
        "before": section.get("calibration", {}).get("before", current),
    }
    write_json(folder / "config.json", config)
    run = Run(folder.parent)
    if run.finished and run.model == folder:
        write_json(run.folder / "results.json", run.results | {"calibrated": section["calibration"]})
        write_reports(run, explains=False)
    return {**section["calibration"], "labels": labels}


def _goal(precision: float | None, recall: float | None) -> Goal:
    given = {name: value for name, value in (("precision", precision), ("recall", recall)) if value is not None}
    if len(given) > 1:
        raise UserError("thresholds are fitted for a precision or for a recall, not for both")
    for name, value in given.items():
        if not 0 < value <= 1:
            raise UserError(Problem(f"--{name}", f"{value:g} is not above 0 and at most 1"))
        return Goal(name, value)
    return Goal()


def _folder(source: str | Path) -> Path:
    """The model folder on this machine. Raises ModelError."""
    if not Path(source).expanduser().is_dir():
        what, fix = "is no folder: calibrate writes into a model's config.json", "Name a run or a model folder."
        raise ModelError(Problem(str(source), what, fix))
    folder = model_folder(source)
    if "bertkit" not in read_json(folder / "config.json"):
        what = "was not trained by bertkit: its config.json has no place for temperature and thresholds"
        raise ModelError(Problem(str(folder), what))
    return folder


def _fitted(predictor: Predictor, names: Sequence[str], rows: Any, goal: Goal) -> tuple[Task, list[dict[str, Any]]]:
    """The task with what is fitted on these rows, and its scores by label. Raises UserError."""
    free = predictor.task.options.model_copy(update=dict.fromkeys(names))
    runner = predictor.predict_features
    task = base.calibrate(replace(predictor.task, options=free), rows, runner)
    about = f"a model for {task.name} ({task.describe()})"
    if all(getattr(task.options, name) is None for name in names):
        raise UserError(Problem("the model", f"{about} has neither temperature nor thresholds to fit"))
    decided = _decided(task, task.grade(DiskList(task.answer(rows, runner)), rows))
    if goal.least:
        if decided is None or not decided.thresholds:
            fix = "Models of several labels per text have them, and those of two labels by cosine."
            raise UserError(Problem(f"--{goal.metric}", f"{about} has no thresholds of labels", fix))
        found = _thresholds(decided, goal)
        option: Any = {"thresholds": found} if "thresholds" in names else {"threshold": found[decided.names[0]]}
        task = replace(task, options=task.options.model_copy(update=option))
        decided = decided._replace(thresholds=found, given=decided.scores >= list(found.values()))
    return task, list(_by_label(decided)) if decided else []


class Decided(NamedTuple):
    """Labels given to rows, compared with their targets. thresholds: empty where the most probable label is given."""

    names: Sequence[str]
    scores: Any  # (rows, labels)
    truth: Any  # (rows, labels) of 0 and 1
    given: Any  # (rows, labels) of 0 and 1
    thresholds: Mapping[str, float]


def _decided(task: Task, graded: Graded) -> Decided | None:
    """None where the model gives no labels to rows. Of two labels by cosine, only the second has a threshold."""
    if isinstance(graded, LabelledPairs):
        scores, truth = (np.asarray(each)[:, None] for each in (graded.cosines, graded.similar))
        name, limit = names_of(task.options.labels)[1], graded.threshold or 0.0
        return Decided([name], scores, truth, scores >= limit, {name: limit})
    if not isinstance(graded, GradedLabels) or graded.kind == "regression":
        return None
    if graded.kind == "multi-label":
        limits = graded.thresholds if isinstance(graded.thresholds, Mapping) else {}
        return Decided(graded.names, graded.table, graded.references, graded.given, limits)
    truth, given = (
        np.asarray(each)[:, None] == np.arange(len(graded.names)) for each in (graded.references, graded.given)
    )
    return Decided(graded.names, graded.table, truth, given, {})


def _thresholds(decided: Decided, goal: Goal) -> dict[str, float]:
    """Label -> the threshold that reaches the goal. Raises UserError, which names the labels that do not reach it."""
    found, problems = {}, []
    for name, scores, truth in zip(decided.names, decided.scores.T, decided.truth.T, strict=True):
        each = thresholds_of(scores, truth)
        values = getattr(each, goal.metric)
        if (values >= goal.least).any():
            found[name] = float(each.values[values >= goal.least][0 if goal.metric == "precision" else -1])
        elif truth.any():
            what = f"no threshold has a {goal} on these rows; the best has {values.max():.4f}"
            problems.append(Problem(f"label {name}", what))
        else:
            problems.append(Problem(f"label {name}", f"no row has it, so no threshold has a {goal.metric}"))
    if problems:
        raise UserError(problems)
    return found


def _by_label(decided: Decided) -> Iterator[dict[str, Any]]:
    """Threshold, precision, recall, F1 and support of each label."""
    from sklearn.metrics import precision_recall_fscore_support

    for name, truth, given in zip(decided.names, decided.truth.T, decided.given.T, strict=True):
        scores = precision_recall_fscore_support(truth, given, average="binary", zero_division=0.0)
        named = dict(zip(("precision", "recall", "f1"), map(float, scores), strict=False))
        yield {"label": name, "threshold": decided.thresholds.get(name), **named, "support": int(truth.sum())}
