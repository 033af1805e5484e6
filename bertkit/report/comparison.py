"""Several runs side by side: what of their scores, curves and recipes is not the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.report import pictures, sections
from bertkit.report.facts import Facts
from bertkit.report.pictures import Picture
from bertkit.report.table import SHOWN, interval, number


def names(facts: Sequence[Facts]) -> list[str]:
    """Each run's number and folder."""
    return [f"{place}. {each.name}" for place, each in enumerate(facts, 1)]


def lead(facts: Sequence[Facts], titles: Sequence[str]) -> str:
    """Which runs have the best headline, where they share one."""
    metric, split = facts[0].headline, facts[0].split
    if any((each.headline, each.split) != (metric, split) for each in facts):
        return "These runs are not scored by one metric on one split; they stand beside each other."
    scored = [(each.scores["metrics"][metric], title) for each, title in zip(facts, titles, strict=True)]
    known = [pair for pair in scored if pair[0] is not None]
    if not known:
        return f"None of these runs has a {metric} on {split}."
    best = max(score for score, _ in known)
    first = ", ".join(title for score, title in known if score == best)
    return f"The highest {metric} on {split} is {number(best)}: {first}."


def warnings(facts: Sequence[Facts]) -> list[str]:
    """What forbids to compare: other tasks, other data."""
    found = []
    if len({each.task for each in facts}) > 1:
        found.append(f"The tasks differ: {', '.join(sorted({each.task for each in facts}))}.")
    for split in dict.fromkeys(split for each in facts for split in each.results["splits"]):
        prints = {each.data["fingerprints"][split] for each in facts if split in each.results["splits"]}
        if len(prints) > 1:
            found.append(f"The rows of {split} differ between the runs: their scores on it can not be compared.")
    if len({each.data["fingerprints"].get("train") for each in facts}) > 1:
        found.append("They were not trained on the same rows.")
    return found


def overview(facts: Sequence[Facts]) -> Picture | None:
    """The headline of each run by its number, with its interval."""
    if len({(each.headline, each.split) for each in facts}) > 1:
        return None
    metric = facts[0].headline
    scored = {f"run {place}": each.scores for place, each in enumerate(facts, 1)}
    ours = {name: (each["metrics"][metric], each["intervals"].get(metric)) for name, each in scored.items()}
    return None if any(value is None for value, _ in ours.values()) else pictures.against(metric, ours, {})


def score_rows(facts: Sequence[Facts], titles: Sequence[str]) -> list[list[str]]:
    """A line for each split and metric, a column for each run; the first line is the header."""
    rows = [["split", "metric", *titles]]
    splits = dict.fromkeys(split for each in facts for split in each.results["splits"])
    wanted = dict.fromkeys((*(each.headline for each in facts), *SHOWN))
    if all("accuracy" in each.scores["metrics"] for each in facts):
        wanted.pop("f1_micro", None)  # of single labels it is accuracy by another name
    for split in splits:
        scores = [each.results["splits"].get(split) for each in facts]
        for metric in wanted:
            if any(own and own["metrics"].get(metric) is not None for own in scores):
                rows.append([split, metric, *(_cell(own, metric) for own in scores)])
    return rows


def _cell(scores: Mapping[str, Any] | None, metric: str) -> str:
    if scores is None or metric not in scores["metrics"]:
        return "–"
    bounds = interval(scores["intervals"].get(metric))
    return number(scores["metrics"][metric]) + (f" ({bounds})" if bounds else "")


def training(facts: Sequence[Facts]) -> list[Picture]:
    """Loss and headline over steps, of each run's chosen seed."""
    drawn = []
    for name in dict.fromkeys(["loss", *(f"eval_{each.headline}" for each in facts)]):
        lines = {f"run {place}": sections.points_of(each, name, _chosen(each)) for place, each in enumerate(facts, 1)}
        title = "training loss" if name == "loss" else f"{name.removeprefix('eval_')} on validation"
        drawn.append(pictures.curves(title, lines))
    return [each for each in drawn if each]


def _chosen(facts: Facts) -> int:
    """The seed whose model is the run's: the first of the best, as training takes it."""
    seeds = facts.results["seeds"]
    return int(max(seeds, key=lambda each: float("-inf") if each["headline"] is None else each["headline"])["seed"])


def label_rows(facts: Sequence[Facts], titles: Sequence[str]) -> list[list[str]]:
    """F1 of each label, a column for each run; nothing where they have no labels."""
    tables = [{each.name: each.f1 for each in sections.per_label(own)} for own in facts]
    labels = dict.fromkeys(label for table in tables for label in table)
    return [["label", *titles], *([label, *(t.get(label, "–") for t in tables)] for label in labels)] if labels else []


def differing(values: Sequence[Mapping[str, Any]], titles: Sequence[str]) -> list[list[str]]:
    """The settings that are not the same in all, by their path; the first line is the header."""
    header, *rows = side_by_side(values, titles)
    return [header, *(row for row in rows if len(set(row[1:])) > 1)]


def side_by_side(values: Sequence[Mapping[str, Any]], titles: Sequence[str]) -> list[list[str]]:
    """All settings by their path, a column for each run; the first line is the header."""
    tables = [flat(each) for each in values]
    keys = dict.fromkeys(key for table in tables for key in table)
    return [["setting", *titles], *([key, *(table.get(key, "–") for table in tables)] for key in keys)]


def flat(value: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Nested settings as one table: `training.learning_rate` -> its value."""
    found: dict[str, str] = {}
    for key, each in value.items():
        path = f"{above}{key}"
        if isinstance(each, Mapping) and each:
            found |= flat(each, f"{path}.")
        else:
            found[path] = "–" if each is None or each in ({}, []) else str(each)
    return found
