"""Losses of a student against its teacher (Hinton et al. 2015), and differentiable marginals of a chain."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.models.heads.forward_backward import Chain, log_sums_before


def kl(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of both softmaxes at this temperature, times its square: `(…, classes)` twice -> `(…)`.

    The square keeps gradients of one size at all temperatures (section 2).
    """
    ours, theirs = ((logits.float() / temperature).log_softmax(-1) for logits in (student, teacher))
    return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1) * temperature**2


def binary(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """For sigmoids: cross-entropy with the teacher's probabilities, of logits of one shape, summed, `()`."""
    targets = (teacher.float() / temperature).sigmoid()
    loss = F.binary_cross_entropy_with_logits(student.float() / temperature, targets, reduction="sum")
    return loss * temperature**2


def distance(student: Tensor, teacher: Tensor) -> Tensor:
    """1 - cosine, `(…, size)` twice -> `(…)`."""
    return 1 - F.cosine_similarity(student.float(), teacher.float(), dim=-1)


def log_marginals(emissions: Tensor, mask: Tensor, chain: Chain) -> Tensor:
    """Logarithms of `forward_backward.posterior`'s marginals, `(batch, words, tags)` fp64, undefined at padding.

    Differentiable by emissions and chain: sums of logarithms, word by word, to and from each word (Rabiner 1989).
    """
    scores = emissions.double()
    wide = Chain(*(part.double() for part in chain))
    before = log_sums_before(scores, mask, wide)
    after = [wide.end.expand_as(scores[:, 0])]  # all paths from a word on, without it
    for t in range(scores.shape[1] - 1, 0, -1):
        onward = (wide.transitions + (scores[:, t] + after[-1])[:, None]).logsumexp(2)
        after.append(onward.where(mask[:, t, None], after[-1]))
    return (torch.stack(before, 1) + torch.stack(after[::-1], 1)).log_softmax(-1)


def chain_cross_entropy(
    student: tuple[Tensor, Chain], teacher: tuple[Tensor, Chain], mask: Tensor, temperature: float
) -> Tensor:
    """Cross-entropy of the student's marginals with the teacher's, `(batch, words)` fp64, 0 at padding.

    That is posterior distillation (Wang et al. 2020, "Structure-level knowledge distillation for multilingual sequence
    labeling"). student, teacher: emissions `(batch, words, tags)` and their chain.
    """
    ours, theirs = (
        log_marginals(emissions / temperature, mask, Chain(*(part / temperature for part in chain)))
        for emissions, chain in (student, teacher)
    )
    # FORBIDDEN is finite: a tag that is impossible for both adds 0 times a large number.
    return -(theirs.exp() * ours).sum(-1).where(mask, 0.0) * temperature**2
