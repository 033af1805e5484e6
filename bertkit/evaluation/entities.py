"""The scores of named entities, as conlleval and seqeval define them, and the baselines to beat.

An entity counts as found where type, first and last word are all right (Tjong Kim Sang & De Meulder 2003).
We count ourselves because seqeval is slow and keeps no counts per sentence, which the bootstrap needs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from bertkit.data.tagging import Entity, Learned, entities, invalid, strict_entities, tag_names
from bertkit.evaluation.intervals import Interval, Weighted, bootstrap
from bertkit.evaluation.metrics import Floats, Scores, confusion_matrix

Tags: TypeAlias = Sequence[Sequence[str]]
Found: TypeAlias = Sequence[Sequence[Entity]]  # the entities of each sentence

_SCORES = ("precision", "recall", "f1")
_ERRORS = ("correct", "boundary", "type", "both", "missed", "spurious")


def metric_names(types: Sequence[str]) -> list[str]:
    """The scores that may pick a checkpoint (higher is better), in the order in which they are emitted."""
    per_type = [f"{score}/{name}" for name in types for score in _SCORES]
    return [*_SCORES, *(f"{score}_strict" for score in _SCORES), "f1_macro", "accuracy", *per_type]


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
        for index, (gold, predicted) in enumerate(zip(self.gold, self.predicted, strict=True)):
            if len(gold) != len(predicted):
                raise ValueError(f"sentence {index} (0-based): {len(gold)} gold tags but {len(predicted)} predicted")
        strangers = set(chain(*self.gold, *self.predicted)).difference(tag_names(self.types, self.scheme))
        if strangers:
            what = f"not {self.scheme} tags of {', '.join(self.types)}"
            raise ValueError(f"{what}: {', '.join(sorted(strangers))}")

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
        support = Counter(kind for found in self._lenient[0] for kind, _, _ in found)
        scores["invalid_tags"] = float(sum(invalid(tags, self.scheme) for tags in self.predicted))
        return scores | {f"support/{name}": float(support[name]) for name in self.types}

    def intervals(self, *, resamples: int = 1000, seed: int = 0) -> dict[str, Interval | None]:
        """Bootstrap 95 % percentile intervals over sentences (Efron & Tibshirani 1993), of `metric_names`.

        None where the score is undefined in more than half of the resamples.
        """
        return bootstrap(self.weighted, len(self.gold), resamples=resamples, seed=seed)

    @cached_property
    def weighted(self) -> Weighted:
        """The scores of `metric_names` as a function of sentence weights (sentences, resamples)."""
        lenient = self._counts(*self._lenient)
        sides = self.gold, self.predicted
        strict = self._counts(*([strict_entities(tags, self.scheme) for tags in side] for side in sides))
        right = np.array([sum(g == p for g, p in zip(*tags, strict=True)) for tags in zip(*sides, strict=True)])
        words = np.array([len(tags) for tags in self.gold])

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
        for gold, predicted in zip(*self._lenient, strict=True):
            at, wanted = _by_word(predicted), _by_word(gold)
            counts.update(_outcome(entity, at) for entity in gold)
            counts["spurious"] += sum(wanted.keys().isdisjoint(range(first, end)) for _, first, end in predicted)
        return {error: counts[error] for error in _ERRORS}

    def confusion(self) -> dict[str, Any]:
        """`labels`, "O" and the types, and `matrix` (labels, labels): words by type, row = gold, column = predicted."""
        labels = ["O", *self.types]
        ids = {label: index for index, label in enumerate(labels)}
        gold, predicted = ([ids[_type(tag)] for tag in chain(*tags)] for tags in (self.gold, self.predicted))
        # scikit-learn refuses to count no words at all.
        matrix = confusion_matrix(gold, predicted, len(labels)) if gold else [[0] * len(labels) for _ in labels]
        return {"labels": labels, "matrix": matrix}

    @cached_property
    def _lenient(self) -> tuple[Found, Found]:
        return [entities(tags) for tags in self.gold], [entities(tags) for tags in self.predicted]

    def _counts(self, gold: Found, predicted: Found) -> Any:
        """A sparse (3 * types, sentences) matrix of entities: first right, then predicted, then gold ones."""
        from scipy.sparse import csr_array

        ids = {name: index for index, name in enumerate(self.types)}
        rows, columns = [], []
        for sentence, (wanted, given) in enumerate(zip(gold, predicted, strict=True)):
            for block, found in enumerate((set(wanted) & set(given), given, wanted)):
                rows += [block * len(ids) + ids[name] for name, _, _ in found]
                columns += [sentence] * len(found)
        at = np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)
        return csr_array((np.ones(len(rows)), at), shape=(3 * len(ids), len(gold)))


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
