"""Sentences with entities, or labels of words, that are likely wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertkit.audits.confident import ErrorEstimate, guesses, likely_wrong, table_of, wrong_share
from bertkit.audits.parts import METHOD, Row, Section, corrected, to_check
from bertkit.data.tagging import Entity, Learned, labelled, tags_of
from bertkit.data.units import text_of
from bertkit.recipe.recipe import Recipe
from bertkit.tasks.tags import type_of

WHOLE = (
    " For a doubtful word, the model's entities that cover it are suggested; the rest of the sentence keeps "
    "its tags. The boundary between two adjacent entities of the same type is not audited."
)


class Change(NamedTuple):
    """Overlapping entities of the data, and those that the model finds; one of these may be none.

    probability: that of the least probable entity, or word outside of entities, that the model finds.
    """

    old: list[Entity]
    new: list[Entity]
    probability: float

    @property
    def words(self) -> set[int]:
        """The words that it covers."""
        return _words(self.old + self.new)


class Word(NamedTuple):
    """A word by its sentence and its place there; and the probabilities of its types, if it has a token."""

    sentence: int
    place: int
    scores: Mapping[str, float]


def sentences(recipe: Recipe, rows: Sequence[Row], target: str, answered: str) -> Section:
    """Sentences with an entity, or a label of a word, that is likely wrong; that with the word whose given
    type is the least probable comes first, as in cleanlab.

    Words are judged by their types; what is suggested are the whole entities of the model where a word is
    doubtful.
    """
    scheme = recipe.task.scheme  # type: ignore[attr-defined]
    doubtful, share = _doubtful_words(rows, target, answered, scheme)
    ranked = list[tuple[float, Row]]()
    for row, words in zip(rows, doubtful, strict=True):
        changes = [
            change for change in _changes(row, target, scheme) if not words.keys().isdisjoint(change.words)
        ]
        if changes:
            covered = set[int]().union(*(change.words for change in changes))
            least = min(p for word, p in words.items() if word in covered)
            ranked.append((least, _correction(row, target, changes, scheme)))
    listed = [row for _, row in sorted(ranked, key=lambda pair: pair[0])]
    notes = [METHOD.format("type of a word") + WHOLE]
    return to_check(listed, rows, "tag", notes, share, "types of words")


def _doubtful_words(
    rows: Sequence[Row], target: str, answered: str, scheme: Learned
) -> tuple[list[dict[int, float]], ErrorEstimate]:
    """The words of each sentence whose type is likely wrong, with its probability, and the estimated share of
    these.
    """
    words = [
        Word(sentence, place, word["scores"])
        for sentence, row in enumerate(rows)
        for place, word in enumerate(row["answer"][answered])
    ]
    most = max(len(word.scores) for word in words)
    read = [word for word in words if len(word.scores) == most]  # not those without a token
    names, table = table_of([word.scores for word in read])
    gold = np.array([names.index(type_of(rows[word.sentence][target][word.place], scheme)) for word in read])
    unit = np.array([word.sentence for word in read])
    doubtful: list[dict[int, float]] = [{} for _ in rows]
    for index in np.flatnonzero(likely_wrong(table, gold)):
        word = read[index]
        doubtful[word.sentence][word.place] = float(table[index, gold[index]])
    return doubtful, wrong_share(gold, table.argmax(axis=1), guesses(table, gold), unit)


def _changes(row: Row, target: str, scheme: Learned) -> Iterator[Change]:
    """The groups of overlapping entities in which data and model differ."""
    answer = row["answer"]
    gold = labelled(row[target], scheme)
    predicted = labelled([word["tag"] for word in answer["words"]], scheme)
    judged = answer.get("entities", answer["words"])
    scores = dict(zip(predicted, [part["score"] for part in judged], strict=True))
    groups = list[list[Entity]]()
    end = 0
    for entity in sorted({*gold} ^ {*predicted}, key=lambda entity: entity[1:]):
        if entity[1] >= end:
            groups.append([])
        groups[-1].append(entity)
        end = max(end, entity[2])
    for group in groups:
        ours = [entity for entity in group if entity in scores]
        theirs = [entity for entity in group if entity not in scores]
        # A word in an entity of ours is at least as probable as this.
        probabilities = [
            *(scores[entity] for entity in ours),
            *(answer["words"][word]["score"] for word in _words(theirs)),
        ]
        yield Change(theirs, ours, min(probabilities))


def _words(entities: Iterable[Entity]) -> set[int]:
    """The words that these entities cover."""
    return {word for _, first, end in entities for word in range(first, end)}


def _correction(row: Row, target: str, changes: Sequence[Change], scheme: Learned) -> Row:
    """The sentence with these changes."""
    words = row["answer"]["words"]
    text = text_of(row)
    old = [entity for change in changes for entity in change.old]
    new = [entity for change in changes for entity in change.new]

    def described(entities: Sequence[Entity]) -> str:
        return "; ".join(
            f"{kind}: {text[words[first]['start'] : words[end - 1]['end']]}" for kind, first, end in entities
        )

    kept = [entity for entity in labelled(row[target], scheme) if entity not in old]
    entities = sorted([*kept, *new], key=lambda entity: entity[1])
    plain = scheme == "none"
    tags = [kind for kind, _, _ in entities] if plain else tags_of(entities, len(words), "BIO")
    row = {name: value for name, value in row.items() if name != "spans"}  # which tags take the place of
    probability = max(change.probability for change in changes)
    return corrected(row, target, tags, described(old), described(new), probability=probability)
