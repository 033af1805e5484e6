"""Whether two files are alike: their labels, their words, and whether vectors tell their rows apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import hypot, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit import data as sources
from bertkit.audits.parts import Evidence, Part, Row
from bertkit.audits.rows import Encode, by_column, identified, joined
from bertkit.data.values import folded
from bertkit.data.words import words
from bertkit.evaluation.intervals import Floats, Interval, bootstrap, roc_auc, roc_curves
from bertkit.inference.evaluate import OF_SOURCE
from bertkit.inference.predict_file import like_data
from bertkit.inference.vector_cache import Vectors
from bertkit.recipe.recipe import Recipe
from bertkit.report.facts import texts_of
from bertkit.tasks import get_task
from bertkit.text import part_of

PRIOR = 500  # words of the prior, with the frequencies of both files together
ROWS = 10_000  # of each file, drawn at random, that the classifier is fitted to and tested on
LEAST = 20  # rows of each file
SHOWN = 20  # labels and words
METHOD = (
    "The classifier is a logistic regression on the vectors of the encoder as it was before training; it is fitted to "
    "one half of both files and tested on the other (Lopez-Paz and Oquab 2017). Listed are the rows that it finds most "
    "unlike train."
)


def drift(evidence: Evidence, file: Path, rows: Sequence[Row], encode: Encode) -> Part:
    """How the rows of another file, as `other_rows` reads them, differ from the training rows."""
    train, title = evidence.rows, f"{file.name} compared with train"
    known = set(map(_key, train))
    new = [row for row in rows if _key(row) not in known]
    if min(len(new), len(train)) < LEAST:
        few = f"{len(new):,} of the rows of {file.name} are not among the {len(train):,} training rows"
        return Part("drift", title, f"{few}: a comparison needs at least {LEAST} on both sides.")
    found = two_samples(joined(by_column(train, encode)), joined(by_column(new, encode)))
    auc = f"{found.auc:.2f}" + (f" ({found.interval[0]:.2f} to {found.interval[1]:.2f})" if found.interval else "")
    differs = found.interval is not None and found.interval[0] > 0.5
    unlike = [int(index) for index in np.argsort(-found.second, kind="stable") if differs and found.second[index] > 0.5]
    notes = [*_about_labels(train, rows), *_about_words(train, rows), METHOD]
    if again := len(rows) - len(new):
        notes.append(f"{part_of(again, len(rows), 'row')} in train too, and not shown to the classifier.")
    return Part(
        name="drift",
        title=title,
        summary=f"{file.name} {'differs' if differs else 'does not measurably differ'} from train: "
        f"a classifier tells their rows apart with an AUC of {auc}, where 0.5 is chance.",
        rows=[identified(new[index]) | {"unlike_train": round(float(found.second[index]), 4)} for index in unlike],
        columns=("unlike_train",),
        figures={f"AUC of {file.name} against train": auc},
        notes=notes,
    )


def other_rows(recipe: Recipe, file: Path) -> list[Row]:
    """The rows of a file like the recipe's data, in canonical columns, with `location`. Raises DataError."""
    kind, changes = get_task(recipe.task.name), {**dict.fromkeys(OF_SOURCE), "source": {"test": str(file)}}
    spec = like_data(recipe.data, str(file)).model_copy(update=changes)
    read = sources.load(spec, kind.schema_of(recipe.task), partial(kind.refine, recipe.task), splits={"test"})
    return [{**row, "location": read.origins["test"].public(n)} for n, row in enumerate(read.rows["test"])]


def _key(row: Row) -> tuple[str, ...]:
    return tuple(map(folded, texts_of(row)))


def _labels(rows: Sequence[Row]) -> list[Collection[str]] | None:
    """Of each row; None where there are none."""
    if isinstance(rows[0].get("label"), str):
        return [[row["label"]] for row in rows]
    return [row["labels"] for row in rows] if "labels" in rows[0] else None


def _about_labels(train: Sequence[Row], rows: Sequence[Row]) -> Iterator[str]:
    first, second = _labels(train), _labels(rows)
    if first and second:
        shifts = [each for each in label_shifts(first, second) if each.interval[0] > 0 or each.interval[1] < 0]
        for label, old, new, (low, high) in shifts[:SHOWN]:
            points = f"{100 * (new - old):+.1f} points, 95% interval {100 * low:+.1f} to {100 * high:+.1f}"
            yield f"Label {label}: {old:.1%} of train, {new:.1%} of the file ({points})."
        if not shifts:
            yield "No label's share differs by more than chance."


def _about_words(train: Sequence[Row], rows: Sequence[Row]) -> Iterator[str]:
    from scipy.stats import norm

    first, second = (counted_words(text for row in each for text in texts_of(row)) for each in (train, rows))
    unknown = sum(count for word, count in second.items() if word not in first)
    if not second:
        return
    yield f"{part_of(unknown, second.total(), 'word')} not in train."
    found = word_shifts(first, second)
    least = norm.isf(0.025 / len(found))  # of a two-sided test at 5% of all words together
    for where, ranked in (("the file", found), ("train", [each._replace(z=-each.z) for each in reversed(found)])):
        if more := [each.word for each in ranked[:SHOWN] if each.z > least]:
            yield f"More frequent in {where}: {', '.join(more)}."


