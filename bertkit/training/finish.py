"""After the last seed: publish, score, verify, report, push."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any, NamedTuple

from datasets import Dataset

from bertkit.data.origin import Origin
from bertkit.data.table import Data
from bertkit.errors import ModelError, Problem, RecipeError, UserError
from bertkit.evaluation.graded import Graded
from bertkit.evaluation.intervals import Scores, mean
from bertkit.files import lines_of, write_json, write_lines, written_aside
from bertkit.inference.evaluate import score
from bertkit.inference.predictor import Predictor, load
from bertkit.recipe.fields import MEAN
from bertkit.recipe.recipe import AnyRecipe
from bertkit.run import OUT_OF_FOLD, Run, delete_checkpoints, environment
from bertkit.tasks.base import HeldOut
from bertkit.text import Json, Record, shell_word
from bertkit.training.job import Job, Jobs, scored_splits
from bertkit.training.verify import verify

logger = logging.getLogger(__name__)


def fitted_on(data: Data) -> list[tuple[Dataset, Dataset]]:
    """Train and validation, as `Task.baselines` takes them; nothing without validation rows."""
    return [(data.rows["train"], data.rows["validation"])] if "validation" in data.rows else []


class OutOfFold(NamedTuple):
    """The answers of cross-validation to the training rows, graded; and what results.json has of them."""

    graded: Graded
    scores: Json  # as those of a split
    baselines: dict[str, Scores]
    folds: Json
    fitted_on: (
        HeldOut  # where thresholds are those of out-of-fold answers: of each fold the other rows, and its own
    )


def check_hub(recipe: AnyRecipe) -> None:
    """Raises RecipeError where a push is certain to fail, before hours of training."""
    for part in recipe.parts.values():
        hub = part.hub
        if hub and hub.repo_id:
            from bertkit.hub.push import license_problems, login_problems, name_problems, target_problems

            problems = [*target_problems(hub.repo_id, hub.revision), *login_problems()]
            problems += license_problems(hub, not hub.private)
            if not hub.private:
                problems += name_problems(part)
            if problems:
                raise RecipeError(problem._replace(where="hub") for problem in problems)


def write_reports_and_clean(run: Run, recipe: AnyRecipe) -> None:
    """Write each task's report and model card, unless there is a card, and delete the checkpoints that go.

    A run that was killed after its results, which mark it as finished, may lack them.
    """
    parts = [run.tasks.get(name, run) for name in recipe.parts]
    for part in parts:
        if not (part.model / "README.md").is_file():
            write_reports(part, recipe.explain)
    if freed := sum(delete_checkpoints(each, recipe.checkpoints) for each in {run, *parts}):
        logger.info("%s bytes of checkpoints were deleted", f"{freed:,}")


def push_run(run: Run, recipe: AnyRecipe) -> None:
    """Push the finished run if its recipe requests it. Raises ModelError; the run itself stays as it is."""
    for hub in (part.hub for part in recipe.parts.values()):
        if hub and hub.repo_id:
            from bertkit.hub.push import push

            try:
                push(run.folder, hub.repo_id, public=not hub.private, revision=hub.revision)
            except ModelError as error:
                fix = f"Push it later: bertkit push {shell_word(run.folder)} {hub.repo_id}"
                complete = Problem(str(run.folder), "the run itself is complete", fix)
                raise ModelError([*error.problems, complete]) from None


def write_reports(run: Run, explains: bool) -> None:
    """Write explanations, report.html and the model card. A failure is only logged: the run is finished."""
    from bertkit.report.card import write_card
    from bertkit.report.html import write_report

    def explain() -> None:
        from bertkit.report.examples import write_explanations  # it needs captum, which may not be installed

        write_explanations(run.folder)

    parts: list[tuple[str, Callable[[], object], str]] = [
        ("explanation", explain, f"bertkit explain {shell_word(run.folder)}"),
        ("report", partial(write_report, run.folder), f"bertkit report {shell_word(run.folder)}"),
        ("model card", partial(write_card, run), f"bertkit push {shell_word(run.folder)} OWNER/MODEL"),
    ]
    for name, write, retry in parts if explains else parts[1:]:
        try:
            write()
        except Exception as error:  # no picture is worth a training
            what = f"{type(error).__name__}: {error}"
            bug = not isinstance(error, UserError | OSError)
            logger.warning(
                "no %s was written (%s); the run is complete. Try: %s", name, what, retry, exc_info=bug
            )


def publish(run: Run, seed: int) -> None:
    """The chosen seed's model becomes RUN/model, its LoRA adapter RUN/adapter."""
    for name in ("model", "adapter"):
        source = run.checkpoints / f"seed-{seed}" / name
        target = run.folder / name
        if source.is_dir():  # else it was moved before this run was interrupted and resumed
            shutil.rmtree(target, ignore_errors=True)
            source.replace(target)


