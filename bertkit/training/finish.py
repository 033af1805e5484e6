"""After the last seed: publish, score, verify, compare with the teacher, report, push."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from datasets import Dataset

from bertkit.data import Data
from bertkit.data.table import Origin
from bertkit.engine.attachment import Finished
from bertkit.errors import ModelError, Problem, UserError
from bertkit.evaluation.graded import Graded
from bertkit.evaluation.intervals import Scores
from bertkit.files import write_json, write_text, written_aside
from bertkit.inference.evaluate import score
from bertkit.inference.predictor import Predictor, load
from bertkit.run import OUT_OF_FOLD, Run, environment, free
from bertkit.sections import Checkpoints, Hub
from bertkit.training.preflight import Job, scored_splits

logger = logging.getLogger(__name__)


class OutOfFold(NamedTuple):
    """The answers of cross-validation to the training rows, graded; and what results.json has of them."""

    graded: Graded
    scores: dict[str, Any]  # as those of a split
    baselines: dict[str, Scores]
    folds: dict[str, Any]


def complete(run: Run, explains: bool, keep: Checkpoints) -> None:
    """Write the report and the model card, unless there is a card, and free checkpoints.

    A run that was killed after its results, which mark it as finished, may lack them.
    """
    if not (run.model / "README.md").is_file():
        write_reports(run, explains)
    free_checkpoints(run, keep)


def free_checkpoints(run: Run, keep: Checkpoints) -> None:
    """Delete the checkpoints that this finished run, and the runs of its tasks, need not keep; log the bytes."""
    if freed := sum(free(each, keep) for each in (run, *run.tasks.values())):
        logger.info("%s bytes of checkpoints were deleted", f"{freed:,}")


def push_run(run: Run, hub: Hub, repo_id: str) -> None:
    """Push the finished run as its recipe requests. Raises ModelError; the run itself stays as it is."""
    from bertkit.hub.push import push

    try:
        push(
            run.folder,
            repo_id,
            public=not hub.private,
            revision=hub.revision,
            create_pr=hub.create_pr,
            predictions=hub.predictions,
            report=hub.report,
        )
    except ModelError as error:
        fix = f"Push it later: bertkit push {run.folder} {repo_id}"
        raise ModelError([*error.problems, Problem(str(run.folder), "the run itself is complete", fix)]) from None


def write_reports(run: Run, explains: bool) -> None:
    """Write explanations, report.html and the model card. A failure is only logged: the run is finished."""
    from bertkit.report.card import write_card
    from bertkit.report.html import write_report

    def explain() -> None:
        from bertkit.report.examples import write_explanations  # it needs captum, which may not be installed

        write_explanations(run.folder)

    parts: list[tuple[str, Callable[[], object], str]] = [
        ("explanation", explain, f"bertkit explain {run.folder}"),
        ("report", partial(write_report, [run.folder]), f"bertkit report {run.folder}"),
        ("model card", partial(write_card, run), f"bertkit push {run.folder} OWNER/MODEL --dry-run"),
    ]
    for name, write, retry in parts if explains else parts[1:]:
        try:
            write()
        except Exception as error:  # no picture is worth a training
            what, bug = f"{type(error).__name__}: {error}", not isinstance(error, UserError | OSError)
            logger.warning("no %s was written (%s); the run is complete. Try: %s", name, what, retry, exc_info=bug)


def publish(run: Run, seed: int) -> None:
    """The chosen seed's model becomes RUN/model, its LoRA adapter RUN/adapter."""
    for name in ("model", "adapter"):
        source, target = run.checkpoints / f"seed-{seed}" / name, run.folder / name
        if source.is_dir():  # else it was moved before this run was interrupted and resumed
            shutil.rmtree(target, ignore_errors=True)
            source.replace(target)


