"""What the scores of a run say: a verdict in one sentence, and findings to act on beside those of the
data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

from bertkit.data.schema import Finding, note, warn, weighed
from bertkit.run import OUT_OF_FOLD, TEACHER
from bertkit.text import Record, counted, part_of

MIN_ROWS = 20  # rows: scores from fewer say little
# BLEU's tokens of generated texts relative to those of their targets: beyond, length alone costs about a
# fifth of BLEU.
LENGTHS = (0.8, 1.25)
ONE_LABEL = 0.9  # share of rows that one label has, from which on MACRO takes accuracy's place
MACRO = "f1_macro"
WITHOUT_THRESHOLD = ("roc_auc", "average_precision")  # metrics of the order of scores
MAX_ECE = 0.1  # of scores that may be read as probabilities
# name in results -> in words
BASELINES = {
    "majority": "always giving the same answer",
    "tfidf": "a linear model on TF-IDF",
    "tfidf of characters": "a linear model on TF-IDF of characters",
    "tf-idf cosine": "the cosine of TF-IDF vectors",
    "tf-idf cosine of characters": "the cosine of TF-IDF vectors of characters",
    "lookup": "each word's most frequent tag in train",
    "unigrams": "always predicting the most frequent token",
    "random": "random scores",
    "copy": "copying the source",
    "no answer": "never giving an answer",
    "nearest": "the target of the most similar training source",
}


class Verdict(NamedTuple):
    """One sentence on the selection metric, and whether it is good news."""

    level: Literal["good", "unclear", "bad"]
    text: str


class Baseline(NamedTuple):
    """A baseline: its name in the results, what it does, and its score."""

    name: str
    does: str
    score: float


def reported_split(results: Record) -> str:
    """The split that is reported in detail: test, otherwise validation, otherwise the only one."""
    splits = results["splits"]
    return next((name for name in ("test", "validation") if name in splits), next(iter(splits)))


def baseline_scores(results: Record, split: str, metric: str) -> dict[str, float]:
    """The scores of the baselines on a split, where they are defined."""
    scores = {name: metrics.get(metric) for name, metrics in results["baselines"].get(split, {}).items()}
    return {name: score for name, score in scores.items() if score is not None}


def best_baseline(results: Record, split: str, metric: str | None = None) -> Baseline | None:
    """The baseline with the highest score on a split, by default of the selection metric; of equal ones the
    first.
    """
    scores = baseline_scores(results, split, metric or results["headline"]).items()
    baselines = (
        Baseline(name, BASELINES.get(name, name), score) for name, score in scores if name != TEACHER
    )
    return max(baselines, key=lambda baseline: baseline.score, default=None)


def followed(results: Record, split: str) -> str:
    """The metric that the verdict is on: the selection metric; or macro F1, where one constant answer is so
    often right that accuracy says little about the other labels.
    """
    constant = results["baselines"].get(split, {}).get("majority", {}).get("accuracy") or 0.0
    blind = (
        results["headline"] == "accuracy"
        and constant >= ONE_LABEL
        and MACRO in results["splits"][split]["metrics"]
    )
    return MACRO if blind else str(results["headline"])


class Comparison(NamedTuple):
    """A model and its best baseline in one metric."""

    ours: float
    best: Baseline
    clear: bool  # whether the difference is more than chance

    @property
    def better(self) -> bool:
        """Whether the model's score is higher."""
        return self.ours > self.best.score


def compared(results: Record, split: str, metric: str) -> Comparison | None:
    """None where the metric is not defined for model and baselines.

    Only a model has an interval; its baseline is taken to be as uncertain and independent of it, so that a
    difference is clear if it is larger than √2 times the half of the interval on the baseline's side.
    """
    scores = results["splits"][split]
    best = best_baseline(results, split, metric)
    score = scores["metrics"].get(metric)
    bounds = scores["intervals"].get(metric)
    if best is None or score is None:
        return None
    ours = _of_folds(results, split, metric)
    half = math.inf
    if bounds:
        half = bounds[1] - score if ours <= best.score else score - bounds[0]
    return Comparison(ours, best, abs(ours - best.score) > math.sqrt(2) * half)


def verdict(results: Record, findings: Sequence[Finding]) -> Verdict:
    """How far the selection metric can be trusted, and whether it is better than the best baseline; see
    `followed` and `compared`. Where a metric without a threshold says the opposite, so does the verdict.
    findings: of the data.
    """
    split = reported_split(results)
    name = followed(results, split)
    scores = results["splits"][split]
    if split == "train":
        return Verdict("bad", "Scored on its own training rows: this says nothing about new texts.")
    if scores["metrics"][name] is None:
        return Verdict("bad", f"{name} is not defined on these rows.")
    if any(finding.level == "severe" and finding.inflates == split for finding in findings):
        return Verdict("bad", "Some of these rows are in train too: expect a lower score on new texts.")
    if (result := compared(results, split, name)) is None:
        return Verdict("unclear", "There is no baseline to compare it with.")
    unit = "queries" if "queries" in scores else "rows"
    said = _of_comparison(result, scores[unit], unit)
    if name != results["headline"]:
        constant = results["baselines"][split]["majority"][results["headline"]]
        why = f"always giving the same answer has an {results['headline']} of {constant:.4f}"
        said = said._replace(text=f"{said.text} This is by {name}, because {why}.")
    for metric in WITHOUT_THRESHOLD:
        other = compared(results, split, metric)
        if other and metric != name and other.clear and other.better != result.better:
            how = f"{'better' if other.better else 'worse'} in {metric}, which does not depend on a threshold"
            versus = f"{other.ours:.4f}, where {other.best.does} has {other.best.score:.4f}"
            return Verdict("unclear", f"{said.text} But clearly {how}: {versus}.")
    return said


