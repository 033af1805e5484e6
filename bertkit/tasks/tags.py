"""Types of entities, or labels of words, and their tags, settled from the training rows or read from a
config.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data import tagging
from bertkit.data.columns import label_names
from bertkit.data.schema import Answer
from bertkit.errors import DataError, ModelError
from bertkit.models.heads.tagger import Tagged, expand_groups, expand_to_words
from bertkit.tasks.base import OptionValues
from bertkit.tasks.class_labels import output_names, settle_weights
from bertkit.text import repeated, unique

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PretrainedConfig

TAGGER = "Use a model for token-classification, or correct id2label in a copy of it."


def settle_tags(options: Any, rows: Dataset, class_names: Sequence[str]) -> OptionValues:
    """`labels`, `tags` and `class_weights` of these options, settled from the training rows. Raises
    DataError.
    """
    if options.context == "document" and "document" not in rows.column_names:
        raise DataError(
            "task.context",
            "context: document needs to know which sentences belong together",
            "Map a column `document`, or add -DOCSTART- lines.",
        )
    scheme = options.scheme
    plain = scheme == "none"
    used = {kind for row in rows["tags"] for kind, _, _ in tagging.labelled(row, scheme)}
    named = unique(type_of(name) for name in class_names if name[1:2] == "-") or sorted(used)
    types = options.labels or (label_names(used, class_names) if plain else named)
    tags = options.tags
    if options.data_scheme == "IO" and types[:1] == ["O"] and tagging.without_prefixes(types):
        types = types[1:]
    if not plain and "O" in types and not tagging.without_prefixes(types):  # the tags, as in an id2label
        tags = tags or types
        types = unique(type_of(tag) for tag in types if tag != "O")
    if len(types) < 1 + plain:
        what = "train has fewer than two labels" if plain else "no row of train has an entity"
        raise DataError("data", what, "Add labelled rows, or check data.columns.")
    if unknown := sorted(used - set(types)):
        kinds = "labels" if plain else "entities"
        raise DataError(
            "task.labels",
            f"train has {kinds} that task.labels lacks: {', '.join(unknown[:10])}",
            f"It has {', '.join(types)}. Add them, or leave task.labels out.",
        )
    if odd := [
        kind
        for kind in types
        if (kind == "O" and not plain) or kind != kind.strip() or not kind.isprintable()
    ]:
        what, why = ("a label", "") if plain else ("an entity type", "; O means none")
        raise DataError(
            "labels",
            f"{', '.join(map(repr, odd))} cannot be {what}: it must be printable, without outer spaces{why}",
            "Rename it in the data.",
        )
    needed = tagging.tag_names(types, scheme)
    tags = tags or needed
    if wrong := sorted(set(needed) ^ set(tags)):
        raise DataError(
            "task.tags",
            f"must list O and the {scheme} tags of {', '.join(types)}; differs in: {', '.join(wrong)}",
            "Leave it out, or list them all, also in task.labels.",
        )
    counts = Counter(type_of(tag, scheme) for row in rows["tags"] for tag in row)
    weights = settle_weights(options.class_weights, counts, types if plain else ["O", *types])
    return {"labels": types, "tags": tags, "class_weights": weights}


def options_of_config(config: PretrainedConfig) -> OptionValues:
    """`labels`, `tags` and `scheme` by a model's id2label: `none` where no label has a prefix such as B-.

    Raises ModelError where some labels are entity tags and others are not, and where they repeat.
    """
    tags = output_names(config)
    where = "config.json, id2label"
    if tagging.without_prefixes(tags) and len(tags) > 1:
        return {"labels": tags, "tags": tags, "scheme": "none"}
    try:
        scheme = tagging.find_scheme([[tag] for tag in tags])
    except ValueError as error:
        raise ModelError(
            where, f"its labels are not tags such as O, B-LOC, I-LOC: {error}", TAGGER
        ) from error
    if scheme == "BIOES":
        tags = [tag[0].translate(tagging.BIOES) + tag[1:] for tag in tags]
    types = unique(type_of(tag) for tag in tags if tag != "O")
    if "O" not in tags or not types:
        raise ModelError(where, f"its labels ({', '.join(tags[:10])}) lack O, or are only O", TAGGER)
    scheme = "BIOES" if scheme == "BIOES" else "BIO"
    try:
        check_names(types, tags, scheme)
    except ValueError as error:
        raise ModelError(where, f"its labels are not a set of tags: {error}", TAGGER) from error
    return {"labels": types, "tags": tags, "scheme": scheme}


def check_names(labels: Sequence[str] | None, tags: Sequence[str] | None, scheme: Any) -> None:
    """Raises ValueError on labels or tags that repeat, or that do not belong together."""
    for what, names in (("labels", labels or []), ("tags", tags or [])):
        if twice := repeated(names):
            raise ValueError(f"{what}: {', '.join(twice)} more than once")
    needed = tagging.tag_names(labels, scheme) if labels else None
    if tags and ((scheme != "none" and "O" not in tags) or (needed and not set(tags) <= set(needed))):
        expected = "the labels" if scheme == "none" else f"O and {scheme} tags of the labels, such as B-LOC"
        raise ValueError(f"tags must be {expected}")


def window_labels(
    gold: Sequence[Sequence[str]], columns: Mapping[str, Sequence[Any]], options: Any
) -> list[list[int]]:
    """Tag ids of the words of each window. Words that nothing reads are taken out of their entities."""
    read: list[list[int]] = [[] for _ in gold]
    for row, words in zip(columns["row"], columns["words"], strict=True):
        read[row] += words
    # The windows of a sentence share its words out in order.
    ids = chain.from_iterable(tag_ids(gold, read, options))
    return [list(islice(ids, len(words))) for words in columns["words"]]


def tag_ids(gold: Sequence[Sequence[str]], read: Sequence[Sequence[int]], options: Any) -> list[list[int]]:
    """The ids of the gold tags of each sentence, in BIO or labels, at the words that were read."""
    ids = {tag: index for index, tag in enumerate(options.tags)}
    pairs = zip(gold, read, strict=True)
    sentences = (tagging.word_tags(tags, words, options.scheme) for tags, words in pairs)
    return [[*map(ids.__getitem__, tags)] for tags in sentences]


def cut_entities(gold: Sequence[str], groups: Sequence[range]) -> int:
    """How many of a sentence's entities begin or end between words that share a token, so that no model finds
    them.
    """
    inside = {word for group in groups for word in group[1:]}
    return sum(first in inside or end in inside for _, first, end in tagging.entities(gold)) if inside else 0


def type_of(tag: str, scheme: tagging.Learned = "BIO") -> str:
    """The entity type of a tag, O for none; in the scheme `none` the label that it is."""
    return tag if scheme == "none" else tag.partition("-")[2] or "O"


def as_answer(
    text: str, words: Sequence[tuple[int, int]], groups: Sequence[range], best: Tagged, options: Any
) -> Answer:
    """The answer for a sentence: `words`, `entities` unless the scheme is `none`, and `truncated`.

    words: their characters. groups: the words that were decoded, those that share a token as one.
    """
    plain = options.scheme == "none"
    best = expand_groups(best, [*map(len, groups)])
    read = [*chain.from_iterable(groups)]
    expanded = expand_to_words(best, read, len(words), plain=plain)
    borders = [
        (kind, words[first][0], words[last - 1][1], score) for kind, first, last, score in expanded.entities
    ]
    shown = [
        {"text": text[a:b], "label": kind, "start": a, "end": b, "score": score}
        for kind, a, b, score in borders
    ]
    tagged = [
        {"word": text[a:b], "tag": tag, "start": a, "end": b, "score": score}
        for (a, b), tag, score in zip(words, expanded.tags, expanded.scores, strict=True)
    ]
    if options.word_scores:
        # the posteriors of their tags are added up
        names = options.labels if plain else ["O", *options.labels]
        kinds = np.array([type_of(tag, options.scheme) for tag in options.tags])
        summed = best.posterior @ (kinds[:, None] == np.array(names))
        posteriors = dict(zip(read, summed.clip(max=1.0).tolist(), strict=True))
        for index, word in enumerate(tagged):
            unread = {} if plain else {"O": 1.0}
            word["scores"] = (
                dict(zip(names, posteriors[index], strict=True)) if index in posteriors else unread
            )
    return {"words": tagged, **({} if plain else {"entities": shown}), "truncated": False}
