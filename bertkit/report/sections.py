"""What a report says, computed from the facts of one run: sentences, tables and pictures, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.evaluation import squad
from bertkit.report import pictures
from bertkit.report.facts import Facts, Row
from bertkit.report.mistakes import first_ranks, ndcgs, searched
from bertkit.report.pictures import Picture
from bertkit.report.table import SHOWN, against_expected, beaten, interval, number

FEW = 20  # rows of a label, below which its scores say little
WIDEST = 30  # labels of a confusion matrix that is still read


@dataclass(frozen=True)
class Label:
    """A line of the table of labels."""

    name: str
    support: int | None
    precision: str
    recall: str
    f1: str
    interval: str


@dataclass(frozen=True)
class Matrix:
    """A table of numbers with names at both sides. shade: `(rows, columns)` in [0, 1], how dark a cell is."""

    names: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    shade: tuple[tuple[float, ...], ...]


def source(facts: Facts) -> str:
    """The data, by a name that may be handed on."""
    given = facts.recipe.data.source
    if not isinstance(given, str):
        return "local files"
    return Path(given).name if given.startswith("/") else given


def encoder(facts: Facts) -> str:
    """The encoder's name, without local folders."""
    name = facts.recipe.model.title
    return Path(name).name if name.startswith("/") else name


def summary(facts: Facts) -> str:
    """What was trained on what, how well it does, and against what."""
    name, scores = facts.headline, facts.scores
    verb = "pretrained" if facts.task == "pretraining" else f"fine-tuned for {facts.task}"
    described = facts.results["task"]["description"]
    trained = facts.data["rows"].get("train")
    said = f"{encoder(facts)}, {verb} ({described}) on {source(facts)}"
    said += f" ({trained:,} training rows). " if trained else ". "
    bounds = scores["intervals"].get(name)
    said += f"Its {name} on {facts.split} is {number(scores['metrics'][name])} ({scores['rows']:,} rows"
    said += f"; 95 % interval {bounds[0]:.4f} to {bounds[1]:.4f}). " if bounds else "). "
    simple = facts.results["baselines"].get(facts.split, {})
    against = [f"{other} {number(values.get(name))}" for other, values in simple.items()]
    said += f"Against it: {', '.join(against)}. " if against else "There is no simple model to hold against it. "
    expected = "; ".join(against_expected(facts.results))
    return said + (f"{expected[0].upper()}{expected[1:]}." if expected else "The recipe states no expected score.")


def warnings(facts: Facts) -> list[str]:
    """What a reader must not miss: scores that say little, a baseline as good, and what the checks warned of."""
    seen = "these are scores on the rows that it was trained on: on others it will do worse"
    found = [seen] if facts.split == "train" else []
    found += [line.removeprefix("warning: ") for line in beaten(facts.results)]
    return found + [each["what"] for each in facts.data["findings"] if each["level"] != "note"]


def score_rows(facts: Facts) -> list[list[str]]:
    """Split, metric, score, interval, then each simple model; the first line is the header."""
    simple = list(dict.fromkeys(name for each in facts.results["baselines"].values() for name in each))
    rows = [["split", "metric", "this model", "95 % interval", *simple]]
    for split, scores in facts.results["splits"].items():
        metrics = scores["metrics"]
        # Micro F1 of single labels is accuracy by another name.
        twice = {facts.headline, "f1_micro" if "accuracy" in metrics else ""}
        worth = [n for n in metrics if n not in twice and n in SHOWN]
        for name in (facts.headline, *worth):
            if metrics.get(name) is not None:
                others = (facts.results["baselines"].get(split, {}).get(other, {}).get(name) for other in simple)
                bounds = interval(scores["intervals"].get(name))
                rows.append([split, name, number(metrics[name]), bounds, *map(number, others)])
    return rows


