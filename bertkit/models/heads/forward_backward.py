"""Sums over all paths of a linear chain, and the posteriors that follow from them.

The sums are of probabilities, rescaled on the way (Rabiner 1989): word by word on the CPU, by an associative
scan on CUDA. Where scores are so far apart that these could underflow, sums are of logarithms, word by word
on the CPU. Everywhere emissions are (batch, words, tags), mask is (batch, words), and all numbers are fp64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertkit.models.heads.posteriors import FORBIDDEN

RANGE = 300.0  # nats that rescaled sums may lie apart; products of two of them still fit fp64


class Chain(NamedTuple):
    """The scores of a chain; `FORBIDDEN` where a tag cannot be."""

    transitions: Tensor  # (tags, tags), from -> to
    start: Tensor  # (tags,)
    end: Tensor  # (tags,)


class Posterior(NamedTuple):
    """Sums over all paths of each sentence."""

    log_partition: Tensor  # (batch,)
    marginals: Tensor  # (batch, words, tags), 0 at padding
    transitions: Tensor  # (batch, tags, tags), expected counts


def posterior(emissions: Tensor, mask: Tensor, chain: Chain) -> Posterior:
    """The posterior of each sentence, by the fastest way that is exact for these scores."""
    peaks = emissions.amax(2)
    gains = (emissions - peaks[..., None]).exp_().masked_fill_(~mask[..., None], 1)
    if steps := _steps(gains, chain):
        scaled = _scaled_posterior(gains, peaks, mask, chain, steps)
        if scaled.log_partition.isfinite().all():  # a short sentence may have no path that is not forbidden
            return scaled
    return _log_posterior(emissions, mask, chain)


def _steps(gains: Tensor, chain: Chain) -> int:
    """How many words sums may go without rescaling; 0 where fp64 is too narrow, or something is not finite.

    From any tag `depth` transitions lead to any other. What can be reached is so never further below the best
    than `depth` times the range of what one word adds.
    """
    scores = [x.cpu().numpy() for x in chain]
    possible = [x[x > FORBIDDEN / 2] for x in scores]
    if not all(x.size for x in possible):
        return 0
    allowed = (scores[0] > FORBIDDEN / 2).astype(np.float64)
    reached = allowed
    depth = 1
    while not reached.all():
        reached = np.minimum(reached @ allowed, 1)
        depth += 1
        if depth > 8:
            return 0
    gap = float(np.log(2 * len(allowed)) - gains.min().log()) + max(float(np.ptp(x)) for x in possible)
    steps = int(RANGE / gap) - depth if gap < RANGE else 0  # nor where it is NaN
    return steps if steps >= depth else 0


class _Sums(NamedTuple):
    """Sums over paths, of probabilities, each word's up to a factor."""

    alpha: Tensor  # (batch, words, tags), up to and with each word
    beta: Tensor  # (batch, words, tags), after it
    after: Tensor  # (batch, words, tags), from it on
    log_sum: Tensor  # (batch,), the log of that over all


def _scaled_posterior(gains: Tensor, peaks: Tensor, mask: Tensor, chain: Chain, steps: int) -> Posterior:
    """From sums of probabilities. Each word's are known up to a factor, which its norm cancels."""
    lengths = mask.sum(1)
    tops = [x.max() for x in chain]
    scaled = Chain(*((x - top).exp() for x, top in zip(chain, tops, strict=True)))
    sums = _scan(gains, lengths, scaled) if gains.is_cuda else _loop(gains, lengths, scaled, steps)
    products = sums.alpha * sums.beta
    norms = products.sum(2, keepdim=True).reciprocal().where(mask[..., None], 0)
    pairs = (sums.alpha[:, :-1] * norms[:, :-1].where(mask[:, 1:, None], 0)).mT @ sums.after[:, 1:]
    log_partition = sums.log_sum + peaks.where(mask, 0).sum(1) + (lengths - 1) * tops[0] + tops[1] + tops[2]
    return Posterior(log_partition, products * norms, scaled.transitions * pairs)


def _loop(gains: Tensor, lengths: Tensor, scaled: Chain, steps: int) -> _Sums:
    """The sums, word by word.

    Sums after a word are those of the reversed sentences, in the same loop. NumPy's calls cost a fifth of
    torch's.
    """
    words = gains.transpose(0, 1)  # in the loop, sums with the word itself take the place of gains
    outer = torch.stack([words, _reversed(words, lengths)], 1).numpy()  # (words, 2, batch, tags)
    inner = np.empty_like(outer)  # sums without it
    weights = np.stack([scaled.transitions.numpy(), scaled.transitions.numpy().T])
    counts = lengths.numpy()
    logs = np.zeros(len(gains))
    inner[0] = np.stack([scaled.start.numpy(), scaled.end.numpy()])[:, None]
    outer[0] *= inner[0]
    for t in range(1, len(outer)):
        now = outer[t]
        now *= np.matmul(outer[t - 1], weights, out=inner[t])
        if t % steps == 0:
            scale = now.max(2, keepdims=True)
            now /= scale
            logs += np.where(t < counts, np.log(scale[0, :, 0]), 0)
    (alpha, after), (_, beta) = (_in_order(torch.from_numpy(x), lengths) for x in (outer, inner))
    last = alpha[torch.arange(len(alpha)), lengths - 1]
    return _Sums(alpha, beta, after, torch.from_numpy(logs) + (last @ scaled.end).log())


