"""Best paths and posteriors of a linear chain, for answers, in NumPy without torch. Losses are in `crf`.

emissions: (batch, words, tags) fp64, finite, anything at padding.
lengths: (batch,) int64, the words of each sentence, one at least.
chain: transitions (tags, tags) from -> to, start (tags,) and end (tags,), fp64; see `constrained`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

# Finite, so that no NaN arises; far below the score of any path, and fp64 still resolves 1e-6.
FORBIDDEN = -1e9
TINY = 1e-280  # a sum above it has all its digits, whatever terms of it underflowed to 0
NEVER = -1e3  # nats: exp of less is 0 in fp64


class Chain(NamedTuple):
    """The scores of a chain, fp64; `FORBIDDEN` where a tag cannot be."""

    transitions: Array  # (tags, tags), from -> to
    start: Array  # (tags,)
    end: Array  # (tags,)


class Posterior(NamedTuple):
    """Sums over all paths of each sentence; undefined at padding."""

    marginals: Array  # (batch, words, tags)
    after: Array  # (batch, words, tags), logarithms of sums over the paths from a word and tag on


def forbidden(tags: Sequence[str], *, plain: bool = False) -> tuple[Array, Array, Array]:
    """Which transitions `(tags, tags)`, starts `(tags,)` and ends `(tags,)` the scheme of these tags rules
    out.

    The scheme is BIOES if a tag begins with `E-` or `S-`, else BIO, also called IOB2. Raises ValueError for
    other tags.
    plain: they are labels of words, of which none is ruled out.
    """
    if plain:
        moves = np.zeros((len(tags), len(tags)), dtype=bool)
        return moves, moves[0], moves[0]
    if unknown := [
        tag for tag in tags if tag != "O" and (tag[:2] not in ("B-", "I-", "E-", "S-") or not tag[2:])
    ]:
        raise ValueError(f"not tags of BIO or BIOES: {', '.join(unknown)}")
    bioes = any(tag[0] in "ES" for tag in tags)
    kind = np.array([tag[2:] for tag in tags])
    within = np.array([tag[0] in "BI" for tag in tags])
    continues = np.array([tag[0] in "IE" for tag in tags])
    unfinished = within & bioes
    broken = ~within[:, None] | (kind[:, None] != kind)  # from -> to: I- or E- that continues no entity
    return np.where(continues, broken, unfinished[:, None]), continues, unfinished


def constrained(
    chain: Sequence[Array], tags: Sequence[str], temperature: float, *, plain: bool = False
) -> Chain:
    """The chain in fp64 at this temperature, with `FORBIDDEN` where the scheme of these tags rules it out."""
    parts = (part.astype(np.float64) / temperature for part in chain)
    never = forbidden(tags, plain=plain)
    return Chain(*(np.where(no, FORBIDDEN, part) for part, no in zip(parts, never, strict=True)))


def decode(emissions: Array, lengths: Array, chain: Sequence[Array]) -> Array:
    """Best path of each sentence `(batch, words)` int64, -1 at padding (Viterbi 1967).

    Of tags with equal scores the first is taken. Scores are added in the precision of the emissions.
    """
    parts = Chain(*chain)
    order = np.argsort(-lengths, kind="stable")  # longest first: those that go on are the first rows, a view
    lengths = lengths[order]
    scores = _by_word(emissions[order])  # word by word: each step reads and writes adjacent memory
    # word -> how many sentences reach it
    going = (lengths > np.arange(len(scores))[:, None]).sum(1).tolist()
    best = np.empty_like(scores)  # of all paths that lead to a word and tag
    best[0] = parts.start + scores[0]
    # Repeated once, (tags, batch, tags): broadcasting it at each word takes twice as long.
    moves = np.repeat(parts.transitions[:, None], len(order), 1)
    paths = np.empty_like(moves)  # one buffer for all words, which `out` fills
    for t in range(1, len(scores)):
        if 4 * going[t] <= 3 * moves.shape[1]:  # copied only when a quarter of the sentences has ended
            moves = moves[:, : going[t]].copy()  # NumPy is slow where memory has gaps
            paths = np.empty_like(moves)
        n = moves.shape[1]
        np.add(best[t - 1, :n].T[:, :, None], moves, out=paths)
        np.maximum.reduce(paths, axis=0, out=best[t, :n])  # no argmax: the way back finds it for one path
        best[t, :n] += scores[t, :n]
    last = lengths - 1
    sentences = np.arange(len(order))
    back = np.full(best.shape[:2], -1)
    into = np.ascontiguousarray(parts.transitions.T)  # rows to take: what leads into a tag is adjacent
    back[last, sentences] = tag = (best[last, sentences] + parts.end).argmax(1)
    for t in range(len(scores) - 1, 0, -1):
        n = going[t]
        before = into.take(tag[:n], 0)
        before += best[t - 1, :n]  # in place: `take` has copied
        back[t - 1, :n] = tag[:n] = before.argmax(1)
    return back.T[order.argsort()]


def posterior(emissions: Array, lengths: Array, chain: Sequence[Array]) -> Posterior:
    """The posterior of each sentence, by the forward-backward algorithm (Rabiner 1989) on logarithms."""
    from scipy.special import softmax

    parts = Chain(*chain)
    scores = _by_word(emissions)
    before = np.empty_like(scores)
    after = np.empty_like(scores)
    beyond = np.empty_like(scores)
    before[0] = parts.start + scores[0]
    forth = _Moves(parts.transitions)
    for t in range(1, len(scores)):
        np.add(forth(before[t - 1]), scores[t], out=before[t])
    back = _Moves(parts.transitions.T)
    beyond[-1] = parts.end
    after[-1] = parts.end + scores[-1]
    for t in range(len(scores) - 2, -1, -1):
        beyond[t] = np.where((t + 1 < lengths)[:, None], back(after[t + 1]), parts.end)
        np.add(beyond[t], scores[t], out=after[t])
    return Posterior(softmax(before + beyond, axis=2).swapaxes(0, 1), after.swapaxes(0, 1))


def span_posteriors(
    posterior: Posterior, lengths: Array, chain: Sequence[Array], tags: Array, spans: Array, continues: Array
) -> Array:
    """Posterior of spans `(spans,)`: that their words have these tags, and that they end there.

    Culotta & McCallum 2004, "Confidence estimation for information extraction". posterior: a result of
    `posterior`.
    tags: (batch, words), such as those of `decode`. spans: (spans, 3) sentence, first word, last word.
    continues: (tags, tags) bool, whether the second tag continues the span that the first is in; a span ends
    with its sentence, or before a tag that does not continue it.
    """
    from scipy.special import log_softmax

    path = tags.clip(min=0)
    sentence = spans[:, 0]
    first = spans[:, 1]
    last = spans[:, 2]
    following = log_softmax(chain[0][path[:, :-1]] + posterior.after[:, 1:], axis=2)  # given the tag before
    # Clipped, so that the difference of two cumulative sums is exact where a step is impossible.
    steps = np.take_along_axis(following, path[:, 1:, None], 2)[..., 0].clip(min=NEVER)
    sums = np.pad(steps.cumsum(1), ((0, 0), (1, 0)))
    within = np.exp(sums[sentence, last] - sums[sentence, first])
    ends = np.ones(len(spans))
    inner = last + 1 < lengths[sentence]
    where = sentence[inner], last[inner]
    ends[inner] = np.where(continues[path[where]], 0.0, np.exp(following[where])).sum(1)
    chances: Array = posterior.marginals[sentence, first, path[sentence, first]] * within * ends
    return chances


class _Moves:
    """A step along the chain: logarithms `(batch, tags)` -> `log(sum_i exp(logs[:, i] + moves[i, j]))`."""

    def __init__(self, moves: Array) -> None:
        self.moves = moves
        self.top = moves.max()
        self.gains = np.exp(moves - self.top)

    def __call__(self, logs: Array) -> Array:
        peaks = logs.max(1, keepdims=True)
        sums = np.exp(logs - peaks) @ self.gains
        if sums.min() > TINY:
            stepped: Array = np.log(sums) + (peaks + self.top)
            return stepped
        from scipy.special import logsumexp

        exact: Array = logsumexp(logs[:, :, None] + self.moves, axis=1)
        return exact


def _by_word(emissions: Array) -> Array:
    """`(words, batch, tags)`, less each word's best score: sums stay small, and posteriors are as before."""
    return np.ascontiguousarray((emissions - emissions.max(2, keepdims=True)).swapaxes(0, 1))