def seed_rows(facts: Facts) -> list[list[str]]:
    """Each seed's own scores, and their mean with its standard deviation; the first line is the header."""
    name, seeds = facts.headline, facts.results["seeds"]
    splits = list(seeds[0]["metrics"])
    rows = [["seed", *(f"{name}, {split}" for split in splits), "best step", "steps", "seconds"]]
    for each in seeds:
        scores = [number(each["metrics"][split].get(name)) for split in splits]
        best = "–" if each["best_step"] is None else f"{each['best_step']:,}"
        rows.append([str(each["seed"]), *scores, best, f"{each['steps']:,}", f"{each['seconds']:.0f}"])
    over = [facts.results["over_seeds"][split].get(name) for split in splits]
    means = [f"{each['mean']:.4f} ± {each['sd']:.4f}" if each else "–" for each in over]
    return rows + ([["mean ± sd", *means, "", "", ""]] if len(seeds) > 1 else [])


def per_label(facts: Facts) -> list[Label]:
    """Of each label how often it is there, precision, recall and F1."""
    metrics, bounds = facts.scores["metrics"], facts.scores["intervals"]
    labels = []
    for name in (key.removeprefix("f1/") for key in metrics if key.startswith("f1/")):
        count = metrics.get(f"support/{name}")
        precision, recall, f1 = (number(metrics.get(f"{kind}/{name}")) for kind in ("precision", "recall", "f1"))
        there = None if count is None else int(count)
        labels.append(Label(name, there, precision, recall, f1, interval(bounds.get(f"f1/{name}"))))
    return labels


def confusion(facts: Facts) -> Matrix | None:
    """Rows are the truth; of many labels nothing, see `confused`."""
    names, table = _confusion(facts)
    if table.ndim != 2 or not 0 < len(names) <= WIDEST:
        return None
    shade = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    cells = tuple(tuple(f"{count:,}" for count in row) for row in table.tolist())
    return Matrix(names, names, cells, tuple(map(tuple, shade.tolist())))


def confused(facts: Facts) -> list[tuple[str, str, int]]:
    """The 30 most frequent confusions: truth, answer, how often."""
    names, table = _confusion(facts)
    if table.ndim != 2:
        return []
    off = table * (1 - np.eye(len(names), dtype=np.int64))
    pairs = np.argsort(-off, axis=None, kind="stable")[:WIDEST].tolist()
    places = [divmod(pair, len(names)) for pair in pairs] if len(names) else []
    return [(names[i], names[j], int(off[i, j])) for i, j in places if off[i, j]]


def _confusion(facts: Facts) -> tuple[tuple[str, ...], Any]:
    scores = facts.scores
    found = scores.get("confusion") or {"labels": scores.get("labels"), "matrix": scores.get("confusion_matrix")}
    return tuple(found["labels"] or ()), np.asarray(found["matrix"] or [], dtype=np.int64)


def transitions(facts: Facts) -> Matrix | None:
    """A CRF's learned scores of one tag after another."""
    tags, table = tuple(facts.options.get("tags") or ()), np.asarray(facts.transitions or ())
    if len(tags) != len(table) or len(tags) > WIDEST or not len(tags):
        return None
    shade = np.clip(np.abs(table) / max(float(np.abs(table).max()), 1e-9), 0, 1)
    cells = tuple(tuple(f"{value:+.2f}" for value in row) for row in table.tolist())
    return Matrix(tags, tags, cells, tuple(map(tuple, shade.tolist())))


def overview(facts: Facts) -> Picture | None:
    """The headline on each split with its interval, against simple models and the recipe's expectation."""
    name, splits = facts.headline, facts.results["splits"]
    ours = {s: (each["metrics"][name], each["intervals"].get(name)) for s, each in splits.items()}
    simple = facts.results["baselines"].get(facts.split, {})
    others = {other: values[name] for other, values in simple.items() if values.get(name) is not None}
    if any(value is None for value, _ in ours.values()):
        return None
    return pictures.against(name, ours, others, (facts.results["expected"] or {}).get(name))


def training(facts: Facts) -> list[Picture]:
    """Loss, headline and, of pretraining, all that was scored on the way; a line a seed."""
    seeds = [each["seed"] for each in facts.results["seeds"]]
    best = {f"seed {each['seed']}": each["best_step"] for each in facts.results["seeds"] if each["best_step"]}
    names = ["loss", f"eval_{facts.headline}"]
    if facts.task == "pretraining":
        names += dict.fromkeys(key for event in facts.log for key in event if key.startswith("eval_"))
    drawn = []
    for name in dict.fromkeys(names):
        lines = {f"seed {seed}": points_of(facts, name, seed) for seed in seeds}
        title = "training loss" if name == "loss" else f"{name.removeprefix('eval_')} on validation"
        drawn.append(pictures.curves(title, lines, best if name == f"eval_{facts.headline}" else None))
    return [each for each in drawn if each]


