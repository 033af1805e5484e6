"""Losses: of scored documents, of pairs of vectors, and of a student against its teacher (Hinton et al.
2015).

Those that compare rows with each other compare the rows of all processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from bertkit.models.heads.forward_backward import Chain, log_sums_before

NOWHERE = -1e4  # the score of a document that a shorter list does not have; finite, since 0 * -inf is not 0


def listnet(scores: Tensor, targets: Tensor, sizes: Sequence[int]) -> Tensor:
    """ListNet's top-one cross-entropy (Cao et al. 2007, section 4), summed over the lists, `()`.

    scores, targets: `(rows,)` each, list after list. sizes: the rows of each list.
    """
    lists = pad_sequence(list(torch.split(scores, list(sizes))), batch_first=True, padding_value=NOWHERE)
    grades = pad_sequence(list(torch.split(targets, list(sizes))), batch_first=True, padding_value=-torch.inf)
    return F.cross_entropy(lists, grades.softmax(dim=1), reduction="sum")


def cosent(scores: Tensor, targets: Tensor, scale: float) -> Tensor:
    """CoSENT (Su 2022): log(1 + sum of exp(scale (score_i - score_j)) over pairs with target_i < target_j),
    `()`.

    scores, targets: `(pairs,)` of one process. Its value is of the pairs of all processes.
    """
    scores = across_processes(scores)
    targets = across_processes(targets)
    differences = scale * (scores[:, None] - scores[None, :])
    wrong = differences[targets[:, None] < targets[None, :]]
    return torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), dim=0)


def in_batch(anchors: Tensor, positives: Tensor, negatives: Tensor, texts: Tensor, scale: float) -> Tensor:
    """Multiple-negatives ranking (Henderson et al. 2017, section 4): cross-entropy of the own positives,
    summed.

    Every other positive and every negative, of all processes, is a candidate; but not a text that is the
    anchor's own positive, nor a positive of an anchor of the same text, wherever it stands. anchors,
    positives: `(rows, size)`; negatives: `(any, size)`; texts: a number for the text of each anchor, positive
    and negative, in this order. Returns `()`.
    """
    rows = len(anchors)
    query = texts[:rows]
    positive = texts[rows : 2 * rows]
    other = texts[2 * rows :]
    candidates = torch.cat([across_processes(positives), across_processes(negatives)])
    candidate_texts = torch.cat([across_processes(positive), across_processes(other)])
    queries = torch.cat([across_processes(query), across_processes(torch.full_like(other, -1))])
    sizes, rank = _sizes(rows, anchors.device)
    # After the rows of the processes before.
    targets = torch.arange(rows, device=anchors.device) + sum(sizes[:rank])
    scores = scale * F.normalize(anchors, dim=-1) @ F.normalize(candidates, dim=-1).T
    asked = (query[:, None] == queries).float()
    twins = asked @ (candidate_texts[:, None] == candidate_texts).float() > 0
    twins[torch.arange(rows, device=targets.device), targets] = False
    return F.cross_entropy(scores.masked_fill(twins, -torch.inf), targets, reduction="sum")


def across_processes(part: Tensor) -> Tensor:
    """The rows of all processes in their order, `(any, …)`; gradients flow back to the process that owns
    them.
    """
    sizes, _ = _sizes(len(part), part.device)
    if len(sizes) == 1:
        return part
    from torch.distributed.nn.functional import all_gather

    padded = torch.cat([part, part.new_zeros(max(sizes) - len(part), *part.shape[1:])])
    gather: Any = all_gather
    gathered = gather(padded) if part.is_floating_point() else all_gathered(padded, len(sizes))
    return torch.cat([rows[:size] for rows, size in zip(gathered, sizes, strict=True)])


def all_gathered(padded: Tensor, world: int) -> list[Tensor]:
    """This tensor of each of so many processes, by rank; it has the same shape in all."""
    parts = [torch.empty_like(padded) for _ in range(world)]
    torch.distributed.all_gather(parts, padded)
    return parts


def _sizes(rows: int, device: torch.device) -> tuple[list[int], int]:
    """How many rows each process has, and which of them this one is."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [rows], 0
    mine = torch.tensor([rows], device=device)
    sizes = [int(size) for size in all_gathered(mine, torch.distributed.get_world_size())]
    return sizes, torch.distributed.get_rank()


def kl(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of both softmaxes at this temperature, times its square: `(…, classes)` twice ->
    `(…)`.

    The square keeps gradients of one size at all temperatures (Hinton et al., section 2).
    """
    ours, theirs = ((logits.float() / temperature).log_softmax(-1) for logits in (student, teacher))
    return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1) * temperature**2


def binary(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """For sigmoids: cross-entropy with the teacher's probabilities, of logits of one shape, which the result
    has.
    """
    targets = (teacher.float() / temperature).sigmoid()
    loss = F.binary_cross_entropy_with_logits(student.float() / temperature, targets, reduction="none")
    return loss * temperature**2


def distance(student: Tensor, teacher: Tensor) -> Tensor:
    """1 - cosine, `(…, size)` twice -> `(…)`."""
    return 1 - F.cosine_similarity(student.float(), teacher.float(), dim=-1)


def log_marginals(emissions: Tensor, mask: Tensor, chain: Chain) -> Tensor:
    """Logarithms of `forward_backward.posterior`'s marginals, `(batch, words, tags)` fp64, undefined at
    padding.

    Differentiable by emissions and chain: sums of logarithms, word by word, to and from each word (Rabiner
    1989).
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

    That is posterior distillation (Wang et al. 2020, "Structure-level knowledge distillation for multilingual
    sequence labeling"). student, teacher: emissions `(batch, words, tags)` and their chain.
    """

    def tempered(emissions: Tensor, chain: Chain) -> Tensor:
        return log_marginals(emissions / temperature, mask, Chain(*(part / temperature for part in chain)))

    ours = tempered(*student)
    theirs = tempered(*teacher)
    # FORBIDDEN is finite: a tag that is impossible for both adds 0 times a large number.
    return -(theirs.exp() * ours).sum(-1).where(mask, 0.0) * temperature**2
