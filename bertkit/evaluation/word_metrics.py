"""The scores of tagged words: of their entities; in the scheme `none`, where tags are labels of words, of the
labels.

Scores of labels are scikit-learn's by its defaults: averages over the labels that occur, gold or predicted.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from operator import eq

import numpy as np

from bertkit.data.tagging import Learned, from_bio
from bertkit.evaluation import entities
from bertkit.evaluation.entities import (
    GradedEntities,
    GradedTags,
    PackedTags,
    Stated,
    Tags,
    counts_by_sentence,
    lookup_baseline,
    precision_recall_f1,
    predictions,
)
from bertkit.evaluation.graded import Decisions, Graded, Scored
from bertkit.evaluation.intervals import Floats, Values, ratio
from bertkit.text import Json, Record, unique


def metric_names(labels: Sequence[str], scheme: Learned) -> list[str]:
    """The scores that may select a checkpoint, the default first: higher is better."""
    if scheme == "none":
        per_label = (f"{score}/{name}" for name in labels for score in ("precision", "recall", "f1"))
        return ["accuracy", "f1_macro", *per_label]
    return unique(["f1", *entities.metric_names(labels)])


def graded(
    gold: Iterable[Sequence[str]],
    answers: Sequence[Record],
    labels: Sequence[str],
    scheme: Learned,
    temperature: float,
    stated: Stated,
) -> Graded:
    """Answers as they are written, compared with gold tags in BIO, or in the scheme `none` with gold labels.

    answers: `words`, each with its `tag`, and its `score` in the scheme `none`; `entities` with theirs in
    others. stated: as in `GradedEntities`; types that only these have are scored too.
    """
    if scheme == "none":
        predicted, confidences = predictions(answers, "words")
        return GradedWords(PackedTags(gold), predicted, labels, confidences, temperature)
    predicted, confidences = predictions(answers, "entities")
    spelled = PackedTags(from_bio(tags, scheme) for tags in gold)
    return GradedEntities(
        spelled, predicted, _all_types(labels, stated), confidences, temperature, scheme, stated
    )


def lookup(
    train: tuple[Tags, Tags], rows: tuple[Tags, Tags], labels: Sequence[str], scheme: Learned, stated: Stated
) -> dict[str, float | None]:
    """The scores of tagging every word as most often in train.

    An unseen word is O; in the scheme `none` it has train's most frequent label. train, rows: words and their
    tags. stated: as in `graded`.
    """
    if scheme != "none":
        types = _all_types(labels, stated)
        return GradedEntities(rows[1], lookup_baseline(*train, rows[0]), types, stated=stated).scores
    most = Counter(chain.from_iterable(train[1])).most_common(1)[0][0]
    return GradedWords(rows[1], lookup_baseline(*train, rows[0], unseen=most), labels).scores


def _all_types(labels: Sequence[str], stated: Stated) -> list[str]:
    more = {entity[0] for entities in stated.values() for entity in entities}
    return [*labels, *sorted(more.difference(labels))]


@dataclass(frozen=True)
class GradedWords(GradedTags):
    """Predicted labels of words, which are the decisions, compared with the gold ones; a predicted "" is
    none.
    """

    ece_name = "ece"

    @cached_property
    def scored(self) -> Scored:
        """`accuracy`, `f1_macro`, and each label's precision, recall, F1 and support, by weights of
        sentences.

        None for a label that is neither gold nor predicted, which `f1_macro` leaves out; 0 / 0 is 0
        otherwise.
        """
        counted = (
            (compress(gold, map(eq, gold, predicted)), filter(None, predicted), gold)
            for gold, predicted in zip(self.gold, self.predicted, strict=True)
        )
        counts = counts_by_sentence(counted, self.labels)

        def weighted(weights: Floats) -> Values:
            of_label = (counts @ weights).reshape(3, len(self.labels), -1)
            columns = (*precision_recall_f1(of_label), of_label[2])
            scores = dict(zip(("precision", "recall", "f1", "support"), columns, strict=True))
            f1 = scores["f1"]
            occurring = (~np.isnan(f1)).sum(axis=0)
            return {
                "accuracy": ratio(of_label[0].sum(axis=0), of_label[2].sum(axis=0), undefined=np.nan),
                "f1_macro": ratio(np.nansum(f1, axis=0), occurring, undefined=np.nan),
                **{
                    f"{score}/{name}": of[i]
                    for i, name in enumerate(self.labels)
                    for score, of in scores.items()
                },
            }

        return Scored(weighted, len(self.gold))

    def confusion(self) -> Json:
        """By label; no matrix without words."""
        pairs = self.tag_pairs
        return {"labels": self.labels, "matrix": entities.matrix(pairs, self.labels) if pairs else []}

    def decisions(self) -> Decisions:
        """The label of each word."""
        right = (map(eq, *pair) for pair in zip(self.gold, self.predicted, strict=True))
        return (
            {"after": (self.confidences, array("b", chain.from_iterable(right)))}
            if len(self.confidences)
            else {}
        )
