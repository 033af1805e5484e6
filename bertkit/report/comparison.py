"""Several runs compared: the differences between their scores, answers, sizes, times and recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.errors import UserError
from bertkit.report import pictures, report_sections
from bertkit.report.facts import Facts
from bertkit.report.paired import Pair, compared
from bertkit.report.pictures import Picture
from bertkit.report.score_tables import interval, number, overall_metrics
from bertkit.run import OUT_OF_FOLD
from bertkit.text import Lines


def names(facts: Sequence[Facts]) -> list[str]:
    """The number and folder of each run."""
    return [f"{place}. {each.name}" for place, each in enumerate(facts, 1)]


def pairs(facts: Sequence[Facts]) -> list[Pair]:
    """The first run and each of the others, compared by their answers; none for a corpus, whose answers are
    counts.

    Raises UserError where the tasks differ.
    """
    tasks = [f"{each.name}: {each.task}" for each in facts]
    if len({each.task for each in facts}) > 1:
        raise UserError(
            "",
            f"runs of different tasks cannot be compared ({', '.join(tasks)})",
            "Compare runs of one task.",
        )
    if facts[0].schema.corpus:
        return []
    distinct = len({each.name for each in facts}) == len(facts)
    short = [each.name if distinct else f"run {place}" for place, each in enumerate(facts, 1)]
    return [
        compared(facts[0], other, (short[0], name)) for other, name in zip(facts[1:], short[1:], strict=True)
    ]


def lead(facts: Sequence[Facts], titles: Sequence[str], pairs: Sequence[Pair]) -> str:
    """Which of two runs is better, or which of several have the best headline, if they share one."""
    if len(pairs) == 1 and pairs[0].units:
        return pairs[0].verdict
    metric = facts[0].headline
    split = facts[0].split
    if any((each.headline, each.split) != (metric, split) for each in facts):
        return "These runs were not scored by the same metric on the same split, so none is called the best."
    scores = [each.scores["metrics"][metric] for each in facts]
    best = max((score for score in scores if score is not None), default=None)
    if best is None:
        return f"None of these runs has a {metric} on {split}."
    first = ", ".join(title for title, score in zip(titles, scores, strict=True) if score == best)
    return f"The highest {metric} on {split} is {number(best)}: {first}."


def warnings(facts: Sequence[Facts]) -> list[str]:
    """What makes a comparison of scores invalid: different data."""
    reasons = []
    for split in dict.fromkeys(split for each in facts for split in each.results["splits"]):
        name = "train" if split == OUT_OF_FOLD else split
        digests = {each.data["fingerprints"][name] for each in facts if split in each.results["splits"]}
        if len(digests) > 1:
            reasons.append(
                f"The rows of {split} differ between the runs: their scores on it cannot be compared."
            )
    if len({each.data["fingerprints"].get("train") for each in facts}) > 1:
        reasons.append("They were not trained on the same rows.")
    return reasons


def overview(facts: Sequence[Facts]) -> Picture | None:
    """The headline of each run by its number, with its interval."""
    if len({(each.headline, each.split) for each in facts}) > 1:
        return None
    return pictures.scores(
        facts[0].headline, {f"run {place}": each.scores for place, each in enumerate(facts, 1)}, {}
    )


def score_rows(facts: Sequence[Facts], titles: Sequence[str]) -> Lines:
    """A row for each split and metric, a column for each run; the first row is the header."""
    rows = [["split", "metric", *titles]]
    for split in dict.fromkeys(split for each in facts for split in each.results["splits"]):
        scores = [each.results["splits"].get(split, {"metrics": {}, "intervals": {}}) for each in facts]
        named = (overall_metrics(s["metrics"], each.headline) for s, each in zip(scores, facts, strict=True))
        for metric in dict.fromkeys(name for metrics in named for name in metrics):
            if any(each["metrics"].get(metric) is not None for each in scores):
                rows.append([split, metric, *(_cell(each, metric) for each in scores)])
    return rows


def _cell(scores: Mapping[str, Any], metric: str) -> str:
    bounds = interval(scores["intervals"].get(metric))
    return number(scores["metrics"].get(metric)) + (f" ({bounds})" if bounds else "")


def cost_rows(facts: Sequence[Facts], titles: Sequence[str]) -> Lines:
    """Size and times of each run, as measured when it was trained; the first row is the header."""
    trained = [sum(seed["seconds"] for seed in each.results["seeds"]) for each in facts]
    return [
        ["measure", *titles],
        ["parameters", *(f"{each.parameters:,}" for each in facts)],
        ["MB of safetensors", *(f"{each.megabytes:,.1f}" for each in facts)],
        ["training, s", *(f"{seconds:,.0f}" for seconds in trained)],
        ["training and scoring, s", *(f"{each.results['seconds']:,.0f}" for each in facts)],
        ["measured on", *(str(each.environment.get("device")) for each in facts)],
    ]


def recipe_rows(facts: Sequence[Facts], titles: Sequence[str]) -> Lines:
    """The recipe settings that differ, by their path; the first row is the header."""
    settings = [report_sections.flat(each.recipe.model_dump(mode="json")) for each in facts]
    keys = dict.fromkeys(key for each in settings for key in each)
    rows = ([key, *(each.get(key, "–") for each in settings)] for key in keys)
    return [["setting", *titles], *(row for row in rows if len(set(row[1:])) > 1)]
