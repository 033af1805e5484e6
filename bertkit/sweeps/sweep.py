"""`sweep`: search the settings that score best, then hold the winner against the recipe as it is, on fresh seeds."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bertkit import processes
from bertkit.errors import DataError, Problem, RecipeError, UserError
from bertkit.files import read_json, write_json, write_text
from bertkit.recipe.recipe import Recipe, to_yaml
from bertkit.run import Run, only_writer
from bertkit.sweeps.space import Space, brief, read_space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bertkit.data import Data
    from bertkit.recipe.errors import Report
    from bertkit.sweeps.search import Search
    from bertkit.tasks.base import Task
    from bertkit.text import KeyPath


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder: study.jsonl, trials/, best/, defaults/, best.yaml, sweep.json and sweep.html."""

    folder: Path

    @property
    def results(self) -> dict[str, Any]:
        """Trials, winner, its scores on fresh seeds, verdict. Raises OSError before they are written."""
        return dict(read_json(self.folder / "sweep.json"))

    @property
    def best(self) -> Run:
        """The winner's run, on the fresh seeds."""
        return Run(self.folder / "best")


def sweep(
    recipe: Recipe,
    space: str | Path,
    output_dir: str | Path,
    *,
    trials: int = 20,
    timeout: float | None = None,
    confirm: int = 3,
) -> Sweep:
    """Try values of a recipe's settings, one trial after another; train the winner on fresh seeds; write it all out.

    space: a YAML file, key of the recipe -> {low, high, log, step} or a list of choices.
    trials: in all; trial 0 is the recipe as it is. timeout: seconds after which no trial starts. confirm: fresh seeds.
    The same call goes on with an interrupted sweep; with more trials, with a finished one. Values are proposed by a
    tree-structured Parzen estimator (Bergstra et al. 2011); weak trials are stopped by the median rule
    (Golovin et al. 2017).

    Raises RecipeError or DataError with everything that is wrong before anything is trained.
    """
    _check_call(trials, timeout, confirm)
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(Problem("optuna", "a sweep needs optuna", 'pip install "bertkit[sweep]"')) from error
    from bertkit.models.encoder import quiet
    from bertkit.sweeps.search import Search, opened

    folder, base = Path(output_dir), _plain(recipe, recipe.seeds[:1])
    _check_folder(folder)
    with TemporaryDirectory() as room:
        write_text(Path(room) / "recipe.yaml", to_yaml(base))
        dimensions, report, changed = read_space(Path(space), Path(room) / "recipe.yaml")
    task, data = _rehearsed(base, changed, report)
    headline = str(base.training.get("metric_for_best_model", task.headline))
    deadline = None if timeout is None else time.monotonic() + timeout
    with only_writer(Run(folder)), quiet("optuna"):
        facts = {"recipe": to_yaml(base), "space": _written(dimensions), "data": data.fingerprints}
        study, storage = opened(folder / "study.jsonl", facts)
        write_text(folder / "recipe.yaml", to_yaml(base))
        search = Search(study, storage, folder / "recipe.yaml", folder, dimensions, headline)
        search.run(trials, deadline)
        write_json(folder / "sweep.json", _confirmed(recipe, search, confirm))
        from bertkit.sweeps.page import page

        write_text(folder / "sweep.html", page(study, Sweep(folder).results, list(dimensions)))
    return Sweep(folder)


def _check_call(trials: int, timeout: float | None, confirm: int) -> None:
    problems = [
        Problem(name, f"must be {least}, found {value}")
        for name, value, least, wrong in (
            ("--trials", trials, "at least 1", trials < 1),
            ("--timeout", timeout, "more than 0 seconds", timeout is not None and timeout <= 0),
            ("--confirm", confirm, "at least 1", confirm < 1),
        )
        if wrong
    ]
    if processes.world() > 1:
        problems.append(Problem("", "a sweep is one process", "Start it without torchrun and accelerate launch."))
    if problems:
        raise UserError(problems)


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(Problem(str(folder), "is not a folder", "Name a folder with --output-dir."))
    ours = {".lock", "recipe.yaml"}  # what a killed process may have left before its study
    if folder.is_dir() and not (folder / "study.jsonl").is_file() and {path.name for path in folder.iterdir()} - ours:
        raise UserError(Problem(str(folder), "is not empty, and no sweep", "Name another --output-dir."))


def _plain(recipe: Recipe, seeds: Sequence[int]) -> Recipe:
    """The recipe with these seeds and without what changes no score."""
    nothing = {"hub": None, "expected": None, "verify": False, "explain": False}
    return recipe.model_copy(update={**nothing, "seeds": list(seeds)})


def _written(space: Space) -> dict[str, Any]:
    return {key: repr(dimension) for key, dimension in space.items()}


