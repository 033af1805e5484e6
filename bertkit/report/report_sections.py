"""The contents of a report, computed from the facts of one run: sentences, tables and pictures, in page
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.data.schema import Finding, warn
from bertkit.explanations.terminal import difference_line
from bertkit.report import pictures
from bertkit.report.facts import Facts, graded, task_of
from bertkit.report.mistakes import Span
from bertkit.report.pictures import Picture
from bertkit.report.score_tables import (
    cells,
    fitted_options,
    interval,
    mean_of_folds,
    number,
    over_seeds,
    overall_metrics,
    selection,
)
from bertkit.report.verdict import (
    MIN_ROWS,
    Baseline,
    Verdict,
    baseline_scores,
    best_baseline,
    score_findings,
    verdict,
)
from bertkit.run import OUT_OF_FOLD
from bertkit.sections import MEMORY
from bertkit.text import Json, Lines, Record, counted, unique

MIN_SHARE = 0.04  # of the largest attribution: smaller ones are not coloured
MAX_WORDS = 12  # in a table of attributions
LEARNED = {  # by `task.method`
    "head": "frozen, with a linear head",
    "contrastive": "fine-tuned with a contrastive loss, with a linear head",
}
KINDS = {"mistake": "Mistake", "hit": "Correct prediction"}
COVERAGE = {
    "coverage": "requested coverage",
    "measured": "measured on test",
    "mean_size": "mean size of a set",
    "single": "sets of size one",
    "mean_width": "width of an interval",
}


class Headline(NamedTuple):
    """The selection metric. rows: how many were scored. baseline: the best one, if there is any."""

    metric: str
    score: float | None
    interval: str
    rows: str
    baseline: Baseline | None
    verdict: Verdict


def published(name: object) -> str:
    """The name of an encoder or data set without local folders; what the rows are for a data set without a
    name.
    """
    if name == MEMORY:
        return "rows passed from Python"
    if not isinstance(name, str):
        return "local files"
    return Path(name).name if name.startswith("/") else name


def trained(facts: Facts) -> str:
    """What was trained on what, in one line."""
    method = str(facts.options.get("method"))
    verb = "pretrained" if facts.schema.corpus else f"{LEARNED.get(method, 'fine-tuned')} for {facts.task}"
    model = published(facts.recipe.model.title)
    data = published(facts.recipe.data.source)
    outcomes = facts.results["seeds"]
    rows = facts.data["rows"].get("train")
    on = f"{data} ({rows:,} training rows)" if rows else data
    if others := facts.results.get("trained_with"):
        on += f", with an encoder shared with {', '.join(others)} (multi-task learning)"
    most = max(outcome["steps"] for outcome in outcomes)
    seeds = counted(len(outcomes), "seed") if len(outcomes) > 1 else ""
    steps = counted(most, "step") if most else ""
    amount = " of up to ".join(filter(None, [seeds, steps]))
    what = f"{model}, {verb} ({facts.results['task']['description']}) on {on}"
    return f"{'; '.join(filter(None, [what, amount]))}."


def headline(facts: Facts) -> Headline:
    """The selection metric on the reported split, next to the best baseline."""
    name = facts.headline
    split = facts.split
    scores = facts.scores
    baseline = best_baseline(facts.results, split)
    said = verdict(facts.results, facts.findings)
    bounds = interval(scores["intervals"].get(name))
    range_ = f"95 % interval {bounds}" if bounds else ""
    rows = counted(scores["rows"], "row")
    return Headline(f"{name} on {split}", scores["metrics"][name], range_, rows, baseline, said)


def summary(facts: Facts) -> str:
    """The selection metric with its interval, the best baseline, the verdict, and what was trained on
    what.
    """
    model = headline(facts)
    text = (
        f"{model.metric}: {number(model.score)} ({'; '.join(filter(None, [model.interval, model.rows]))}). "
    )
    if best := model.baseline:
        text += f"Best baseline: {number(best.score)} ({best.does}). "
    return " ".join(filter(None, [text + model.verdict.text, selection(facts, ""), trained(facts)]))


def findings(facts: Facts) -> list[Finding]:
    """What the scores and the checks of the data tell the reader, the most severe first."""
    return sorted([*of_scores(facts), *facts.findings], key=lambda finding: finding.severity)


def of_scores(facts: Facts) -> list[Finding]:
    """What the scores tell, the most severe first."""
    return sorted(
        [*score_findings(facts.results), *calibrated_later(facts)], key=lambda finding: finding.severity
    )


def to_act_on(facts: Facts) -> list[Finding]:
    """The findings that are more than notes."""
    return [finding for finding in findings(facts) if finding.level != "note"]


def score_rows(facts: Facts) -> Lines:
    """Split, metric, score, interval, then each baseline; the first row is the header, the reported split is
    next.
    """
    baselines = facts.results["baselines"]
    others = unique(chain(*baselines.values()))
    rows = [["split", "metric", "this model", "95 % interval", *others]]
    for split, scores in sorted(facts.results["splits"].items(), key=lambda item: item[0] != facts.split):
        metrics = scores["metrics"]
        theirs = baselines.get(split, {})
        for name in overall_metrics(metrics, facts.headline):
            beside = (number(theirs.get(other, {}).get(name)) for other in others)
            rows.append([split, name, *cells(scores, name), *beside])
    return rows


def seed_rows(facts: Facts) -> Lines:
    """The scores of each seed, and their mean with its standard deviation; the first row is the header."""
    name = facts.headline
    seeds = facts.results["seeds"]
    over = over_seeds(facts.results)
    splits = list(seeds[0]["metrics"])
    rows = [["seed", *(f"{name}, {split}" for split in splits), "best step", "steps", "seconds"]]
    for seed in seeds:
        scores = [number(seed["metrics"][split].get(name)) for split in splits]
        best = "–" if seed["best_step"] is None else f"{seed['best_step']:,}"
        rows.append([str(seed["seed"]), *scores, best, f"{seed['steps']:,}", f"{seed['seconds']:.0f}"])
    means = ["mean ± sd", *(over.get(split, "–") for split in splits), "", "", ""]
    return [*rows, means] if len(seeds) > 1 else rows


def fold_rows(facts: Facts) -> Lines:
    """The scores of each fold, and their mean with its standard deviation; the first row is the header."""
    rows = [["fold", "rows", f"{facts.headline}, {OUT_OF_FOLD}", "seconds"]]
    for fold in facts.results["folds"]["each"]:
        score = number(fold["metrics"].get(facts.headline))
        rows.append([str(fold["fold"]), f"{fold['rows']:,}", score, f"{fold['seconds']:.0f}"])
    return [*rows, ["mean ± sd", "", mean_of_folds(facts.results), ""]]


def split_rows(facts: Facts) -> Lines:
    """The number of rows of each split, and their digest; the first row is the header."""
    rows = facts.data["rows"]
    digests = facts.data["fingerprints"]
    return [["split", "rows", "sha256"], *([name, f"{rows[name]:,}", digests[name]] for name in rows)]


def environment_rows(facts: Facts) -> Lines:
    """The machine and versions of the training; the first row is the header."""
    return [["what", "value"], *map(list, flat(facts.environment).items())]


def flat(value: Record, above: str = "") -> dict[str, str]:
    """Nested settings as one table: `training.learning_rate` -> its value."""
    table: dict[str, str] = {}
    for key, setting in value.items():
        if isinstance(setting, Mapping) and setting:
            table |= flat(setting, f"{above}{key}.")
        else:
            table[f"{above}{key}"] = "–" if setting is None or setting in ({}, []) else str(setting)
    return table


def support(facts: Facts) -> dict[str, int]:
    """The labels that have scores of their own, and how many rows or entities of the split have them."""
    metrics = facts.scores["metrics"].items()
    return {key[8:]: int(count) for key, count in metrics if key.startswith("support/")}


def label_rows(facts: Facts) -> Lines:
    """Support, threshold, precision, recall and F1 of each label, the most frequent first; the first row is
    the header.

    The threshold only where labels have thresholds of their own. Empty without labels.
    """
    metrics = facts.scores["metrics"]
    bounds = facts.scores["intervals"]
    thresholds = label_thresholds(facts.options)
    rows = [["label", "support", "threshold", "precision", "recall", "F1", "95 % interval of F1"]]
    for name, count in sorted(support(facts).items(), key=lambda item: -item[1]):
        few = " few" if count < MIN_ROWS else ""
        scores = [number(metrics.get(f"{kind}/{name}")) for kind in ("precision", "recall", "f1")]
        threshold = number(thresholds.get(name))
        rows.append([name, f"{count:,}{few}", threshold, *scores, interval(bounds.get(f"f1/{name}"))])
    if not thresholds:
        rows = [row[:2] + row[3:] for row in rows]
    return rows if len(rows) > 1 else []


def label_thresholds(options: Record) -> Mapping[str, float]:
    """The thresholds of single labels, if they have their own."""
    thresholds = options.get("thresholds")
    return {**(thresholds if isinstance(thresholds, Mapping) else {}), **(options.get("cutoffs") or {})}


def coverage_rows(facts: Facts) -> Lines:
    """How often sets or intervals had what is right on test; the first row is the header. Empty without
    any.
    """
    test = facts.results["splits"].get("test", {})
    rows = test.get("coverage", ())
    table = [list(map(COVERAGE.__getitem__, row)) for row in rows[:1]]
    for row in rows:
        requested, *measures = row.values()
        table.append([f"{requested:g}", *map(number, measures)])
    return table


def fitted_on(facts: Facts) -> str:
    """On how many decisions the temperature was fitted, and how many were wrong; empty if it was not."""
    temperature = facts.recipe.task.model_dump().get("temperature")
    if temperature is not None or facts.options.get("temperature") is None:
        return ""
    split = "validation" if "validation" in facts.results["splits"] else OUT_OF_FOLD
    calibration = facts.results["splits"][split]["calibration"]
    return (
        f"fitted on {counted(calibration['decisions'], 'decision')} of {split}, "
        f"{calibration['errors']:,} of them incorrect"
    )


def calibrated_later(facts: Facts) -> list[Finding]:
    """A warning that temperature and thresholds are no longer those of the scores, if `bertkit calibrate`
    changed them.
    """
    if not (calibrated := facts.calibrated):
        return []
    values = [f"{name} {value}" for name, value in fitted_options(calibrated["options"]).items()]
    values += [
        f"threshold of {name} {value:.4f}" for name, value in label_thresholds(calibrated["options"]).items()
    ]
    on = f"{counted(calibrated['rows'], 'row')} (sha256 {calibrated['sha256'][:16]}…; {calibrated['goal']})"
    what = f"these scores were measured before `bertkit calibrate`, which fitted new values on {on}"
    return [warn(f"{what}: {', '.join(values)}", "Score the calibrated model with bertkit evaluate.")]


def overview(facts: Facts) -> Picture | None:
    """The headline on each split with its interval, compared with baselines and the recipe's expected
    range.
    """
    name = facts.headline
    others = baseline_scores(facts.results, facts.split, name)
    return pictures.scores(name, facts.results["splits"], others, (facts.results["expected"] or {}).get(name))


def reliability(facts: Facts) -> Picture | None:
    """The reliability diagram of a task whose answers are decisions with probabilities, on the reported
    split.
    """
    if not facts.rows or "calibration" not in facts.scores:
        return None
    decisions = graded(task_of(facts), facts.rows).decisions()
    if facts.split == OUT_OF_FOLD and decisions:  # the models of folds are not calibrated
        decisions = {"before": decisions["after"]}
    return pictures.reliability(decisions) if decisions else None


def training(facts: Facts) -> list[Picture]:
    """The curves of loss and headline, and in pretraining of every metric, that were logged often enough."""
    headline = f"eval_{facts.headline}"
    seeds = facts.results["seeds"]
    best = {f"seed {seed['seed']}": seed["best_step"] for seed in seeds if seed["best_step"]}
    others = [key for event in facts.log for key in event if facts.schema.corpus and key.startswith("eval_")]
    drawn = []
    baselines = baseline_scores(facts.results, "validation", facts.headline)
    for name in dict.fromkeys(("loss", headline, *others)):
        lines = {f"seed {seed['seed']}": points_of(facts, name, seed["seed"]) for seed in seeds}
        of_headline = (best, baselines) if name == headline else ()
        drawn.append(pictures.curves(name, lines, *of_headline))
    return list(filter(None, drawn))


def points_of(facts: Facts, name: str, seed: int) -> list[tuple[float, float]]:
    """(step, value) of a logged number, wherever it was finite."""
    return [(e["step"], e[name]) for e in facts.log if e["seed"] == seed and e.get(name) is not None]


def explained(explanations: Sequence[Record]) -> list[Json]:
    """Explanations as `explain` returns them, or as explanations.json has them with `kind`, `row` and
    `gold`.
    """
    return [_explained(f"Row {place}", explanation) for place, explanation in enumerate(explanations, 1)]


def _explained(title: str, explanation: Record) -> Json:
    if "kind" in explanation:
        title = f"{KINDS[explanation['kind']]}, row {explanation['row']}"
    return {
        "title": title,
        "answer": explanation["said"],
        "gold": explanation.get("gold", ""),
        "attributions": [_attribution(explanation["texts"], part) for part in explanation["attributed"]],
    }


def _attribution(texts: Mapping[str, str], attributed: Any) -> Json:
    """One number behind an answer: each text in parts, and a table of the words with the largest
    attributions.
    """
    scored = [
        (texts[name][start:end], score)
        for name, words in attributed["words"].items()
        for start, end, score in words
        if score is not None
    ]
    most = max((abs(score) for _, score in scored), default=0.0) or 1.0
    parts = {name: list(_parts(texts[name], words, most)) for name, words in attributed["words"].items()}
    largest = sorted(scored, key=lambda pair: -abs(pair[1]))[:MAX_WORDS]
    table = [("word", attributed["unit"]), *((word, f"{score:+.3f}") for word, score in largest)]
    return {
        "what": attributed["what"],
        "check": difference_line(attributed),
        "texts": parts,
        "table": table,
    }


def _parts(text: str, words: Sequence[Any], most: float) -> Iterator[Span]:
    """The text in parts, the words marked as for, against or unread."""
    done = 0
    for start, end, score in words:
        yield Span(text[done:start])
        share = abs(score or 0.0) / most
        if score is None:
            mark = "unread"
        elif share < MIN_SHARE:
            mark = ""
        else:
            mark = "for" if score > 0 else "against"
        yield Span(text[start:end], mark, share=share)
        done = end
    yield Span(text[done:])
