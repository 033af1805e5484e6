"""From the scores of words to tags, posteriors and entities: of each word by itself, or of the sentence as a chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bertkit.data.tagging import entities
from bertkit.errors import ModelError, Problem

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


BLOCK = 2**16  # padded words that are decoded at a time


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


def decode_tags(
    scores: Sequence[np.ndarray], chain: Sequence[np.ndarray] | None, tags: Sequence[str], temperature: float
) -> list[Tagged]:
    """The best tags of each sentence (Viterbi), and posteriors at this temperature (forward-backward).

    scores: `(words, tags)` of each sentence, any number of words. chain: transitions `(tags, tags)`, start and end,
    of which what the tags' scheme forbids is never decoded; None: every word for itself.
    """
    if chain is None:
        return [_each_word(own, tags, temperature) for own in scores]
    try:
        import torch
    except ImportError as error:
        what = "the posteriors of a CRF are computed by torch, which is not installed"
        raise ModelError(Problem("the model", what, "pip install torch; or read the graph's own `tags`.")) from error

    from bertkit.heads import crf

    found = [Tagged([], [], [])] * len(scores)
    goes_on = continuing(tags)
    for rows, emissions, mask, joint in _blocks(scores, chain, tags, temperature):
        best = crf.decode(emissions, mask, joint)
        posterior = crf.marginals(emissions, mask, joint).gather(2, best.clamp(min=0)[..., None])[..., 0]
        named = [[tags[i] for i in row[:n]] for row, n in zip(best.tolist(), mask.sum(1).tolist(), strict=True)]
        spans = [(place, *e) for place, sentence in enumerate(named) for e in entities(sentence)]
        where = torch.tensor([(place, first, end - 1) for place, _, first, end in spans]).reshape(-1, 3)
        chances = crf.span_marginals(emissions, mask, joint, best, where, goes_on).tolist()
        whole = [list[Entity]() for _ in rows]
        for (place, kind, first, end), chance in zip(spans, chances, strict=True):
            whole[place].append(Entity(kind, first, end, min(chance, 1.0)))
        for place, row in enumerate(rows):
            found[row] = Tagged(named[place], posterior[place, : len(named[place])].clamp(max=1).tolist(), whole[place])
    return found


def _each_word(scores: np.ndarray, tags: Sequence[str], temperature: float) -> Tagged:
    """The best tag of each word by itself."""
    import numpy as np
    from scipy.special import softmax

    posterior = softmax(scores.astype(np.float64) / temperature, axis=1)
    best = posterior.argmax(axis=1)
    chosen, named = posterior[np.arange(len(best)), best], [tags[i] for i in best.tolist()]
    found = []
    for kind, first, end in entities(named):
        goes_on = [i for i, tag in enumerate(tags) if end < len(named) and _goes_on(named[end - 1], tag)]
        ends = 1.0 - (posterior[end, goes_on].sum() if goes_on else 0.0)
        found.append(Entity(kind, first, end, float(chosen[first:end].prod() * ends)))
    return Tagged(named, chosen.tolist(), found)


def spread(best: Tagged, read: Sequence[int], words: int) -> Tagged:
    """The same over all words of a sentence, of which only `read` were decoded. The others are O, and tear entities."""
    if len(read) == words:
        return best
    tags, scores = ["O"] * words, [1.0] * words
    whole = {word: entity.score for entity in best.entities for word in read[entity.first : entity.end]}
    bioes = any(tag[0] in "ES" for tag in best.tags)
    for index, (word, tag) in enumerate(zip(read, best.tags, strict=True)):
        before = read[index - 1] if index else -1
        if index and word > before + 1 and _goes_on(best.tags[index - 1], tag):
            tags[before] = ({"B": "S", "I": "E"} if bioes else {}).get(tags[before][0], tags[before][0]) + tag[1:]
            tag = {"I": "B", "E": "S"}[tag[0]] + tag[1:]
        tags[word], scores[word] = tag, best.scores[index]
    parts = [Entity(kind, first, end, whole[first]) for kind, first, end in entities(tags)]
    return Tagged(tags, scores, parts)


def tag_log_likelihood(
    scores: Sequence[np.ndarray],
    gold: Sequence[Sequence[int]],
    chain: Sequence[np.ndarray] | None,
    tags: Sequence[str],
    temperature: float,
) -> float:
    """The mean, over words, of the log posterior of the gold tag."""
    import numpy as np
    import torch
    from scipy.special import log_softmax

    from bertkit.heads import crf

    if chain is None:
        logs = log_softmax(np.concatenate(scores).astype(np.float64) / temperature, axis=1)
        ids = np.asarray([tag for own in gold for tag in own], dtype=np.int64)
        return float(logs[np.arange(len(ids)), ids].mean()) if len(ids) else 0.0
    total, count = 0.0, 0
    for rows, emissions, mask, joint in _blocks(scores, chain, tags, temperature):
        posterior = crf.marginals(emissions, mask, joint)[mask]
        golden = torch.tensor([tag for row in rows for tag in gold[row]])
        chosen = posterior.gather(1, golden[:, None]).clamp(min=1e-12)
        total, count = total + float(chosen.log().sum()), count + len(golden)
    return total / max(count, 1)


def continuing(tags: Sequence[str]) -> Tensor:
    """`(tags, tags)`: does the second tag go on with the entity that the first is in?"""
    import torch

    return torch.tensor([[_goes_on(a, b) for b in tags] for a in tags])


def _goes_on(tag: str, following: str) -> bool:
    """Is the second tag in the entity that the first is in?"""
    return "O" not in (tag, following) and len(entities([tag, following])) == 1


def _blocks(
    scores: Sequence[np.ndarray], chain: Sequence[np.ndarray], tags: Sequence[str], temperature: float
) -> Iterator[tuple[list[int], Tensor, Tensor, Any]]:
    """Sentences of nearly one length together: which, emissions, mask and chain, in fp64. Empty ones are left out."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from bertkit.heads.crf import Chain, constrain, forbidden

    joint = constrain(Chain(*(torch.from_numpy(part).double() / temperature for part in chain)), forbidden(tags))
    order = sorted((row for row, each in enumerate(scores) if len(each)), key=lambda row: len(scores[row]))
    while order:
        size = max(1, BLOCK // len(scores[order[-1]]))
        rows, order = order[-size:], order[:-size]
        emissions = pad_sequence([torch.from_numpy(scores[row]).double() for row in rows], batch_first=True)
        lengths = torch.tensor([len(scores[row]) for row in rows])
        mask = torch.arange(emissions.shape[1]) < lengths[:, None]
        yield rows, emissions / temperature, mask, joint
