"""Temperature and thresholds of a trained model, fitted again on labelled rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.data import fingerprint, log_findings
from bertkit.data.disk_list import DiskList
from bertkit.decisions.goals import (
    ThresholdTarget,
    changes,
    decided,
    few_rows,
    fitted,
    kind_of,
    threshold_target,
)
from bertkit.errors import DataError, ModelError, UserError
from bertkit.evaluation.similarity import LabelledPairs
from bertkit.files import not_a_run, read_json, write_json
from bertkit.inference.evaluate import rows_of_split
from bertkit.inference.predictor import Predictor, load, model_folder, require_torch_model
from bertkit.report.score_tables import FITTED
from bertkit.run import Run
from bertkit.tasks import base
from bertkit.tasks.base import Task
from bertkit.text import Json
from bertkit.training.publish import write_reports


def calibrate(
    source: str | Path,
    data: Any = None,
    *,
    overrides: Sequence[str] = (),
    precision: float | None = None,
    recall: float | None = None,
    label: str | None = None,
    overall: bool = False,
) -> Json:
    """Fit temperature and thresholds of a trained model again, and write them into its config.json.

    Values that the recipe sets are fitted too. source: a run, or a model folder trained by bertkit.
    data: labelled rows, as for `evaluate`; None: the run's validation rows. overrides: as for `evaluate`.
    precision: each label gets the lowest threshold with at least this precision on these rows, instead of the
    threshold of best F1. Below it, a single label is None. recall: the highest threshold with at least this
    recall. overall: one threshold for all labels, with this precision over all answers.
    label: only the threshold of this label is fitted; everything else stays. A single label is then predicted
    whenever its probability reaches the threshold, even if another label is more probable, and never below.
    A warning lists labels whose threshold was chosen on fewer than 10 rows with that label.

    Returns `rows`, `sha256` of the rows, `goal`, `options` (what is now in use), and `before` (with what the
    run was scored). These are also written into config.json and into the run's results.json, whose scores
    stay as they are. `labels` has for each label its `threshold`, `precision`, `recall`, `f1` and `support`
    on these rows. If there are labels, `overall` has the `accuracy` of rows, the `precision` of all
    predicted labels, and, for single labels, the share of rows `answered` with one. Both have the same under
    `before`, with the options in use so far.
    Raises ModelError, DataError, RecipeError, and UserError if there is nothing to fit, or no threshold
    reaches the goal.

    >>> bertkit.calibrate("runs/quickstart")["options"]["temperature"] > 0
    True
    """
    if not (path := Path(source).expanduser()).is_dir():
        raise ModelError(not_a_run(path))
    folder = model_folder(source)
    if "bertkit" not in read_json(folder / "config.json"):
        raise ModelError(folder, "was not trained by bertkit", "Use a run, or the model folder of one.")
    predictor = require_torch_model(load(folder), source)
    goal = threshold_target(predictor.task, precision, recall, label, overall)
    split, rows = rows_of_split(source, predictor, data, None, ("validation",), overrides)
    if data is None and split != "validation":
        raise DataError(source, "has no labelled validation rows", "Pass labelled rows as `data`.")
    names = [name for name in (*FITTED, "conformal") if name in type(predictor.task.options).model_fields]
    task, scores = _fitted(predictor, names, rows, goal)
    log_findings(few_rows(scores["labels"], goal))
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
    return {**section["calibration"], **scores}


def _fitted(
    predictor: Predictor, names: Sequence[str], rows: Any, goal: ThresholdTarget
) -> tuple[Task, Json]:
    """The task with what is fitted on these rows, and what that changes. Raises UserError."""
    task = predictor.task
    runner = predictor.predict_features
    if goal.label is None:
        task = base.calibrate(task.with_options(dict.fromkeys(names)), rows, runner)
    if goal.label is None and all(getattr(task.options, name) is None for name in names):
        raise UserError(
            "the model",
            f"a model for {task.name} ({task.describe()}) has neither temperature nor thresholds to fit",
            "Calibrate a model that gives labels or probabilities.",
        )
    if not kind_of(task):
        return task, {"labels": []}

    def graded(by: Task) -> Any:
        return by.grade(DiskList(by.answer(rows, runner)), rows)

    scored = graded(task)
    option = fitted(decided(task, scored), goal)
    if isinstance(scored, LabelledPairs) and option:
        option = {"threshold": next(iter(option["thresholds"].values()))}
    task = task.with_options(option)
    used = graded(predictor.task)
    after = replace(scored, **option)
    if not isinstance(after, LabelledPairs):
        after = after.decided()
    return task, changes(decided(task, used), decided(task, after))
