"""Probabilities of types of words, and what sets of them with a coverage are calibrated and measured on.

What is covered is an entity, all of whose words must have its type in their sets, or a word outside of entities; of
each type the share of them in a sentence, by conformal risk control. Words of a sentence are not exchangeable with
those of others, but sentences are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bertkit.data import tagging
from bertkit.data.table import in_blocks
from bertkit.evaluation.conformal import (
    Conformal,
    Coverage,
    by_label,
    least_by_label,
    measured_by_label,
    row_shares,
    usual,
)
from bertkit.evaluation.intervals import Floats, Ints


def type_of(tag: str, scheme: tagging.Learned = "BIO") -> str:
    """The entity type of a tag, O for none; in the scheme `none` the label that it is."""
    return tag if scheme == "none" else tag.partition("-")[2] or "O"


def type_names(options: Any) -> list[str]:
    """What the posteriors of a word's tags are summed to: O and the types; in the scheme `none` the labels."""
    names: list[str] = options.labels
    return names if options.scheme == "none" else ["O", *names]


def by_type(posterior: Floats, options: Any) -> Floats:
    """Posteriors of tags `(words, tags)` -> those of `type_names`, `(words, types)`."""
    kinds = [type_of(tag, options.scheme) for tag in options.tags]
    summed = posterior @ np.array([[kind == name for name in type_names(options)] for kind in kinds])
    return np.asarray(summed.clip(max=1.0))


def calibrate_types(tables: Sequence[Floats], gold: Iterable[Sequence[str]], options: Any) -> Conformal:
    """What sets of types are taken from. tables: probabilities `(words, types)` of the words that were read in each
    sentence. gold: their tags in BIO, or labels."""
    probabilities, kinds, sentences = outcomes(tables, gold, options)
    names = type_names(options)
    return Conformal(rows=len(tables), gold=[], labels=by_label(probabilities, kinds, names, sentences))


def coverage_of_types(
    answers: Iterable[Mapping[str, Any]], gold: Iterable[Sequence[str]], options: Any
) -> Iterator[Coverage]:
    """The sets of these words at the usual coverages. answers: with the `scores` of words. gold: tags of all words, in
    BIO, or labels."""
    names, known = type_names(options), usual(partial(least_by_label, options.conformal["labels"]))
    limits = [(coverage, np.array([least[name] for name in names])) for coverage, least in known]
    shares, sizes = [{name: list[Floats]() for name in names} for _ in limits], [list[Any]() for _ in limits]
    for block in in_blocks(scored_words(answers, gold, options)):
        tables, tags = zip(*block, strict=True)
        probabilities, kinds, sentences = outcomes(tables, tags, options)
        for (_, least), own, members in zip(limits, shares, sizes, strict=True):
            right = probabilities >= least[kinds]
            for index, name in enumerate(names):
                own[name].append(row_shares(right[kinds == index], sentences[kinds == index]))
            members.append((np.concatenate(tables) >= least).sum(axis=1, dtype=np.int16))
    for (coverage, _), own, members in zip(limits, shares, sizes, strict=True):
        if len(many := np.concatenate(members)):  # a word has a token
            yield measured_by_label(coverage, {name: np.concatenate(each) for name, each in own.items()}, many)


def scored_words(
    answers: Iterable[Mapping[str, Any]], gold: Iterable[Sequence[str]], options: Any
) -> Iterator[tuple[Floats, list[str]]]:
    """Of each sentence the probabilities `(words, types)` of the words that were read, and their gold tags."""
    names = type_names(options)
    for answer, own in zip(answers, gold, strict=True):
        scores = [word["scores"] for word in answer["words"]]
        read = [word for word, each in enumerate(scores) if len(each) == len(names)]
        table = np.array([[scores[word][name] for name in names] for word in read]).reshape(-1, len(names))
        yield table, read_tags(own, read, options)


def read_tags(tags: Sequence[str], read: Sequence[int], options: Any) -> list[str]:
    """The gold tags, in BIO, or labels of the words that were read."""
    return tagging.restrict(tags, read, "none" if options.scheme == "none" else "BIO")


def outcomes(tables: Iterable[Floats], gold: Iterable[Sequence[str]], options: Any) -> tuple[Floats, Ints, Ints]:
    """Of each entity, and each word outside of entities, `(outcomes,)`: the least probability that one of its words
    gives to its type, the index of that type, and its sentence."""
    ids = {name: index for index, name in enumerate(type_names(options))}
    found = [(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))]
    for sentence, (table, tags) in enumerate(zip(tables, gold, strict=True)):
        if tags:
            own = np.array([ids[type_of(tag, options.scheme)] for tag in tags])
            starts = [word for word, tag in enumerate(tags) if options.scheme == "none" or not tag.startswith("I-")]
            least = np.minimum.reduceat(table[np.arange(len(tags)), own], starts)
            found.append((least, own[starts], np.full(len(starts), sentence)))
    probabilities, kinds, sentences = (np.concatenate(column) for column in zip(*found, strict=True))
    return probabilities, kinds, sentences
