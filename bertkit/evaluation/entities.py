"""The scores of named entities, as conlleval and seqeval define them, and the baselines to beat.

An entity counts as found where type, first and last word are all right (Tjong Kim Sang & De Meulder 2003).
We count ourselves because seqeval is slow and keeps no counts per sentence, which the bootstrap needs.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from bertkit.data.tagging import Entity, Learned, entities, invalid, strict_entities, tag_names
from bertkit.evaluation.intervals import Interval, Weighted, bootstrap
from bertkit.evaluation.metrics import Floats, Scores

Tags: TypeAlias = Collection[Sequence[str]]

_SCORES = ("precision", "recall", "f1")
_ERRORS = ("correct", "boundary", "type", "both", "missed", "spurious")


def metric_names(types: Sequence[str]) -> list[str]:
    """The scores that may pick a checkpoint (higher is better), in the order in which they are emitted."""
    per_type = [f"{score}/{name}" for name in types for score in _SCORES]
    return [*_SCORES, *(f"{score}_strict" for score in _SCORES), "f1_macro", "accuracy", *per_type]


class PackedTags(Collection[Sequence[str]]):
    """The tags of sentences, `(sentences, words)`: two bytes of memory a word, and eight a sentence."""

    def __init__(self, sentences: Iterable[Sequence[str]]) -> None:
        ids = dict[str, int]()
        self._words, self._ends = array("H"), array("q", [0])
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
        return any(own == tags for own in self)


@dataclass(frozen=True)
class GradedEntities:
    """Predicted tags beside the gold ones, and all that can be said of the two.

    gold, predicted: (sentences, words) tags, both in `scheme`. types: all entity types that may occur.

    Raises:
        ValueError: There is no sentence, the shapes differ, or a tag is not one of `tag_names(types, scheme)`.
    """

    gold: Tags
    predicted: Tags
    types: Sequence[str]
    scheme: Learned = "BIO"

    def __post_init__(self) -> None:
        if not len(self.gold) or len(self.gold) != len(self.predicted):
            raise ValueError(f"{len(self.gold)} gold sentences but {len(self.predicted)} predicted ones")
        tags = set[str]()
        for index, (gold, predicted) in enumerate(zip(self.gold, self.predicted, strict=True)):
            if len(gold) != len(predicted):
                raise ValueError(f"sentence {index} (0-based): {len(gold)} gold tags but {len(predicted)} predicted")
            tags.update(gold, predicted)
        if unknown := tags.difference(tag_names(self.types, self.scheme)):
            what = f"not {self.scheme} tags of {', '.join(self.types)}"
            raise ValueError(f"{what}: {', '.join(sorted(unknown))}")

    @cached_property
    def scores(self) -> Scores:
        """Scores over all sentences.

        `precision`, `recall` and `f1` are micro averages under conlleval's lenient reading of malformed tags,
        as are those of each type, `f1/TYPE` and so on. `..._strict` count well-formed entities only (seqeval's
        strict mode). 0 / 0 counts as 0, as in seqeval; but None where there is neither a gold nor a predicted
        entity. `f1_macro` is the mean over types with gold entities. `accuracy` is the share of words with the
        right tag. `support/TYPE` is the number of gold entities, `invalid_tags` that of forbidden transitions
        in the predictions.
        """
        once = self.weighted(np.ones((len(self.gold), 1)))
        scores: Scores = {name: None if np.isnan(value[0]) else float(value[0]) for name, value in once.items()}
        support = self._lenient.sum(axis=1)[2 * len(self.types) :]
        scores["invalid_tags"] = float(sum(invalid(tags, self.scheme) for tags in self.predicted))
        return scores | {f"support/{name}": float(count) for name, count in zip(self.types, support, strict=True)}

    def intervals(self, *, resamples: int = 1000, seed: int = 0) -> dict[str, Interval | None]:
        """Bootstrap 95 % percentile intervals over sentences (Efron & Tibshirani 1993), of `metric_names`.

        None where the score is undefined in more than half of the resamples.
        """
        return bootstrap(self.weighted, len(self.gold), resamples=resamples, seed=seed)

    @cached_property
    def weighted(self) -> Weighted:
        """The scores of `metric_names` as a function of sentence weights (sentences, resamples)."""
        lenient, strict = self._lenient, self._counts(lambda tags: strict_entities(tags, self.scheme))
        rows, sides = len(self.gold), (self.gold, self.predicted)
        rights = (sum(g == p for g, p in zip(*tags, strict=True)) for tags in zip(*sides, strict=True))
        right = np.fromiter(rights, np.int64, rows)
        words = np.fromiter(map(len, self.gold), np.int64, rows)

        def scores(weights: Floats) -> dict[str, Floats]:
            shape = (3, len(self.types), weights.shape[1])
            counts, strict_counts = (lenient @ weights).reshape(shape), (strict @ weights).reshape(shape)
            per_type = _precision_recall_f1(counts)
            values = [*_precision_recall_f1(counts.sum(axis=1)), *_precision_recall_f1(strict_counts.sum(axis=1))]
            supported = counts[2] > 0
            values.append(_ratio(np.where(supported, per_type[2], 0.0).sum(axis=0), supported.sum(axis=0)))
            values.append(_ratio(right @ weights, words @ weights))
            values.extend(per_type.transpose(1, 0, 2).reshape(-1, shape[2]))
            return dict(zip(metric_names(self.types), values, strict=True))

        return scores

    def errors(self) -> dict[str, int]:
        """What became of each gold entity, and how many predicted ones are spurious; read as conlleval does.

        correct: found. boundary: a predicted entity of the right type overlaps it, with another extent. type:
        the same extent, another type. both: only entities of another type and extent overlap it. missed: none
        does. These sum to the gold entities. spurious: predicted entities that overlap no gold one.
        """
        counts: Counter[str] = Counter()
        for tags in zip(self.gold, self.predicted, strict=True):
            gold, predicted = map(entities, tags)
            at, wanted = _by_word(predicted), _by_word(gold)
            counts.update(_outcome(entity, at) for entity in gold)
            counts["spurious"] += sum(wanted.keys().isdisjoint(range(first, end)) for _, first, end in predicted)
        return {error: counts[error] for error in _ERRORS}

    def confusion(self) -> dict[str, Any]:
        """`labels`, "O" and the types, and `matrix` (labels, labels): words by type, row = gold, column = predicted."""
        labels = ["O", *self.types]
        words: Counter[tuple[str, str]] = Counter()
        for tags in zip(self.gold, self.predicted, strict=True):
            words.update(zip(*tags, strict=True))
        pairs: Counter[tuple[str, str]] = Counter()
        for (gold, predicted), count in words.items():
            pairs[_type(gold), _type(predicted)] += count
        return {"labels": labels, "matrix": [[pairs[row, column] for column in labels] for row in labels]}

    @cached_property
    def _lenient(self) -> Any:
        return self._counts(entities)

    def _counts(self, read: Callable[[Sequence[str]], Sequence[Entity]]) -> Any:
        """A sparse (3 * types, sentences) matrix of entities: first right, then predicted, then gold ones."""
        from scipy.sparse import csr_array

        ids = {name: index for index, name in enumerate(self.types)}
        rows, columns = array("i"), array("i")
        for sentence, tags in enumerate(zip(self.gold, self.predicted, strict=True)):
            wanted, given = map(read, tags)
            for block, found in enumerate((set(wanted) & set(given), given, wanted)):
                rows.extend([block * len(ids) + ids[name] for name, _, _ in found])
                columns.extend([sentence] * len(found))
        at = np.asarray(rows), np.asarray(columns)
        return csr_array((np.ones(len(rows)), at), shape=(3 * len(ids), len(self.gold)))


def lookup_baseline(train_tokens: Tags, train_tags: Tags, tokens: Tags) -> list[list[str]]:
    """Tags (sentences, words): each word's most frequent tag in train, the first seen of equals; else "O".

    Case counts. The tags of neighbours need not fit together.

    Args:
        train_tokens: (train sentences, words) words.
        train_tags: (train sentences, words) tags.
        tokens: (sentences, words) words to tag.

    Raises:
        ValueError: The shapes of `train_tokens` and `train_tags` differ.
    """
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for words, tags in zip(train_tokens, train_tags, strict=True):
        for word, tag in zip(words, tags, strict=True):
            seen[word][tag] += 1
    best = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
    return [[best.get(word, "O") for word in words] for words in tokens]


def _type(tag: str) -> str:
    return tag if tag == "O" else tag[2:]


def _by_word(found: Sequence[Entity]) -> dict[int, Entity]:
    return {word: entity for entity in found for word in range(entity[1], entity[2])}


def _outcome(gold: Entity, predicted: dict[int, Entity]) -> str:
    """The name in `errors` of what became of one gold entity, given the predicted entity at each word."""
    kind, *extent = gold
    over = {predicted[word] for word in range(*extent) if word in predicted}
    if gold in over:
        return "correct"
    if any(name == kind for name, _, _ in over):
        return "boundary"
    if any(other == extent for _, *other in over):
        return "type"
    return "both" if over else "missed"


def _ratio(top: Floats, bottom: Floats) -> Floats:
    """NaN where bottom is 0."""
    ratio: Floats = np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=bottom > 0)
    return ratio


def _precision_recall_f1(counts: Floats) -> Floats:
    """(3, ...) scores from (3, ...) right, predicted and gold entities; NaN where there are none of these."""
    right, predicted, gold = counts
    precision, recall = (np.nan_to_num(_ratio(right, of)) for of in (predicted, gold))
    f1 = np.nan_to_num(_ratio(2 * precision * recall, precision + recall))  # seqeval's formula, to its last digit
    return np.where(predicted + gold > 0, [precision, recall, f1], np.nan)
