"""`sweep`: search for the settings that score best, then compare the winner with the base recipe on fresh
seeds.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any, cast

from optuna import Study

from bertkit import processes
from bertkit.data.python_rows import keep_rows
from bertkit.errors import DataError, Problem, RecipeError, UserError
from bertkit.files import read_json, write_json, write_text
from bertkit.models.quiet import quiet_logger
from bertkit.recipe.recipe import Recipe, read, to_yaml
from bertkit.report.facts import read_facts
from bertkit.report.paired import Pair, compared
from bertkit.run import Run, names_in, only_writer
from bertkit.sweeps.space import Variants, brief, read_space
from bertkit.sweeps.trials import Search, open_study, outcome, stored_study, train_or_resume
from bertkit.text import Json, Record, columns, counted, unique
from bertkit.training.job import Job, arguments, prepare_job
from bertkit.validation import KeyProblem

# none of these changes scores on validation
WITHOUT_SIDE_EFFECTS = {"hub": None, "expected": None, "folds": None, "verify": False, "explain": False}


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder: study.jsonl, trials/, best/, defaults/, best.yaml and sweep.json.

    >>> bertkit.Sweep("sweeps/mine").best.model.as_posix()
    'sweeps/mine/best/model'
    """

    folder: Path  # a str becomes one

    def __post_init__(self) -> None:
        vars(self)["folder"] = Path(self.folder).expanduser()

    @property
    def results(self) -> Json:
        """Trials, winner, its scores on fresh seeds, verdict. Raises OSError before they are written."""
        return dict(read_json(self.folder / "sweep.json"))

    @property
    def best(self) -> Run:
        """The winner's run, on the fresh seeds."""
        return Run(self.folder / "best")

    @property
    def study(self) -> Study:
        """The trials as an Optuna study, for its plots; a choice is stored as JSON."""
        return stored_study(self.folder / "study.jsonl")

    def table(self) -> str:
        """A line per trial, best first, stopped and failed ones last."""
        trials = self.results["trials"]
        rank = ("complete", "pruned", "fail")
        keys = unique(key for trial in trials for key in trial["changes"])
        rows = [["trial", "outcome", *(key.rpartition(".")[2] for key in keys)]]
        for trial in sorted(
            trials, key=lambda t: (rank.index(t["state"]), -(t["score"] or 0.0), t["number"])
        ):
            changes = {key: brief(value) for key, value in trial["changes"].items()}
            rows.append([str(trial["number"]), trial["outcome"], *(changes.get(key, "base") for key in keys)])
        return columns(rows)


def sweep(
    recipe: Recipe | Record | str | Path,
    space: Record | str | Path,
    output_dir: str | Path,
    *,
    data: Any = None,
    trials: int = 20,
    timeout: float | None = None,
    confirm: int = 3,
    **overrides: Any,
) -> Sweep:
    """Search a space of settings in sequential trials; train the winner on fresh seeds; write the results.

    recipe, data, overrides: as for `train`. space: key of the recipe -> {low, high, log, step} or a list of
    choices; or a YAML file of this.
    trials: in total; trial 0 is the base recipe. timeout: seconds after which no trial starts. confirm:
    number of fresh seeds. The same call resumes an interrupted sweep; with more trials it continues a
    finished one. Values are proposed by a tree-structured Parzen estimator (Bergstra et al. 2011); weak
    trials are stopped by the median rule (Golovin et al. 2017).

    Raises UserError, RecipeError or DataError with all problems before anything is trained.

    >>> space = {"training.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}}
    >>> done = bertkit.sweep("my.yaml", space, "sweeps/mine", trials=2, confirm=1)
    >>> len(done.results["trials"])
    2
    """
    recipe = cast(Recipe, read(recipe, data, overrides, several=False))
    if problems := [*_problems(trials, timeout, confirm)]:
        raise UserError(problems)
    folder = Path(output_dir).expanduser()
    base = recipe.model_copy(update={**WITHOUT_SIDE_EFFECTS, "seeds": recipe.seeds[:1]})
    _check_folder(folder)
    variants = read_space(space, base)
    job = _dry_run(base, variants)
    deadline = None if timeout is None else time.monotonic() + timeout
    with only_writer(Run(folder)), quiet_logger("optuna"):
        _check_folder(folder)  # another program may have written there in the meantime
        as_text = {key: repr(dimension) for key, dimension in variants.space.items()}
        facts = {"recipe": to_yaml(base), "space": as_text, "data": job.data.fingerprints}
        study, storage = open_study(folder / "study.jsonl", facts)
        keep_rows(base.data, folder / "data")
        write_text(folder / "recipe.yaml", to_yaml(base))
        search = Search(study, storage, base, folder, variants.space, job.headline)
        search.run(trials, deadline)
        write_json(folder / "sweep.json", _compare_on_fresh_seeds(recipe, search, confirm))
    return Sweep(folder)


def _problems(trials: int, timeout: float | None, confirm: int) -> Iterator[Problem]:
    """What is wrong with a call."""
    for name, value in (("trials", trials), ("confirm", confirm)):
        if value < 1:
            yield Problem(name, f"must be at least 1, found {value}")
    if timeout is not None and timeout <= 0:
        yield Problem("timeout", f"must be more than 0, found {timeout:g} seconds")
    if processes.world() > 1:
        fix = "Start it without torchrun and accelerate launch."
        yield Problem("", "a sweep runs in one process", fix)


def _check_folder(folder: Path) -> None:
    ours = {"data", "recipe.yaml"}  # a killed process may have written these before its study
    if names_in(folder) - ours and not (folder / "study.jsonl").is_file():
        raise UserError(folder, "is neither empty nor a sweep", "Use another folder.")


