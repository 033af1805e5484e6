"""The end of a run: the best seed's models are published and scored, and results.json is written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bertkit.evaluation.intervals import mean
from bertkit.files import lines_of, write_json, write_lines
from bertkit.inference.predictor import load
from bertkit.recipe.fields import MEAN
from bertkit.run import OUT_OF_FOLD, Run, environment
from bertkit.text import Json, Record
from bertkit.training.job import Job, Jobs, scored_splits
from bertkit.training.publish import publish
from bertkit.training.score import OutOfFold, fitted_on, over_seeds, score_splits
from bertkit.training.verify import verify


def finish(jobs: Jobs, run: Run, outcomes: Sequence[Mapping[str, Json]], held_out: OutOfFold | None) -> None:
    """Publish the best seed's models, and score each; results.json of the run is written last.

    That of several tasks has each one's selection metric, and their mean.
    outcomes: of each seed, by task. `seconds` of results are those of training, in whatever processes, and
    scoring.
    """
    trainings = [next(iter(outcome.values())) for outcome in outcomes]
    trainings += held_out.folds["each"] if held_out else []
    started = time.monotonic() - sum(training["seconds"] for training in trainings)
    best = max(outcomes, key=jobs.rank)
    runs = jobs.runs(run)
    for name, part in runs.items():
        publish(part, best[name]["seed"])
        if name:
            events = events_of(name, lines_of(run.folder / "metrics.jsonl", appended=True))
            write_lines(part.folder / "metrics.jsonl", events)
        others = [other for other in runs if other != name]
        of_task = [outcome[name] for outcome in outcomes]
        finish_job(jobs.by_task[name], part, of_task, started, held_out, others)
    if run in runs.values():
        return
    from bertkit.report.verdict import reported_split

    summary = {}
    for name, part in runs.items():
        results = part.results
        split = reported_split(results)
        headline = results["headline"]
        scores = results["splits"][split]
        summary[name] = {
            "task": results["task"]["name"],
            "weight": jobs.weights[name],
            "headline": headline,
            "split": split,
            "score": scores["metrics"].get(headline),
            "interval": scores["intervals"].get(headline),
        }
    overall = mean(task["score"] for task in summary.values())
    write_json(
        run.folder / "results.json", {"tasks": summary, MEAN: overall, "seconds": time.monotonic() - started}
    )


def events_of(name: str, events: Iterable[Record]) -> Iterator[Json]:
    """The events of metrics.jsonl that are about this task, with its metrics as those of a run of its own."""
    prefix = f"eval_{name}/"
    for event in events:
        metrics = {
            f"eval_{key.removeprefix(prefix)}": value
            for key, value in event.items()
            if key.startswith(prefix)
        }
        common = {key: value for key, value in event.items() if not key.startswith("eval_")}
        if metrics or len(common) == len(event):
            yield {**common, **metrics}


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
        scores = {split: facts["metrics"] for split, facts in splits.items()}
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
