"""The scores of named entities, of those that seqeval reads, and the baseline to beat.

A predicted entity is right where type, first and last word are all right (Tjong Kim Sang & De Meulder 2003).
seqeval counts over all sentences at once, from lists of all tags; the bootstrap needs the counts of each
sentence.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import eq
from typing import Any, ClassVar, Literal

import numpy as np

from bertkit.data.tagging import Entity, Learned, entities, invalid, strict_entities
from bertkit.evaluation.calibration import calibration_error
from bertkit.evaluation.graded import Decisions, Graded, Scored
from bertkit.evaluation.intervals import Floats, Values, ratio
from bertkit.text import Json, Record

Tags = Collection[Sequence[str]]
Stated = Mapping[int, Sequence[tuple[Any, ...]]]

_SCORES = ("precision", "recall", "f1")
_ERRORS = "correct boundary type both missed spurious".split()


def metric_names(types: Sequence[str]) -> list[str]:
    """The scores that may pick a checkpoint (higher is better), in the order in which they are emitted."""
    per_type = [f"{score}/{name}" for name in types for score in _SCORES]
    return [*_SCORES, *(f"{score}_strict" for score in _SCORES), "f1_macro", "accuracy", *per_type]


class PackedTags(Collection[Sequence[str]]):
    """The tags of sentences, `(sentences, words)`: two bytes of memory a word, and eight a sentence."""

    def __init__(self, sentences: Iterable[Sequence[str]]) -> None:
        ids = dict[str, int]()
        self._words = array("H")
        self._ends = array("q", [0])
        for tags in sentences:
            self._words.extend([ids.setdefault(tag, len(ids)) for tag in tags])
            self._ends.append(len(self._words))
        self._names = list(ids)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[list[str]]:
        for start, end in pairwise(self._ends):
            yield [self._names[index] for index in self._words[start:end]]

    def __contains__(self, tags: object) -> bool:
        return any(sentence == tags for sentence in self)


def predictions(
    answers: Iterable[Record], scored: Literal["words", "entities"]
) -> tuple[PackedTags, Sequence[float]]:
    """The tags of answers as they are written, and the scores of all their words, or of all their entities,
    in order.

    Reads the answers once.
    """
    scores = array("d")

    def tags() -> Iterator[list[str]]:
        for answer in answers:
            scores.extend(part["score"] for part in answer[scored])
            yield [word["tag"] for word in answer["words"]]

    return PackedTags(tags()), scores


@dataclass(frozen=True)
class GradedTags(Graded):
    """Predicted tags compared with the gold ones, `(sentences, words)`.

    labels: all entity types, or labels of words, that may occur. confidences: one per decision, in order, at
    `temperature`.
    """

    ece_name: ClassVar[str]  # of the calibration error, in `details`
    gold: Tags
    predicted: Tags
    labels: Sequence[str]
    confidences: Sequence[float] = ()
    temperature: float = 1.0

    def details(self) -> Json:
        """Which labels are taken for which, and how well scores are calibrated."""
        pairs = self.tag_pairs
        decisions = self.decisions()
        errors = sum(count for (gold, predicted), count in pairs.items() if gold != predicted)
        ece = calibration_error([decisions["after"]]) if decisions else None
        calibration = {
            "temperature": self.temperature,
            "decisions": pairs.total(),
            "errors": errors,
            self.ece_name: ece,
        }
        return {"labels": self.labels, "confusion": self.confusion(), "calibration": calibration}

    def confusion(self) -> Json:
        """`labels` and `matrix` (labels, labels): words by label, row = gold, column = predicted."""
        raise NotImplementedError

    @cached_property
    def tag_pairs(self) -> Counter[tuple[str, str]]:
        """A word's gold and its predicted tag -> in how many words."""
        pairs = Counter[tuple[str, str]]()
        for gold, predicted in zip(self.gold, self.predicted, strict=True):
            pairs.update(zip(gold, predicted, strict=True))
        return pairs

    def pairs(self) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
        """Lists of predicted and of gold tags, as the metrics seqeval and poseval expect them."""
        return list(self.predicted), list(self.gold)