def _rehearsed(base: Recipe, changed: Mapping[KeyPath, Recipe], report: Report) -> tuple[Task, Data]:
    """Find out what data, model and transformers would refuse of the recipe or of any value. Raises UserError."""
    from bertkit.models.encoder import find, quiet
    from bertkit.training.preflight import arguments, chooses, inspect, prepare, rehearse
    from bertkit.validation import KeyProblem

    encoder = find(base.model)
    task, data = prepare(base, encoder)
    if "validation" not in data.rows:
        what = "there is no validation split to choose by"
        raise DataError(Problem("data", what, "Name one in data.source, or hold one out: data: {validation: 0.1}"))
    inspect(task, data)
    rehearse(base, encoder, task, data)
    for path, recipe in changed.items():
        try:
            with TemporaryDirectory() as room, quiet("bertkit"):
                if str(path[0]).startswith("training."):
                    arguments(recipe, task, Path(room), recipe.seeds[0], evaluates=chooses(recipe, data))
                    continue
                encoder = find(recipe.model)
                other, rows = prepare(recipe, encoder)
                inspect(other, rows)
                rehearse(recipe, encoder, other, rows)
            if other.headline != task.headline:
                report.add(KeyProblem(path, f"is scored by {other.headline}, the recipe as it is by {task.headline}"))
        except UserError as error:
            for problem in error.problems:
                report.add(KeyProblem(path, f"{problem.where}: {problem.what}".removeprefix(": "), problem.fix))
    report.raise_if_any()
    return task, data


def _confirmed(recipe: Recipe, search: Search, confirm: int) -> dict[str, Any]:
    """Train the winner, and the recipe as it is, on fresh seeds; write best.yaml; returns what sweep.json says."""
    from bertkit.sweeps.search import outcome, trained

    folder, name, winner = search.folder, search.headline, search.winner()
    seeds = [(recipe.seeds[0] + 1 + number) % 2**32 for number in range(confirm)]
    changes = search.drawn(winner)
    whole = {"seeds": seeds, "verify": recipe.verify, "explain": recipe.explain}
    best = search.recipe(changes).model_copy(update=whole)
    scores = {"best": _scores(trained(best, folder / "best"))}
    if winner.number:
        scores["defaults"] = _scores(trained(_plain(recipe, seeds), folder / "defaults"))
    else:
        shutil.rmtree(folder / "defaults", ignore_errors=True)
    told = verdict(name, winner.number, winner.value or 0.0, scores["best"], scores.get("defaults"))
    head = "".join(
        f"# {line}\n"
        for line in [
            *told,
            f"Changed: {', '.join(f'{key}={brief(value)}' for key, value in changes.items()) or 'nothing'}",
        ]
    )
    write_text(folder / "best.yaml", head + to_yaml(best.model_copy(update={"hub": recipe.hub})))
    return {
        "headline": name,
        "split": "validation",
        "trials": [
            {"number": t.number, "state": t.state.name.lower(), "changes": search.drawn(t), "score": t.value,
             "outcome": outcome(t, name)}
            for t in search.finished()
        ],
        "winner": winner.number,
        "changes": changes,
        "seeds": seeds,
        "scores": scores,
        "better": "defaults" in scores and fmean(scores["best"]) > fmean(scores["defaults"]),
        "verdict": told,
    }  # fmt: skip


def _scores(run: Run) -> list[float]:
    """The headline on validation of every seed. Raises RecipeError where one has none."""
    scores = [each["headline"] for each in run.results["seeds"]]
    if None in scores:
        raise RecipeError(Problem(str(run.folder), "its metric is not defined with some seeds", "Name another metric."))
    return scores


def verdict(
    headline: str, winner: int, found: float, best: Sequence[float], defaults: Sequence[float] | None
) -> list[str]:
    """What the sweep found, in sentences. found: the winner's score in the search; others: a score per fresh seed."""
    seeds = f"{len(best)} fresh seed{'s' * (len(best) > 1)}"
    if defaults is None:
        first = f"No trial is better than the recipe as it is: {headline} {spread(best)} on validation, {seeds}."
        return [first]
    pair = f"{headline} {spread(best)} against {spread(defaults)} on validation, mean of {seeds}"
    wins = sum(ours > theirs for ours, theirs in zip(best, defaults, strict=True))
    if fmean(best) <= fmean(defaults):
        first = f"NOT better than the recipe as it is: {pair}. Stay with the recipe, or search on."
    elif wins < len(best):
        first = f"Better than the recipe as it is, but not with every seed ({wins} of {len(best)}): {pair}."
    else:
        first = f"Better than the recipe as it is with every seed: {pair}."
    return [first, f"Trial {winner} had {found:.4f} in the search: the best of many, and so flattered by chance."]


def spread(scores: Sequence[float]) -> str:
    """Mean, and sample standard deviation where there are several."""
    return f"{fmean(scores):.4f}" + (f" ± {stdev(scores):.4f}" if len(scores) > 1 else "")