def points_of(facts: Facts, name: str, seed: int) -> list[tuple[float, float]]:
    """(step, value) of a logged number, as often as it was finite."""
    return [(e["step"], e[name]) for e in facts.log if e["seed"] == seed and e.get(name) is not None]


def own_pictures(facts: Facts) -> list[Picture]:
    """What only this task has to show."""
    found: list[Picture | None] = []
    if facts.task == "token-classification":
        found.append(pictures.bars("Entities by what became of them", facts.scores["errors"], ERRORS))
    if facts.task == "question-answering" and facts.options.get("null_threshold") is not None and facts.rows:
        found.append(_threshold(facts.rows, facts.options["null_threshold"]))
    if "score" in next(iter(facts.rows), ()) and not searched(facts):
        points = [(row["score"], row["answer"]["score"]) for row in facts.rows]
        found.append(pictures.scatter(points, "gold score", "predicted score"))
    if facts.rows and searched(facts):
        counts = _first_ranks(facts)
        found.append(pictures.bars("Queries by their nDCG@10", _ndcgs(facts), "1 is the best order, 0 finds nothing."))
        note = "MRR is the mean of 1 / rank. Queries without a relevant document are left out."
        found.append(pictures.bars("Queries by the rank of their first relevant document", counts, note))
    return [each for each in found if each]


ERRORS = (
    "boundary: the type is right, the extent is not; type: the other way round; both: neither is right; missed: "
    "nothing was found there; spurious: found where there is nothing."
)


def _threshold(rows: Sequence[Row], chosen: float) -> Picture:
    """F1 if a question gets no answer from each threshold on, as `squad.best_threshold` has it."""
    odds, gains, base = [], [], 0.0
    for row in rows:
        answer, gold = row["answer"], row["answers"]["text"]
        best: Row = answer["n_best"][0] if answer["n_best"] else {"answer": "", "score": 0.0}
        silent = squad.question_scores("", gold)[1]
        odds.append(np.log(max(answer["null_score"], 1e-300)) - np.log(max(best["score"], 1e-300)))
        gains.append(squad.question_scores(best["answer"], gold)[1] - silent)
        base += silent
    order = np.argsort(odds, kind="stable")
    sums = (base + np.concatenate([[0.0], np.cumsum(np.array(gains)[order])])) / len(rows)
    places = [float(np.min(odds)) - 1, *np.array(odds)[order].tolist()]
    step = max(1, len(places) // 1000)
    return pictures.threshold(list(zip(places[::step], sums.tolist()[::step], strict=True)), chosen)


def _first_ranks(facts: Facts) -> dict[str, int]:
    ranks = first_ranks(facts)
    edges = {"1": (1, 1), "2 or 3": (2, 3), "4 to 10": (4, 10), "11 to 100": (11, 100), "beyond": (101, 10**9)}
    return {name: sum(low <= rank <= high for rank in ranks) for name, (low, high) in edges.items()}


def _ndcgs(facts: Facts) -> dict[str, int]:
    values = ndcgs(facts)
    edges = {"0": 0.0, "to 0.25": 0.25, "to 0.5": 0.5, "to 0.75": 0.75, "below 1": 1 - 1e-9, "1": 1.0}
    bins = np.searchsorted(list(edges.values())[:-1], values, side="left")
    return dict(zip(edges, np.bincount(bins, minlength=len(edges)).tolist(), strict=True))


def named_options(facts: Facts) -> Mapping[str, str]:
    """Temperature and thresholds, as they were fitted or given."""
    wanted = {"temperature": "temperature", "null_threshold": "null threshold", "threshold": "threshold"}
    found = {title: f"{facts.options[key]:.4f}" for key, title in wanted.items() if facts.options.get(key) is not None}
    limits = facts.options.get("thresholds")
    if isinstance(limits, Mapping):
        found |= {f"threshold of {name}": f"{value:.4f}" for name, value in limits.items()}
    return found
