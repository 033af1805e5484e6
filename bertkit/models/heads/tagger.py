"""From the scores of words to tags, posteriors and entities: each word independently, or the sentence as a
chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertkit.data.tagging import entities
from bertkit.errors import ModelError, require_finite
from bertkit.models.heads import posteriors
from bertkit.models.heads.posteriors import Array

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor


Find = Callable[[Sequence[str]], Sequence[tuple[str, int, int]]]

BLOCK = 2**16  # padded words that are decoded at a time


class Emissions(NamedTuple):
    """The scores of the words that a window owns, and the chain that they are part of."""

    scores: Array  # (words, tags) fp32
    chain: tuple[Array, ...] | None  # transitions, start, end; None: words are independent


class Entity(NamedTuple):
    """Words `first` to `end` (exclusive) of a sentence."""

    type: str
    first: int
    end: int
    score: float  # the posterior of these tags, and of ending here


class Tagged(NamedTuple):
    """A sentence's best tags."""

    tags: list[str]
    scores: list[float]  # the posterior of each tag
    entities: list[Entity]
    posterior: Array  # of all tags, (words, tags)


def word_logits(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The logits of the first tokens of all words that the windows own, one after the other: `(words,
    tags)`.
    """
    heads = batch["heads"]
    window, _ = (heads >= 0).nonzero(as_tuple=True)
    return logits[window, heads[heads >= 0]]


def emissions(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The logits of the words of each window, padded: `(windows, words, tags)` fp32."""
    at = batch["heads"].clamp(min=0)[..., None].expand(-1, -1, logits.shape[-1])
    return logits.float().gather(1, at)


def window_emissions(arrays: Mapping[str, Array], tags: int, *, crf: bool) -> list[Emissions]:
    """`emissions`, `words` (how many) and a chain's `transitions`, `start` and `end`, one item per window.

    Raises ModelError where they are not those of so many tags.
    """
    parts = ("transitions", "start", "end") if crf else ()
    width = arrays["emissions"].shape[-1] if "emissions" in arrays else 0
    if width != tags or not {"words", *parts} <= arrays.keys():
        raise ModelError(
            "the model",
            f"its outputs ({', '.join(arrays)}; {width} tags) are not those of a head with {tags} tags",
            "Restore its config.json, which was edited or belongs to another model.",
        )
    chain = tuple(arrays[name] for name in parts) or None
    counted = zip(arrays["emissions"], arrays["words"].tolist(), strict=True)
    return [Emissions(emissions[:words], chain) for emissions, words in counted]


def words_of_rows(
    items: Sequence[Emissions], features: Dataset, rows: int, tags: int
) -> tuple[list[list[int]], list[Array]]:
    """For each sentence the words that windows read, in order, and their scores `(words, tags)`. Raises
    ModelError.
    """
    read: list[list[int]] = [[] for _ in range(rows)]
    parts = [[np.empty((0, tags), dtype=np.float32)] for _ in range(rows)]
    for row, words, window in zip(features["row"][:], features["words"][:], items, strict=True):
        read[row] += words
        parts[row].append(window.scores)
    if items[0].chain is not None and not all(np.isfinite(part).all() for part in items[0].chain):
        raise ModelError(
            "the model", "its CRF contains NaN or infinity", "The weights are damaged: train again."
        )
    scores = [np.concatenate(part) for part in parts]
    require_finite(np.isfinite(table).all() for table in scores)
    return read, scores


def groups_of_rows(features: Any, rows: int) -> list[list[range]]:
    """For each sentence the words that windows read, those that share a token as one, in order."""
    groups: list[list[range]] = [[] for _ in range(rows)]
    for row, words, ends in zip(features["row"][:], features["words"][:], features["ends"][:], strict=True):
        groups[row] += map(range, words, ends)
    return groups


def decode_tags(
    scores: Sequence[Array],
    chain: Sequence[Array] | None,
    tags: Sequence[str],
    temperature: float,
    *,
    plain: bool,
) -> list[Tagged]:
    """The best tags of each sentence (Viterbi), and posteriors at this temperature (forward-backward).

    scores: `(words, tags)` of each sentence, any number of words. chain: transitions `(tags, tags)`, start
    and end, of which what the tags' scheme forbids is never decoded; None: words are independent. plain: tags
    are labels of words, which form no entities.
    """
    find = (lambda _: []) if plain else entities
    if chain is None:
        return [_each_word(sentence, tags, temperature, find) for sentence in scores]
    tagged = [Tagged([], [], [], np.empty((0, len(tags))))] * len(scores)
    joins = [not plain and _continues(*pair) for pair in product(tags, repeat=2)]
    continues = np.array(joins).reshape(len(tags), len(tags))
    for rows, emissions, lengths, joint in _blocks(scores, chain, tags, temperature, plain):
        best = posteriors.decode(emissions, lengths, joint)
        posterior = posteriors.posterior(emissions, lengths, joint)
        chosen = np.take_along_axis(posterior.marginals, best.clip(min=0)[..., None], 2)[..., 0]
        paths = zip(best.tolist(), lengths.tolist(), strict=True)
        named = [list(map(tags.__getitem__, path[:words])) for path, words in paths]
        spans = [(place, *e) for place, sentence in enumerate(named) for e in find(sentence)]
        where = np.array([(place, first, end - 1) for place, _, first, end in spans], dtype=np.int64).reshape(
            -1, 3
        )
        chances = posteriors.span_posteriors(posterior, lengths, joint, best, where, continues)
        joined = [list[Entity]() for _ in rows]
        for (place, kind, first, end), chance in zip(spans, chances.tolist(), strict=True):
            joined[place].append(Entity(kind, first, end, min(chance, 1.0)))
        for place, row in enumerate(rows):
            words = len(named[place])
            marginals = posterior.marginals[place, :words]
            tagged[row] = Tagged(
                named[place], chosen[place, :words].clip(max=1).tolist(), joined[place], marginals
            )
    return tagged


def _each_word(scores: Array, tags: Sequence[str], temperature: float, find: Find) -> Tagged:
    """The best tag of each word by itself."""
    from scipy.special import softmax

    posterior = softmax(scores.astype(np.float64) / temperature, axis=1)
    best = posterior.argmax(axis=1)
    chosen = posterior[np.arange(len(best)), best]
    named = [tags[i] for i in best.tolist()]
    spans = []
    for kind, first, end in find(named):
        continuing = [i for i, tag in enumerate(tags) if end < len(named) and _continues(named[end - 1], tag)]
        ends = 1.0 - (posterior[end, continuing].sum() if continuing else 0.0)
        spans.append(Entity(kind, first, end, float(chosen[first:end].prod() * ends)))
    return Tagged(named, chosen.tolist(), spans, posterior)


def expand_groups(best: Tagged, sizes: Sequence[int]) -> Tagged:
    """Tags of words from those of groups of so many words, which share a token: a group is in one entity."""
    if all(size == 1 for size in sizes):
        return best
    starts = [0, *accumulate(sizes)]
    tags = list[str]()
    scores = list[float]()
    for tag, score, size in zip(best.tags, best.scores, sizes, strict=True):
        tags += _of_group(tag, size)
        scores += [score] * size
    joined = [entity._replace(first=starts[entity.first], end=starts[entity.end]) for entity in best.entities]
    return Tagged(tags, scores, joined, np.repeat(best.posterior, sizes, axis=0))


def _of_group(tag: str, size: int) -> list[str]:
    """The tags of so many words that have this tag together."""
    inside = f"I{tag[1:]}"
    if size == 1 or tag[1:2] != "-" or tag[0] not in "BES":
        return [tag] * size
    first = inside if tag[0] == "E" else f"B{tag[1:]}"
    last = inside if tag[0] == "B" else f"E{tag[1:]}"
    return [first, *[inside] * (size - 2), last]


def expand_to_words(best: Tagged, read: Sequence[int], words: int, *, plain: bool) -> Tagged:
    """Tags for all words of a sentence, of which only `read` were decoded. The others are O, and split
    entities.

    The posterior stays that of the words that were decoded. plain: tags are labels of words; a word that was
    not decoded has the label "", with a score of 0.
    """
    if len(read) == words:
        return best
    if plain:
        decoded = dict(zip(read, zip(best.tags, best.scores, strict=True), strict=True))
        labels, chances = zip(*(decoded.get(word, ("", 0.0)) for word in range(words)), strict=True)
        return best._replace(tags=list(labels), scores=list(chances))
    tags = ["O"] * words
    scores = [1.0] * words
    score_of = {word: entity.score for entity in best.entities for word in read[entity.first : entity.end]}
    bioes = any(tag[0] in "ES" for tag in best.tags)
    for index, (word, tag) in enumerate(zip(read, best.tags, strict=True)):
        before = read[index - 1] if index else -1
        if index and word > before + 1 and _continues(best.tags[index - 1], tag):
            tags[before] = ({"B": "S", "I": "E"} if bioes else {}).get(
                tags[before][0], tags[before][0]
            ) + tag[1:]
            tag = {"I": "B", "E": "S"}[tag[0]] + tag[1:]
        tags[word] = tag
        scores[word] = best.scores[index]
    parts = [Entity(kind, first, end, score_of[first]) for kind, first, end in entities(tags)]
    return best._replace(tags=tags, scores=scores, entities=parts)


def gold_posteriors(
    scores: Sequence[Array],
    gold: Sequence[Sequence[int]],
    chain: Sequence[Array] | None,
    tags: Sequence[str],
    temperature: float,
    *,
    plain: bool,
) -> Iterator[tuple[Array, Array]]:
    """Posteriors of the tags of some words `(words, tags)`, and the ids of their gold tags `(words,)`, at
    least once.

    scores, chain, tags, temperature, plain: as for `decode_tags`. gold: the ids of each sentence.
    """
    from scipy.special import softmax

    if chain is None:
        ids = np.asarray([tag for sentence in gold for tag in sentence], dtype=np.int64)
        yield softmax(np.concatenate(scores).astype(np.float64) / temperature, axis=1), ids
        return
    yield np.empty((0, len(tags))), np.empty(0, dtype=np.int64)
    for rows, emissions, lengths, joint in _blocks(scores, chain, tags, temperature, plain):
        words = np.arange(emissions.shape[1]) < lengths[:, None]
        golden = np.asarray([tag for row in rows for tag in gold[row]], dtype=np.int64)
        yield posteriors.posterior(emissions, lengths, joint).marginals[words], golden


def _continues(tag: str, following: str) -> bool:
    """Whether the second tag is in the entity that the first is in."""
    return "O" not in (tag, following) and len(entities([tag, following])) == 1


def _blocks(
    scores: Sequence[Array], chain: Sequence[Array], tags: Sequence[str], temperature: float, plain: bool
) -> Iterator[tuple[list[int], Array, Array, tuple[Array, ...]]]:
    """Sentences of similar length together: rows, emissions, lengths, chain; fp64. Empty ones are left
    out.
    """
    joint = posteriors.constrained(chain, tags, temperature, plain=plain)
    order = sorted(
        (row for row, sentence in enumerate(scores) if len(sentence)), key=lambda row: len(scores[row])
    )
    while order:
        size = max(1, BLOCK // len(scores[order[-1]]))
        rows = order[-size:]
        order = order[:-size]
        lengths = np.array([len(scores[row]) for row in rows])
        emissions = np.zeros((len(rows), lengths.max(), len(tags)))
        for sentence, row in zip(emissions, rows, strict=True):
            sentence[: len(scores[row])] = scores[row]
        yield rows, emissions / temperature, lengths, joint
