"""Labels, numbers and answers that are likely wrong, by the answers of models that were not trained on the
rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, compress

import numpy as np

from bertkit.audits.confident import guesses, likely_wrong, margins, table_of, wrong_share
from bertkit.audits.parts import METHOD, Row, Section, corrected, to_check
from bertkit.evaluation.intervals import Bools, Floats, Ints
from bertkit.evaluation.squad_metrics import rule_of
from bertkit.recipe.recipe import Recipe
from bertkit.tasks.class_labels import settle_labels

FAR_OFF = 3.0  # standard deviations of the error
NO_ANSWER = "(no answer)"
ANSWERS = (
    "Each question is predicted by a model that was not trained on it. A question is listed in two cases. "
    "The predicted answer shares no word with the gold answers, and is at least as probable as the mean "
    "predicted answer that does. Or no answer is predicted where there is one, and is at least as probable "
    "as on average for questions without an answer."
)


def single_labels(recipe: Recipe, rows: Sequence[Row], target: str, answered: str) -> Section:
    """Rows whose label is likely wrong, the lowest margin over the most probable other label first."""
    name_of, value_of = _names(recipe, (row[target] for row in rows))
    names, table = table_of([row["answer"][answered] for row in rows])
    gold = np.array([names.index(name_of[row[target]]) for row in rows])
    best = table.argmax(axis=1)

    def correction(row: int) -> Row:
        new = names[best[row]]
        return corrected(
            rows[row], target, value_of[new], names[gold[row]], new, probability=table[row].max()
        )

    ranked = _ranked(margins(table, gold), likely_wrong(table, gold))
    share = wrong_share(gold, best, guesses(table, gold), np.arange(len(rows)))
    return to_check([*map(correction, ranked)], rows, "label", [METHOD.format("label")], share)


def label_sets(recipe: Recipe, rows: Sequence[Row], target: str, answered: str) -> Section:
    """Rows with a label that is likely wrong, or that lack one, the most probable of these mistakes first."""
    name_of, value_of = _names(recipe, chain.from_iterable(row[target] for row in rows))
    names, table = table_of([row["answer"][answered] for row in rows])
    sets = (set(map(name_of.__getitem__, row[target])) for row in rows)
    gold = np.array([list(map(labels.__contains__, names)) for labels in sets], dtype=np.int64)
    wrong = np.zeros(table.shape, dtype=bool)
    guess = np.empty(table.shape, dtype=np.int64)
    for label, (has, probability) in enumerate(zip(gold.T, table.T, strict=True)):
        # a row has it, or does not
        two = np.stack([1 - probability, probability], axis=1)
        suggested = guesses(two, has)
        wrong[:, label] = likely_wrong(two, has)
        guess[:, label] = np.where(suggested < 0, -1, 2 * label + suggested)
    doubt = np.where(wrong, np.where(gold, 1 - table, table), 0.0).max(axis=1)

    def correction(row: int) -> Row:
        old = compress(names, gold[row])
        new = list(compress(names, gold[row] ^ wrong[row]))
        values = [value_of[name] for name in new]
        return corrected(rows[row], target, values, ", ".join(old), ", ".join(new), probability=doubt[row])

    ranked = _ranked(-doubt, doubt > 0)
    pairs = 2 * np.arange(len(names))
    unit = np.repeat(np.arange(len(rows)), len(names))
    decisions = (gold + pairs).ravel()
    best = ((table > 0.5) + pairs).ravel()
    share = wrong_share(decisions, best, guess.ravel(), unit)
    notes = [METHOD.format("label") + " Each label is audited on its own, as present or absent."]
    return to_check([*map(correction, ranked)], rows, "label", notes, share, "decisions about labels")


def numbers(recipe: Recipe, rows: Sequence[Row], target: str, answered: str) -> Section:
    """Rows whose number is far from the answer, the farthest first."""
    gold, answers = np.array([[row[target], row["answer"][answered]] for row in rows]).T
    # A cosine is learned from numbers of any scale.
    slope = np.cov(answers, gold, bias=True)[0, 1] / answers.var() if answers.var() else 0.0
    expected = gold.mean() + slope * (answers - answers.mean())
    deviations = np.abs(gold - expected) / ((gold - expected).std() or 1.0)

    def correction(row: int) -> Row:
        new = float(f"{expected[row]:.10g}")
        return corrected(
            rows[row], target, new, f"{gold[row]:.15g}", f"{new:.15g}", deviations=deviations[row]
        )

    ranked = _ranked(-deviations, deviations > FAR_OFF)
    note = (
        "A number is listed if it is more than three standard deviations of the error away from the "
        "prediction of a model that was not trained on its row, rescaled by a linear fit to all predictions."
    )
    return to_check([*map(correction, ranked)], rows, "number", [note])


def questions(recipe: Recipe, rows: Sequence[Row], target: str, answered: str) -> Section:
    """Questions whose answer shares no word with those in the data, the most probable first; one may be no
    answer.
    """
    golds = [row[target]["text"] for row in rows]
    answers = [row["answer"] for row in rows]
    rule = rule_of(row["context"] for row in rows)
    overlap = np.array(
        [rule.scores(answer["answer"], gold)[1] for answer, gold in zip(answers, golds, strict=True)]
    )
    score, null = np.array([[answer["score"], answer[answered]] for answer in answers]).T
    silent = np.array([not answer["answer"] for answer in answers])
    unanswerable = np.array([not gold for gold in golds])
    limit = np.where(silent, _mean(null[unanswerable]), _mean(score[(overlap > 0) & ~silent]))

    def correction(index: int) -> Row:
        answer = answers[index]
        text = answer["answer"]
        some = bool(text)
        value = {"text": [text] * some, "answer_start": [answer["start"]] * some}
        old = " | ".join(dict.fromkeys(golds[index])) or NO_ANSWER
        return corrected(rows[index], target, value, old, text or NO_ANSWER, probability=score[index])

    ranked = _ranked(-score, (overlap == 0) & (score >= limit))
    return to_check([*map(correction, ranked)], rows, "answer", [ANSWERS])


def _ranked(order: Floats, listed: Bools) -> Ints:
    """The rows that are listed, `(rows,)` flags, in ascending order."""
    rows = np.argsort(order, kind="stable")
    return rows[listed[rows]]


def _names(recipe: Recipe, values: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Value in the data -> label name, and a value for each name."""
    name_of = settle_labels(getattr(recipe.task, "labels", None), list(dict.fromkeys(values)))
    return name_of, {name: value for value, name in reversed(name_of.items())}


def _mean(values: Floats) -> float:
    """Infinite where there is none."""
    return float(values.mean()) if len(values) else np.inf