@dataclass(frozen=True)
class GradedEntities(GradedTags):
    """Predicted tags, in `scheme`, compared with the gold ones by their entities, which are the decisions.

    stated: the gold entities of sentences whose tags do not say them, by sentence; see
    `data.word_spans.gold_entities`."""

    ece_name = "ece_entities"
    scheme: Learned = "BIO"
    stated: Stated = field(default_factory=dict)

    @cached_property
    def scored(self) -> Scored:
        """The scores as a function of sentence weights (sentences, resamples), seqeval's to the last digit.

        `precision`, `recall` and `f1` are micro averages under conlleval's lenient reading of malformed tags,
        as are those of each type, `f1/TYPE` and so on. `..._strict` count well-formed entities only
        (seqeval's strict mode). 0 / 0 counts as 0, as in seqeval; but None where there is neither a gold nor
        a predicted entity. `f1_macro` is the mean over types with gold entities. `accuracy` is the share of
        words with the right tag. `support/TYPE` is the number of gold entities, `invalid_tags` that of
        forbidden transitions in the predictions.
        """
        from seqeval.metrics.sequence_labeling import get_entities

        lenient = self._counts(
            lambda tags: [(kind, first, last + 1) for kind, first, last in get_entities([*tags])]
        )
        strict = self._counts(lambda tags: strict_entities(tags, self.scheme))
        sentences = (
            (sum(map(eq, gold, predicted)), len(gold), invalid(predicted, self.scheme))
            for gold, predicted in zip(self.gold, self.predicted, strict=True)
        )
        words: Any = np.fromiter(sentences, np.dtype((np.uint32, 3)), len(self.gold))

        def scores(weights: Floats) -> Values:
            shape = (3, len(self.labels), weights.shape[1])
            counts = (lenient @ weights).reshape(shape)
            strict_counts = (strict @ weights).reshape(shape)
            per_type = precision_recall_f1(counts)
            values = [
                *precision_recall_f1(counts.sum(axis=1)),
                *precision_recall_f1(strict_counts.sum(axis=1)),
            ]
            supported = counts[2] > 0
            f1_sum = np.where(supported, per_type[2], 0.0).sum(axis=0)
            values.append(ratio(f1_sum, supported.sum(axis=0), undefined=np.nan))
            of_words = words.T @ weights
            values.append(ratio(of_words[0], of_words[1], undefined=np.nan))
            values.extend(per_type.transpose(1, 0, 2).reshape(-1, shape[2]))
            support = {f"support/{name}": count for name, count in zip(self.labels, counts[2], strict=True)}
            named = dict(zip(metric_names(self.labels), values, strict=True))
            return {**named, "invalid_tags": of_words[2], **support}

        return Scored(scores, len(self.gold))

    def details(self) -> Json:
        """The kinds of errors, too."""
        return {**super().details(), "errors": self.errors()}

    def decisions(self) -> Decisions:
        """Each predicted entity."""
        right = array("b")
        for gold, predicted in self._sentences(entities):
            correct = set(gold)
            right.extend([entity in correct for entity in predicted])
        return {"after": (self.confidences, right)} if self.confidences else {}

    def errors(self) -> dict[str, int]:
        """Number of gold entities by outcome, and of spurious predicted ones; read as conlleval does.

        correct: predicted. boundary: a predicted entity of the right type overlaps it, with another extent.
        type: the same extent, another type. both: only entities of another type and extent overlap it.
        missed: none does. These sum to the gold entities. spurious: predicted entities that overlap no gold
        one.
        """
        counts: Counter[str] = Counter()
        for gold, predicted in self._sentences(entities):
            predicted_at = _by_word(predicted)
            gold_at = _by_word(gold)
            counts.update(_outcome(entity, predicted_at) for entity in gold)
            counts["spurious"] += sum(
                gold_at.keys().isdisjoint(range(first, end)) for _, first, end in predicted
            )
        return {error: counts[error] for error in _ERRORS}

    def confusion(self) -> Json:
        """By type; labels are "O" and the types."""
        labels = ["O", *self.labels]
        pairs: Counter[tuple[str, str]] = Counter()
        for (gold, predicted), count in self.tag_pairs.items():
            pairs[gold[2:] or "O", predicted[2:] or "O"] += count
        return {"labels": labels, "matrix": matrix(pairs, labels)}

    def _sentences(
        self, read: Callable[[Sequence[str]], Sequence[Entity]]
    ) -> Iterator[tuple[Sequence[tuple[Any, ...]], Sequence[Entity]]]:
        """Gold and predicted entities of each sentence."""
        for row, (gold, predicted) in enumerate(zip(self.gold, self.predicted, strict=True)):
            yield self.stated[row] if row in self.stated else read(gold), read(predicted)

    def _counts(self, read: Callable[[Sequence[str]], Sequence[Entity]]) -> Any:
        """Entities, (3 * types, sentences): first right, then predicted, then gold ones."""
        sentences = self._sentences(read)
        blocks = (map(_types, ({*gold} & {*predicted}, predicted, gold)) for gold, predicted in sentences)
        return counts_by_sentence(blocks, self.labels)