def finish(
    job: Job,
    run: Run,
    outcomes: list[dict[str, Any]],
    started: float,
    held_out: OutOfFold | None = None,
    trained_with: Sequence[str] = (),
) -> None:
    """Score the saved model, compare it with baselines and with a fresh process, and write results.json.

    trained_with: the other tasks that share the encoder.
    """
    recipe, data, predictor = job.recipe, job.data, load(run.folder)
    scoring = [split for split in scored_splits(data) if split != "train" or held_out is None]
    splits, baselines = score_splits(run, predictor, data, scoring, job.metrics)
    if recipe.verify:
        verify(run, predictor, data.rows[list(data.rows)[-1]])
    device = predictor.device.type
    write_json(run.folder / "environment.json", environment(device, predictor.precision))
    headline = recipe.training.get("metric_for_best_model", predictor.task.metrics[0])
    if len(outcomes) == 1:
        scores = {split: each["metrics"] for split, each in splits.items()}
        outcomes = [outcomes[0] | {"headline": scores.get("validation", {}).get(headline), "metrics": scores}]
    if held_out:
        splits[OUT_OF_FOLD], baselines[OUT_OF_FOLD] = held_out.scores, held_out.baselines
    results = {
        "task": {"name": predictor.task.name, "description": predictor.task.describe()},
        "headline": headline,
        "splits": splits,
        "baselines": baselines,
        "seeds": outcomes,
        "over_seeds": over_seeds(outcomes),
        **({"folds": held_out.folds} if held_out else {}),
        "seconds": time.monotonic() - started,
        "verified": recipe.verify,
        "expected": recipe.expected,
        **({"trained_with": list(trained_with)} if trained_with else {}),
    }
    split = "validation" if "validation" in splits else next(iter(splits))
    done = Finished(run.model, predictor, split, data.rows[split], splits[split], headline, job.metrics)
    for each in job.attachments:
        results |= each.results(done)
    write_json(run.folder / "results.json", results)


def score_splits(
    run: Run, predictor: Predictor, data: Data, chosen: Collection[str], metrics: Sequence[Any]
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Write predictions/SPLIT.jsonl for all rows not trained on; scores and baselines of the chosen splits."""
    splits, baselines = {}, {}
    answers: Iterable[Any]
    for split, rows in data.rows.items():
        if split in chosen:
            answers, splits[split] = score(predictor, rows, metrics)
            baselines[split] = predictor.task.baselines(data.rows["train"], rows)
        elif split != "train":
            answers = predictor.task.answer(rows, predictor.predict_features)
        else:
            continue
        write_predictions(run, split, rows, data.origins[split], answers)
    return splits, baselines


def write_predictions(
    run: Run,
    split: str,
    rows: Dataset,
    origin: Origin,
    answers: Iterable[Any],
    more: Mapping[str, Sequence[Any]] = {},
) -> None:
    """Write predictions/SPLIT.jsonl: a line per row with its location and answer. more: further columns."""
    with written_aside(run.predictions(split)) as file:
        for index, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            further = {name: values[index] for name, values in more.items()}
            line = {**row, "location": origin.public(index), **further, "answer": answer}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def over_seeds(outcomes: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """split -> metric -> mean and sample standard deviation over the seeds, where each seed has the metric."""
    return {split: over([each["metrics"][split] for each in outcomes]) for split in outcomes[0]["metrics"]}


def over(given: Sequence[Scores]) -> dict[str, dict[str, float]]:
    """Metric -> mean and sample standard deviation, where it is defined each time; without those of single labels."""
    table = {name: [each.get(name) for each in given] for name in given[0] if "/" not in name}
    defined = {name: [v for v in values if v is not None] for name, values in table.items() if None not in values}
    return {name: {"mean": fmean(v), "sd": stdev(v) if len(v) > 1 else 0.0} for name, v in defined.items()}


def verify(run: Run, predictor: Predictor, rows: Dataset) -> None:
    """Load the saved model in a fresh process and compare its answers with this process's. Raises ModelError."""
    inputs = frozenset(predictor.task.schema.context).union(*predictor.task.inputs)
    probe = [{name: row[name] for name in inputs if name in row} for row in rows.select(range(min(len(rows), 64)))]
    with TemporaryDirectory() as folder:
        given, output = Path(folder) / "rows.jsonl", Path(folder) / "answers.jsonl"
        write_text(given, "".join(json.dumps(row) + "\n" for row in probe))
        files = ["--input", str(given), "--output", str(output)]
        command = [sys.executable, "-m", "bertkit", "predict", str(run.model), *files]
        alone = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
        if done.returncode:
            raise ModelError(Problem(str(run.model), f"does not load in a fresh process:\n{done.stderr.strip()}"))
        fresh = [json.loads(line)["answer"] for line in output.read_text(encoding="utf-8").splitlines()]
    ours = list(predictor.stream(probe))
    different = [index for index, pair in enumerate(zip(ours, fresh, strict=True)) if pair[0] != pair[1]]
    if different:
        what = f"a fresh process answers {len(different)} of {len(ours)} rows differently, first row {different[0] + 1}"
        raise ModelError(Problem(str(run.model), what, "This is a bug of bertkit; please report it with the recipe."))
    logger.info("verified: a fresh process gives the same %d answers", len(ours))
