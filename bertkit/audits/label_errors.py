"""Labels and numbers of texts that are likely wrong, from the answers of models that were not trained on the rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from bertkit.audits.confident import guesses, likely_wrong, margins, wrong_share
from bertkit.audits.correction_lists import METHOD, corrected, to_check
from bertkit.audits.parts import Evidence, Row, Section
from bertkit.tasks.class_labels import settle_labels

FAR_OFF = 3.0  # standard deviations of the error


def single_labels(evidence: Evidence) -> Section:
    """Rows whose `label` is likely wrong, the lowest margin over the most probable other label first."""
    rows, (name_of, value_of) = evidence.rows, _names(evidence, (row["label"] for row in evidence.rows))
    names = list(rows[0]["answer"]["scores"])
    table = np.array([[row["answer"]["scores"][name] for name in names] for row in rows])
    gold = np.array([names.index(name_of[row["label"]]) for row in rows])
    found = np.flatnonzero(likely_wrong(table, gold))
    best = table.argmax(axis=1)

    def correction(row: int) -> Row:
        new = names[best[row]]
        return corrected(rows[row], "label", value_of[new], names[gold[row]], new, probability=table[row].max())

    ranked = found[np.argsort(margins(table, gold)[found], kind="stable")]
    wrong = wrong_share(gold, best, guesses(table, gold), np.arange(len(rows)))
    return to_check([*map(correction, ranked)], len(rows), "label", [METHOD.format("label")], wrong)


def label_sets(evidence: Evidence) -> Section:
    """Rows with a label that is likely wrong, or that lack one, the most probable of these mistakes first."""
    rows = evidence.rows
    name_of, value_of = _names(evidence, chain.from_iterable(row["labels"] for row in rows))
    names = list(rows[0]["answer"]["scores"])
    table = np.array([[row["answer"]["scores"][name] for name in names] for row in rows])
    sets = [{name_of[value] for value in row["labels"]} for row in rows]
    gold = np.array([[int(name in own) for name in names] for own in sets])
    wrong, guess = np.zeros(table.shape, dtype=bool), np.empty(table.shape, dtype=np.int64)
    for label, (has, probability) in enumerate(zip(gold.T, table.T, strict=True)):  # a row has it, or does not
        two = np.stack([1 - probability, probability], axis=1)
        suggested = guesses(two, has)
        wrong[:, label], guess[:, label] = likely_wrong(two, has), np.where(suggested < 0, -1, 2 * label + suggested)
    doubt = np.where(wrong, np.where(gold, 1 - table, table), 0.0).max(axis=1)

    def correction(row: int) -> Row:
        old, new = ([names[label] for label in np.flatnonzero(of)] for of in (gold[row], gold[row] ^ wrong[row]))
        values = [value_of[name] for name in new]
        return corrected(rows[row], "labels", values, ", ".join(old), ", ".join(new), probability=doubt[row])

    ranked = (row for row in np.argsort(-doubt, kind="stable") if doubt[row])
    pairs, unit = 2 * np.arange(len(names)), np.repeat(np.arange(len(rows)), len(names))
    decisions, best = (gold + pairs).ravel(), ((table > 0.5) + pairs).ravel()
    share = wrong_share(decisions, best, guess.ravel(), unit)
    notes = [METHOD.format("label") + " Each label is judged by itself: a row has it, or does not."]
    return to_check([*map(correction, ranked)], len(rows), "label", notes, share, "decisions about labels")


def numbers(evidence: Evidence) -> Section:
    """Rows whose `score` is far from the answer, the farthest first."""
    rows = evidence.rows
    gold, answers = np.array([[row["score"], row["answer"]["score"]] for row in rows]).T
    # A cosine is learned from numbers of any scale.
    slope = np.cov(answers, gold, bias=True)[0, 1] / answers.var() if answers.var() else 0.0
    expected = gold.mean() + slope * (answers - answers.mean())
    deviations = np.abs(gold - expected) / ((gold - expected).std() or 1.0)

    def correction(row: int) -> Row:
        new = round(float(expected[row]), 4)
        return corrected(rows[row], "score", new, f"{gold[row]:g}", f"{new:g}", deviations=deviations[row])

    ranked = (row for row in np.argsort(-deviations, kind="stable") if deviations[row] > FAR_OFF)
    note = (
        "A number is listed where it is more than three standard deviations of the error away from what the model that "
        "was not trained on its row makes of it, by a straight line through all answers."
    )
    return to_check([*map(correction, ranked)], len(rows), "number", [note])


def _names(evidence: Evidence, values: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Value in the data -> label name, and a value for each name."""
    wanted = getattr(evidence.recipe.task, "labels", None)
    name_of = settle_labels(wanted, list(dict.fromkeys(values)))
    return name_of, {name: value for value, name in reversed(name_of.items())}