def matrix(pairs: Counter[tuple[str, str]], labels: Sequence[str]) -> list[list[int]]:
    """How often each pair occurs, `(labels, labels)`."""
    rows = []
    for row in labels:
        rows.append([pairs[row, column] for column in labels])
    return rows


def _types(entities: Iterable[tuple[Any, ...]]) -> list[str]:
    return [entity[0] for entity in entities]


def counts_by_sentence(sentences: Iterable[Iterable[Iterable[str]]], names: Sequence[str]) -> Any:
    """A sparse matrix (3 * names, sentences): how often each was right, predicted and gold in each
    sentence.
    """
    from scipy.sparse import csc_array

    number = {name: index for index, name in enumerate(names)}
    counts = array("I")
    ids = array("i")
    ends = array("i", [0])
    for sentence in sentences:
        totals = Counter(
            len(number) * block + number[name] for block, labels in enumerate(sentence) for name in labels
        )
        ids.extend(totals)
        counts.extend(totals.values())
        ends.append(len(ids))
    return csc_array(tuple(map(np.asarray, (counts, ids, ends))), shape=(3 * len(number), len(ends) - 1))


def lookup_baseline(train_tokens: Tags, train_tags: Tags, tokens: Tags, unseen: str = "O") -> list[list[str]]:
    """Tags (sentences, words): each word's most frequent tag in train, the first seen of equals; else
    `unseen`.

    Case counts. The tags of neighbours need not fit together.
    """
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for words, tags in zip(train_tokens, train_tags, strict=True):
        for word, tag in zip(words, tags, strict=True):
            seen[word][tag] += 1
    best = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}

    def likeliest(words: Sequence[str]) -> list[str]:
        return [best.get(word, unseen) for word in words]

    return list(map(likeliest, tokens))


def _by_word(entities: Sequence[tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
    return {word: entity for entity in entities for word in range(entity[1], entity[2])}


def _outcome(gold: tuple[Any, ...], predicted: Mapping[int, tuple[Any, ...]]) -> str:
    """The key in `errors` of one gold entity, given the predicted entity at each word."""
    kind, *extent = gold
    over = {predicted[word] for word in range(*extent[:2]) if word in predicted}
    if gold in over:
        return "correct"
    if any(name == kind for name, _, _ in over):
        return "boundary"
    if any(other == extent for _, *other in over):
        return "type"
    return "both" if over else "missed"


def precision_recall_f1(counts: Floats) -> Floats:
    """(3, ...) scores from (3, ...) right, predicted and gold entities; NaN where there are none of these."""
    predicted = counts[1]
    gold = counts[2]
    precision = ratio(counts[0], predicted)
    recall = ratio(counts[0], gold)
    f1 = ratio(2 * precision * recall, precision + recall)  # seqeval's formula, to its last digit
    return np.where(predicted + gold > 0, [precision, recall, f1], np.nan)