def _scan(gains: Tensor, lengths: Tensor, scaled: Chain) -> _Sums:
    """What `_loop` computes, in a number of steps that grows as the logarithm of the words (Blelloch 1990).

    Up a tree go products of the matrices from word to word; down it go sums, to the bounds of ever shorter
    parts.
    """
    batch, words, count = gains.shape
    parts = 1 << (words - 1).bit_length()
    eye = torch.eye(count, dtype=gains.dtype, device=gains.device)
    continues = torch.arange(1, words, device=gains.device) < lengths[:, None]
    moves = (scaled.transitions * gains[:, 1:, None]).where(continues[..., None, None], eye)
    levels = [torch.cat([moves, eye.expand(batch, parts - words + 1, -1, -1)], 1)]
    logs = gains.new_zeros(batch)
    while levels[-1].shape[1] > 1:
        product = levels[-1][:, 0::2] @ levels[-1][:, 1::2]
        scale = product.amax((2, 3), keepdim=True)
        logs = logs + scale.log().sum((1, 2, 3))
        levels.append(product / scale)
    alpha = (scaled.start * gains[:, 0])[:, None, None]  # (batch, parts, 1, tags), before each part
    beta = scaled.end.expand(batch, 1, 1, -1).mT  # (batch, parts, tags, 1), after each part
    logs = logs + (alpha @ levels[-1] @ beta).log().flatten()
    for level in reversed(levels[:-1]):
        alpha = torch.stack([alpha, alpha @ level[:, 0::2]], 2).flatten(1, 2)
        beta = torch.stack([level[:, 1::2] @ beta, beta], 2).flatten(1, 2)
        alpha, beta = (x / x.amax((2, 3), keepdim=True) for x in (alpha, beta))
    after = gains.clone()  # the first word's is not needed, and stays without its continuations
    after[:, 1:] *= beta[:, : words - 1, :, 0]
    end = scaled.end.expand(batch, 1, -1)
    continues = torch.nn.functional.pad(continues, (0, 1))[..., None]
    beta = (torch.nn.functional.pad(after[:, 1:], (0, 0, 0, 1)) @ scaled.transitions.T).where(continues, end)
    return _Sums(alpha[:, :words, 0], beta, after, logs)


def _log_posterior(emissions: Tensor, mask: Tensor, chain: Chain) -> Posterior:
    """From sums of logarithms, whose gradients are the posteriors; computed on the CPU."""
    with torch.inference_mode(False), torch.enable_grad():
        scores = emissions.detach().cpu().clone().requires_grad_()
        copied = Chain(*(part.detach().cpu().clone() for part in chain))
        transitions = copied.transitions.repeat(len(scores), 1, 1).requires_grad_()
        real = mask.cpu()
        by_sentence = copied._replace(transitions=transitions)
        before = log_sums_before(scores.where(real[..., None], 0), real, by_sentence)
        log_partition = (before[-1] + copied.end).logsumexp(1)
        gradients = torch.autograd.grad(log_partition.sum(), (scores, transitions), materialize_grads=True)
    return Posterior(*(sums.detach().to(emissions.device) for sums in (log_partition, *gradients)))


def log_sums_before(scores: Tensor, mask: Tensor, chain: Chain) -> list[Tensor]:
    """For each word, logarithms of the sums over all paths up to and with it, `(batch, tags)`; at padding the
    last.
    """
    words = scores.unbind(1)
    before = [chain.start + words[0]]
    for word, real in zip(words[1:], mask.unbind(1)[1:], strict=True):
        reached = (before[-1][:, :, None] + chain.transitions).logsumexp(1) + word
        before.append(reached.where(real[:, None], before[-1]))
    return before


def _in_order(both: Tensor, lengths: Tensor) -> list[Tensor]:
    """`(words, 2, batch, tags)`, forwards and reversed: `(batch, words, tags)` each, both in the order of the
    words.
    """
    return [both[:, 0].transpose(0, 1), _reversed(both[:, 1], lengths).transpose(0, 1)]


def _reversed(values: Tensor, lengths: Tensor) -> Tensor:
    """`(words, batch, tags)` with each sentence reversed; padding stays."""
    word = torch.arange(len(values))[:, None]
    return values[torch.where(word < lengths, lengths - 1 - word, word), torch.arange(len(lengths))]