def _dry_run(base: Recipe, variants: Variants) -> Job:
    """Check the base recipe and each value of the space against data, model and transformers. Raises
    UserError.

    Returns the job of the base recipe.
    """

    def checked(recipe: Recipe) -> Job:
        job, _ = prepare_job(recipe)
        if "validation" not in job.data.rows:
            raise DataError(
                "data",
                "no validation split to select by; a sweep does not select by `folds`",
                "Add one to data.source, or hold one out: data: {validation: 0.1}.",
            )
        return job

    job = checked(base)
    metric = job.task.metrics[0]
    for path, recipe in variants.recipes.items():
        try:
            with TemporaryDirectory() as temporary, quiet_logger("bertkit"):
                if str(path[0]).startswith("training."):
                    arguments(replace(job, recipe=recipe), Path(temporary), recipe.seeds[0])
                    continue
                headline = checked(recipe).task.metrics[0]
            if headline != metric:
                what = f"is scored by {headline}, the base recipe by {metric}"
                variants.report.add(
                    KeyProblem(path, what, "Remove this value: the scores cannot be compared.")
                )
        except UserError as error:
            for problem in error.problems:
                what = f"{problem.where}: {problem.what}".removeprefix(": ")
                variants.report.add(KeyProblem(path, what, problem.fix))
    variants.report.raise_if_any()
    return job


def _compare_on_fresh_seeds(recipe: Recipe, search: Search, confirm: int) -> Json:
    """Train the winner and the base recipe on fresh seeds; write best.yaml; returns the content of
    sweep.json.
    """
    if all(trial.value is None for trial in search.finished()):
        raise UserError(
            search.folder,
            f"no trial has a score: {search.metric} is undefined in all of them",
            "Choose another metric: training.metric_for_best_model=NAME.",
        )
    folder = search.folder
    winner = search.study.best_trial
    seeds = [(recipe.seeds[0] + 1 + number) % 2**32 for number in range(confirm)]
    changes = search.changes(winner)
    fresh = {"seeds": seeds, "verify": recipe.verify, "explain": recipe.explain}
    best = search.recipe(changes).model_copy(update=fresh)
    run = train_or_resume(best, folder / "best")
    scores = {"best": _scores(run)}
    pair = None
    if winner.number:
        base = recipe.model_copy(update={**WITHOUT_SIDE_EFFECTS, "seeds": seeds})
        base_run = train_or_resume(base, folder / "defaults")
        scores["defaults"] = _scores(base_run)
        pair = _paired(base_run, run)
    else:
        shutil.rmtree(folder / "defaults", ignore_errors=True)
    lines = verdict(
        search.metric, winner.number, winner.value or 0.0, scores["best"], scores.get("defaults"), pair
    )
    changed = ", ".join(f"{key}={brief(value)}" for key, value in changes.items()) or "nothing"
    head = "".join(f"# {line}\n" for line in [*lines, f"Changed: {changed}"])
    write_text(
        folder / "best.yaml",
        head + to_yaml(best.model_copy(update={"hub": recipe.hub, "folds": recipe.folds})),
    )
    return {
        "headline": search.metric,
        "split": "validation",
        "trials": [
            {
                "number": trial.number,
                "state": trial.state.name.lower(),
                "changes": search.changes(trial),
                "score": trial.value,
                "outcome": outcome(trial, search.metric),
            }
            for trial in search.finished()
        ],
        "winner": winner.number,
        "changes": changes,
        "seeds": seeds,
        "scores": scores,
        "interval": run.results["splits"]["validation"]["intervals"].get(search.metric),
        "better": lines[0].startswith("Better"),
        "verdict": lines,
    }


def _scores(run: Run) -> list[float]:
    """The score of each seed on validation. Raises RecipeError where one is undefined."""
    scores = [seed["headline"] for seed in run.results["seeds"]]
    if None in scores:
        raise RecipeError(run.folder, "its metric is undefined for some seeds", "Choose another metric.")
    return scores


def _paired(base: Run, best: Run) -> Pair:
    """The models of both runs, compared by their answers to the rows of validation."""
    before, after = (read_facts(run.folder, "validation") for run in (base, best))
    return compared(before, after, ("base", "best"))


def verdict(
    metric: str,
    winner: int,
    search_score: float,
    best: Sequence[float],
    base: Sequence[float] | None,
    pair: Pair | None,
) -> list[str]:
    """The result in sentences: better is what is so on average over the seeds, and by the paired comparison.

    best, base: a score per fresh seed of the winner and the base recipe. pair: their models, compared.
    """
    seeds = counted(len(best), "fresh seed")
    if base is None or pair is None:
        return [
            f"No trial is better than the base recipe: {metric} {mean_and_sd(best)} on validation, {seeds}."
        ]
    means = f"{metric} {mean_and_sd(best)}, base {mean_and_sd(base)}, on validation, mean of {seeds}"
    wins = sum(ours > theirs for ours, theirs in zip(best, base, strict=True))
    if fmean(best) <= fmean(base):
        lines = [f"NOT better than the base recipe: {means}. Keep the base recipe, or search further."]
    else:
        # documents of a pretraining are not paired: a higher score for every seed decides
        better = pair.better == pair.names[1] if pair.units else wins == len(best) > 1
        said = "Better than" if better else "NOT distinguishable from"
        lines = [f"{said} the base recipe, with a higher score for {wins} of {seeds}: {means}."]
        if pair.units:
            lines.append(pair.verdict)
    return [
        *lines,
        f"Trial {winner} scored {search_score:.4f} in the search: optimistic, as the best of many trials.",
    ]


def mean_and_sd(scores: Sequence[float]) -> str:
    """The mean, and for several scores the sample standard deviation."""
    return f"{fmean(scores):.4f}" + (f" ± {stdev(scores):.4f}" if len(scores) > 1 else "")
