"""Several runs compared: the differences between their scores, answers, sizes, times and recipes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from bertkit.errors import UserError
from bertkit.report import pictures, report_sections
from bertkit.report.facts import Facts, without_folders
from bertkit.report.paired import Pair, compared
from bertkit.report.pictures import Picture
from bertkit.report.score_tables import number, overall_metrics, with_interval
from bertkit.run import OUT_OF_FOLD
from bertkit.text import Lines


def names(facts: Sequence[Facts]) -> list[str]:
    """The number and folder of each run."""
    return [f"{place}. {run.name}" for place, run in enumerate(facts, 1)]


def pairs(facts: Sequence[Facts]) -> list[Pair]:
    """The first run and each of the others, compared by their answers; none for a corpus, whose answers are
    counts.

    Raises UserError where the tasks differ.
    """
    tasks = [f"{run.name}: {run.task}" for run in facts]
    if len({run.task for run in facts}) > 1:
        raise UserError(
            "",
            f"runs of different tasks cannot be compared ({', '.join(tasks)})",
            "Compare runs of one task.",
        )
    if facts[0].schema.corpus:
        return []
    distinct = len({run.name for run in facts}) == len(facts)
    short = [run.name if distinct else f"run {place}" for place, run in enumerate(facts, 1)]
    return [
        compared(facts[0], other, (short[0], name)) for other, name in zip(facts[1:], short[1:], strict=True)
    ]


def lead(facts: Sequence[Facts], titles: Sequence[str], pairs: Sequence[Pair]) -> str:
    """Which of two runs is better, or which of several have the best headline, if they share one."""
    if len(pairs) == 1 and pairs[0].units:
        return pairs[0].verdict
    metric = facts[0].headline
    split = facts[0].split
    if any((run.headline, run.split) != (metric, split) for run in facts):
        return "These runs were scored by different metrics or on different splits, so they cannot be ranked."
    scores = [run.scores["metrics"][metric] for run in facts]
    best = max((score for score in scores if score is not None), default=None)
    if best is None:
        return f"None of these runs has a {metric} on {split}."
    first = ", ".join(title for title, score in zip(titles, scores, strict=True) if score == best)
    return f"The highest {metric} on {split} is {number(best)}: {first}."


def warnings(facts: Sequence[Facts]) -> list[str]:
    """What makes a comparison of scores invalid: different data."""
    reasons = []
    for split in dict.fromkeys(split for run in facts for split in run.results["splits"]):
        name = "train" if split == OUT_OF_FOLD else split
        digests = {run.data["fingerprints"][name] for run in facts if split in run.results["splits"]}
        if len(digests) > 1:
            reasons.append(
                f"The rows of {split} differ between the runs: their scores on it cannot be compared."
            )
    if len({run.data["fingerprints"].get("train") for run in facts}) > 1:
        reasons.append("The runs were trained on different rows.")
    return reasons


def overview(facts: Sequence[Facts]) -> Picture | None:
    """The headline of each run by its number, with its interval."""
    if len({(run.headline, run.split) for run in facts}) > 1:
        return None
    return pictures.scores(
        facts[0].headline, {f"run {place}": run.scores for place, run in enumerate(facts, 1)}, {}
    )


def score_rows(facts: Sequence[Facts], titles: Sequence[str]) -> Lines:
    """A row for each split and metric, a column for each run; the first row is the header."""
    rows = [["split", "metric", *titles]]
    for split in dict.fromkeys(split for run in facts for split in run.results["splits"]):
        columns = [run.results["splits"].get(split, {"metrics": {}, "intervals": {}}) for run in facts]
        named = (
            overall_metrics(scores["metrics"], run.headline)
            for scores, run in zip(columns, facts, strict=True)
        )
        for metric in dict.fromkeys(chain.from_iterable(named)):
            if any(scores["metrics"].get(metric) is not None for scores in columns):
                rows.append([split, metric, *(with_interval(scores, metric) for scores in columns)])
    return rows


def cost_rows(facts: Sequence[Facts], titles: Sequence[str]) -> Lines:
    """Size and times of each run, as measured when it was trained; the first row is the header."""
    return [
        ["measure", *titles],
        ["parameters", *(f"{run.parameters:,}" for run in facts)],
        ["safetensors, MB", *(f"{run.megabytes:,.1f}" for run in facts)],
        ["training, s", *(f"{_training_seconds(run):,.0f}" for run in facts)],
        ["training and scoring, s", *(f"{run.results['seconds']:,.0f}" for run in facts)],
        ["measured on", *(str(run.environment.get("device")) for run in facts)],
    ]


def _training_seconds(run: Facts) -> Any:
    return sum(seed["seconds"] for seed in run.results["seeds"])


def recipe_rows(facts: Sequence[Facts], titles: Sequence[str]) -> Lines:
    """The recipe settings that differ, by their path; the first row is the header."""
    recipes = [report_sections.flat(run.recipe.model_dump(mode="json")) for run in facts]
    rows = [["setting", *titles]]
    for key in dict.fromkeys(chain(*recipes)):
        values = [settings.get(key, "–") for settings in recipes]
        if len(set(values)) > 1:
            rows.append([key, *map(without_folders, (run.recipe for run in facts), values)])
    return rows