def _of_comparison(result: Comparison, count: int, unit: str) -> Verdict:
    """The verdict on one metric of so many rows or queries."""
    if not result.better:
        return Verdict("bad", f"{'Clearly worse' if result.clear else 'No better'} than {result.best.does}.")
    if count < MIN_ROWS:
        few = f"too few {unit} to be sure ({count})"
        return Verdict("unclear", f"Better than the best baseline, but on {few}.")
    if not result.clear:
        return Verdict("unclear", "Better than the best baseline, but this difference may be chance.")
    return Verdict("good", "Clearly better than the best baseline.")


def _of_folds(results: Record, split: str, metric: str) -> Any:
    """A metric as the baselines of the split have it: over folds, the mean."""
    score = results["splits"][split]["metrics"].get(metric)
    return results["folds"]["mean"].get(metric, score) if split == OUT_OF_FOLD else score


def score_findings(results: Record) -> Iterator[Finding]:
    """Scores that say little or mislead, baselines that are at least as good, and scores outside the expected
    range.
    """
    reported = reported_split(results)
    name = followed(results, reported)
    baselines = results["baselines"]
    splits = results["splits"]
    if reported == "train":
        fix = "Hold rows out:  data: {validation: 0.1, test: 0.1}"
        yield Finding("severe", "these scores are on training rows", fix)
    linear = any("C" in seed for seed in results["seeds"])  # a method for few rows, without a learning rate
    fix = "Try another task.method" if linear else "Train longer or with a higher learning rate"
    by = "" if name == results["headline"] else f" in {name}"
    if by:
        fix = f"Write training.metric_for_best_model: {name}, or task.class_weights: auto. {fix}"
    for baseline in dict.fromkeys(chain(*baselines.values())):
        if baseline == TEACHER:
            continue
        theirs = {split: scores.get(baseline, {}).get(name) for split, scores in baselines.items()}
        pairs = {split: (score, _of_folds(results, split, name)) for split, score in theirs.items()}
        strong = [split for split, pair in pairs.items() if None not in pair and pair[0] >= pair[1]]
        if strong:
            what = f"the baseline {baseline} is at least as good{by} on {' and '.join(strong)}"
            yield Finding("severe", what, f"{fix}, or look at the data.")
    for split, scores in splits.items():
        if split == OUT_OF_FOLD:  # its answers are not calibrated
            continue
        errors = (scores.get("calibration", {}).get(kind) for kind in ("ece_after", "ece", "ece_entities"))
        if (error := max(filter(None, errors), default=0.0)) > MAX_ECE:
            what = f"the expected calibration error on {split} is {error:.2f}"
            yield warn(what, "Do not read scores as probabilities, or fit them again with bertkit calibrate.")
        yield from _lengths(split, scores)
    if undecided := next(filter(None, [seed.get("undecided") for seed in results["seeds"]]), None):
        score = undecided["score"]
        was = "was not defined in any" if score is None else f"was {score:.4f} in each"
        what = (
            f"{undecided['metric']} {was} of {counted(undecided['evaluations'], 'evaluation')}: "
            "it selects no checkpoint"
        )
        fix = "Give more validation rows with other targets, or name another training.metric_for_best_model."
        yield note(f"{what}; the last is kept") if score == 1 else warn(f"{what}; the last is kept", fix)
    measured = "validation" if "validation" in splits else next(iter(splits))
    for metric, bounds in (results["expected"] or {}).items():
        score = splits[measured]["metrics"].get(metric)
        if isinstance(bounds, list) and score is not None:
            low, high = bounds
            what = f"{metric} on {measured} is {score:.4f}; the recipe expects {low} to {high}"
            outside = warn(what, "Compare recipe, data and versions with those of the measurement.")
            yield note(what) if low <= score <= high else outside


def _lengths(split: str, scores: Record) -> Iterator[Finding]:
    """How long generated texts are."""
    if "length_ratio" not in scores:
        return
    ratio = scores["length_ratio"]
    unfinished = scores["unfinished"]
    what = f"{split}: generated texts have {ratio:.2f} times the length of their targets"
    fix = "Train longer, or generate with beams."
    yield note(what) if LENGTHS[0] <= ratio <= LENGTHS[1] else warn(what, fix)
    if unfinished:
        what = f"{split}: {part_of(unfinished, scores['rows'], 'generated text')} cut at max_new_tokens"
        yield weighed(unfinished, scores["rows"], what, "Raise task.generation.max_new_tokens.")