class Shift(NamedTuple):
    """A label's share of the rows of both files; interval: of second - first."""

    label: str
    first: float
    second: float
    interval: Interval


def label_shifts(first: Sequence[Collection[str]], second: Sequence[Collection[str]]) -> list[Shift]:
    """How the shares of the labels differ, the largest difference first. A row has one label or several.

    Intervals are Newcombe's hybrid of Wilson's (1998, method 10), 95 % for all labels together (Bonferroni).
    """
    counts = [Counter(label for labels in rows for label in set(labels)) for rows in (first, second)]
    names = sorted({*counts[0], *counts[1]})
    shifts = (
        _shift(name, (counts[0][name], len(first)), (counts[1][name], len(second)), 1 - 0.05 / len(names))
        for name in names
    )
    return sorted(shifts, key=lambda each: -abs(each.second - each.first))


def _shift(label: str, first: tuple[int, int], second: tuple[int, int], level: float) -> Shift:
    from scipy.stats import binomtest

    (p, (p_low, p_high)), (q, (q_low, q_high)) = (
        (count / rows, binomtest(count, rows).proportion_ci(level, method="wilson")) for count, rows in (first, second)
    )
    low, high = q - p - hypot(q - q_low, p_high - p), q - p + hypot(q_high - q, p - p_low)
    return Shift(label, p, q, (low, high))


class Word(NamedTuple):
    """A word, how often each file has it, and the z-score of its log odds ratio, above 0 where the second has more."""

    word: str
    first: int
    second: int
    z: float


def counted_words(texts: Iterable[str]) -> Counter[str]:
    """How often each word occurs, without regard to case; punctuation is left out."""
    found = (text[start:end].casefold() for text in texts for start, end in words(text))
    return Counter(word for word in found if any(map(str.isalnum, word)))


def word_shifts(first: Mapping[str, int], second: Mapping[str, int]) -> list[Word]:
    """The words of both files, the most over-represented one in the second first.

    By the log odds ratio with an informative Dirichlet prior (Monroe et al. 2008, section 3.5.1).
    """
    totals = sum(first.values()), sum(second.values())
    found = []
    for word in {**first, **second}:
        counts = first.get(word, 0), second.get(word, 0)
        prior = PRIOR * sum(counts) / sum(totals)
        odds = [(n + prior) / (total + PRIOR - n - prior) for n, total in zip(counts, totals, strict=True)]
        deviation = sqrt(sum(1 / (n + prior) for n in counts))
        found.append(Word(word, *counts, float(np.log(odds[1] / odds[0])) / deviation))
    return sorted(found, key=lambda each: (-each.z, each.word))


class TwoSamples(NamedTuple):
    """How well vectors tell two files apart: 0.5 is chance. interval: 95 %, None where it is not defined.

    second: the probability of each row of the second file to be of that file, by a model that was not fitted to it.
    """

    auc: float
    interval: Interval | None
    second: Floats


def two_samples(first: Vectors, second: Vectors, seed: int = 0) -> TwoSamples:
    """The classifier two-sample test (Lopez-Paz and Oquab 2017): logistic regression on vectors `(rows, size)`.

    It is fitted to a random half of both files. AUC and interval (bootstrap) are those of the other half, which is
    independent of it, so that files of the same distribution have 0.5 in 95 % of intervals.
    """
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(seed)
    order = [rng.permutation(len(each)) for each in (first, second)]
    halves = [[indices[part::2][: ROWS // 2] for indices in order] for part in (0, 1)]

    def fitted(half: Sequence[Any]) -> Any:
        vectors = np.concatenate([first[half[0]], second[half[1]]])
        model = LogisticRegression(class_weight="balanced", max_iter=1000)
        return model.fit(vectors, np.repeat([0, 1], [len(half[0]), len(half[1])]))

    models = [fitted(half) for half in halves]
    probabilities = np.empty(len(second))
    for part in (0, 1):
        rest = order[1][part::2]
        probabilities[rest] = models[1 - part].predict_proba(second[rest])[:, 1]
    tested = halves[1]
    scores = models[0].predict_proba(np.concatenate([first[tested[0]], second[tested[1]]]))[:, [1]]
    truth = np.repeat([False, True], [len(tested[0]), len(tested[1])])[:, None]
    curves = roc_curves(truth, scores)
    auc = float(roc_auc(curves, np.ones((len(truth), 1)))[0])
    interval = bootstrap(lambda weights: {"auc": roc_auc(curves, weights)}, len(truth))["auc"]
    return TwoSamples(auc, interval, probabilities)