def finish(jobs: Jobs, run: Run, outcomes: Sequence[Mapping[str, Json]], held_out: OutOfFold | None) -> None:
    """Publish the best seed's models, and score each; results.json of the run is written last.

    outcomes: of each seed, by task. `seconds` of results are those of training, in whatever processes, and
    scoring.
    """
    trained = [next(iter(each.values())) for each in outcomes] + (held_out.folds["each"] if held_out else [])
    started = time.monotonic() - sum(each["seconds"] for each in trained)
    best = max(outcomes, key=jobs.rank)
    runs = jobs.runs(run)
    for name, part in runs.items():
        publish(part, best[name]["seed"])
        if part != run:
            events = events_of(name, lines_of(run.folder / "metrics.jsonl", appended=True))
            write_lines(part.folder / "metrics.jsonl", events)
        others = [each for each in runs if each != name]
        finish_job(jobs.by_task[name], part, [each[name] for each in outcomes], started, held_out, others)
    if named := {name: part for name, part in runs.items() if part != run}:
        write_shared_results(jobs, run, named, started)


def write_shared_results(jobs: Jobs, run: Run, parts: Mapping[str, Run], started: float) -> None:
    """Write RUN/results.json of several tasks: each one's selection metric, and their mean."""
    from bertkit.report.verdict import reported_split

    summary = {}
    for name, part in parts.items():
        results = part.results
        split = reported_split(results)
        headline = results["headline"]
        score, interval = (results["splits"][split][kind].get(headline) for kind in ("metrics", "intervals"))
        kept = {
            "task": results["task"]["name"],
            "weight": jobs.weights[name],
            "headline": headline,
            "split": split,
        }
        summary[name] = {**kept, "score": score, "interval": interval}
    overall = mean(each["score"] for each in summary.values())
    write_json(
        run.folder / "results.json", {"tasks": summary, MEAN: overall, "seconds": time.monotonic() - started}
    )


def events_of(name: str, events: Iterable[Record]) -> Iterator[Json]:
    """The events of metrics.jsonl that are about this task, with its metrics as those of a run of its own."""
    prefix = f"eval_{name}/"
    for event in events:
        own = {
            f"eval_{key.removeprefix(prefix)}": value
            for key, value in event.items()
            if key.startswith(prefix)
        }
        common = {key: value for key, value in event.items() if not key.startswith("eval_")}
        if own or len(common) == len(event):
            yield {**common, **own}


def finish_job(
    job: Job,
    run: Run,
    outcomes: list[Json],
    started: float,
    held_out: OutOfFold | None,
    trained_with: Sequence[str],
) -> None:
    """Score the saved model, compare it with baselines and with a fresh process, and write results.json.

    trained_with: the other tasks that share the encoder.
    """
    recipe = job.recipe
    data = job.data
    predictor = load(run.folder)
    scoring = [split for split in scored_splits(data) if split != "train" or held_out is None]
    fitting = fitted_on(data) or (held_out.fitted_on if held_out else ())
    splits, baselines = score_splits(run, predictor, job, scoring, fitting)
    verified = recipe.verify and verify(run, predictor, data.rows[list(data.rows)[-1]])
    device = predictor.device.type
    more = {"attention": predictor.model.config._attn_implementation} | job.extensions.recorded
    write_json(run.folder / "environment.json", environment(device, predictor.precision) | more)
    if len(outcomes) == 1:
        scores = {split: each["metrics"] for split, each in splits.items()}
        outcomes = [
            outcomes[0] | {"headline": scores.get("validation", {}).get(job.headline), "metrics": scores}
        ]
    if held_out:
        splits[OUT_OF_FOLD] = held_out.scores
        baselines[OUT_OF_FOLD] = held_out.baselines
    results = {
        "task": {"name": predictor.task.name, "description": predictor.task.describe()},
        "headline": job.headline,
        "splits": splits,
        "baselines": baselines,
        "seeds": outcomes,
        "over_seeds": over_seeds(outcomes),
        **({"folds": held_out.folds} if held_out else {}),
        "seconds": time.monotonic() - started,
        "verified": verified,
        "expected": recipe.expected,
        **({"trained_with": list(trained_with)} if trained_with else {}),
    }
    write_json(run.folder / "results.json", results)


def score_splits(
    run: Run, predictor: Predictor, job: Job, chosen: Collection[str], held_out: HeldOut
) -> tuple[dict[str, Json], Json]:
    """Write predictions/SPLIT.jsonl for all rows not trained on; scores and baselines of the chosen splits.

    held_out: what baselines are fitted on, as `Task.baselines` takes them.
    """
    data = job.data
    splits = {}
    baselines = {}
    answers: Iterable[Any]
    for split, rows in data.rows.items():
        if split in chosen:
            answers, splits[split] = score(predictor, rows, job.extensions.metrics, job.recipe.data.by)
            baselines[split] = job.task.baselines(data.rows["train"], rows, held_out)
            for each in job.attachments:
                baselines[split] |= each.score_references(rows, job.extensions.metrics)
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


def over_seeds(outcomes: list[Json]) -> dict[str, dict[str, dict[str, float]]]:
    """split -> metric -> mean and sample standard deviation over the seeds, where each seed has the
    metric.
    """
    return {
        split: mean_and_sd([each["metrics"][split] for each in outcomes]) for split in outcomes[0]["metrics"]
    }


def mean_and_sd(scores: Sequence[Scores]) -> dict[str, dict[str, float]]:
    """Metric -> mean and sample standard deviation, where it is defined each time; without those of single
    labels.
    """
    table = {name: [each.get(name) for each in scores] for name in scores[0] if "/" not in name}
    defined = {
        name: [v for v in values if v is not None] for name, values in table.items() if None not in values
    }
    return {name: {"mean": fmean(v), "sd": stdev(v) if len(v) > 1 else 0.0} for name, v in defined.items()}
