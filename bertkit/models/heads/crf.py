"""A linear-chain CRF (Lafferty et al. 2001) over the logits of words: its scores and its loss, on any device.

Answers are decoded by `posteriors`, in NumPy. Arguments that functions share:

    emissions: (batch, words, tags), of any float type. Sums over paths are fp64, which autocast leaves alone.
    tags: (batch, words) int64, anything at padding.
    mask: (batch, words) bool, True at words: at the first of each sentence, and without gaps.
    chain: The scores of transitions, with `FORBIDDEN` where a tag cannot be; see `constrain`.

Losses are fp64 for fp64 emissions, else fp32. NaN in a sentence makes its loss NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertkit.models.encoder import Encoder, load_extra_module
from bertkit.models.heads import posteriors
from bertkit.models.heads.forward_backward import Chain, posterior
from bertkit.models.heads.posteriors import FORBIDDEN
from bertkit.models.heads.tagger import emissions

Batch = Mapping[str, Tensor]


class CRF(nn.Module):
    """The learned scores of a chain, named as in pytorch-crf. They start at 0, where words are independent.

    A model that owns one calls `reset_parameters` for it in `_init_weights`: `from_pretrained` builds models
    without their values. It has no constraints, since buffers that no checkpoint has would be lost there.
    With peft, name it in `modules_to_save`.
    """

    def __init__(self, num_tags: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        self.start_transitions = nn.Parameter(torch.empty(num_tags))
        self.end_transitions = nn.Parameter(torch.empty(num_tags))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All 0, except for what `from_pretrained` has loaded."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, emissions: Tensor | None = None) -> Chain:
        """The scores, without constraints. They do not depend on emissions, an argument that module wrappers
        expect.
        """
        return Chain(self.transitions, self.start_transitions, self.end_transitions)


def constrain(chain: Chain, tags: Sequence[str], *, plain: bool = False) -> Chain:
    """The chain with `FORBIDDEN` where the scheme of these tags rules it out; in fp32 or wider.

    plain: as for `posteriors.forbidden`.
    """
    wider = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in chain)
    never = (torch.from_numpy(no) for no in posteriors.forbidden(tags, plain=plain))
    return Chain(*(x.masked_fill(no.to(x.device), FORBIDDEN) for x, no in zip(wider, never, strict=True)))


def nll(emissions: Tensor, tags: Tensor, mask: Tensor, chain: Chain) -> Tensor:
    """Negative log-likelihood of the tags `(batch,)`; differentiable once, by emissions and chain."""
    wide = _wide(emissions, mask, chain)
    log_partition: Tensor = _LogPartition.apply(emissions, wide[0], *wide[1])  # type: ignore[no-untyped-call]
    losses = log_partition - _score(emissions, tags, *wide)
    return losses.to(torch.promote_types(emissions.dtype, torch.float32)).to(emissions.device)


class _LogPartition(torch.autograd.Function):
    """Its gradients are the posteriors, so they are computed with it, and the backward pass only weights
    them.
    """

    @staticmethod
    def forward(ctx: Any, emissions: Tensor, mask: Tensor, *chain: Tensor) -> Tensor:
        sums = posterior(emissions.to(mask.device).double(), mask, Chain(*chain))
        ctx.save_for_backward(mask, sums.marginals, sums.transitions)
        ctx.emissions = emissions.dtype, emissions.device
        return sums.log_partition

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mask, *sums = ctx.saved_tensors  # of tags, and of transitions
        dtype, device = ctx.emissions
        weighted = grad[:, None, None] * sums[0]
        last = weighted[torch.arange(len(grad), device=grad.device), mask.sum(1) - 1]
        by_chain = torch.tensordot(grad, sums[1], 1), weighted[:, 0].sum(0), last.sum(0)
        return weighted.to(dtype).to(device), None, *by_chain


def _score(emissions: Tensor, tags: Tensor, mask: Tensor, chain: Chain) -> Tensor:
    count = emissions.shape[2]
    path = tags.to(mask.device).where(mask, 0)  # 0 at padding
    scores = emissions.gather(2, path.to(emissions.device)[..., None])[..., 0].to(mask.device).double()
    moves = (path[:, :-1] * count + path[:, 1:]).flatten()
    steps = chain.transitions.flatten().index_select(0, moves).view(len(path), -1)
    last = path.gather(1, mask.sum(1, keepdim=True) - 1)[:, 0]
    inside = scores.where(mask, 0).sum(1) + steps.where(mask[:, 1:], 0).sum(1)
    return inside + chain.start[path[:, 0]] + chain.end[last]


def _wide(emissions: Tensor, mask: Tensor, chain: Chain) -> tuple[Tensor, Chain]:
    """Mask and chain, in fp64, where the sums are done: on CUDA or on the CPU, since other devices may lack
    fp64.
    """
    device = emissions.device if emissions.is_cuda else torch.device("cpu")
    return mask.to(device), Chain(*(x.to(device).double() for x in chain))


def reduced_words(outputs: Any, batch: Batch, *, crf: bool) -> dict[str, Tensor]:
    """What decoding needs: `emissions`, `words`, the number of words of each window, and with a CRF its
    parts, fp32.
    """
    reduced = {"emissions": emissions(outputs["logits"], batch), "words": (batch["heads"] >= 0).sum(1)}
    if crf:
        reduced |= {name: part.float() for name, part in outputs["chain"]._asdict().items()}
    return reduced


class Packing(NamedTuple):
    """Where the words of `word_logits` are in a table of sentences."""

    sentence: Tensor  # (words,)
    place: Tensor  # (words,), in the sentence
    mask: Tensor  # (sentences, words)


def pack_sentences(batch: Batch) -> Packing:
    """The places of the words that the windows of a batch own."""
    rows = batch["row"][:, None].expand_as(batch["heads"])[batch["heads"] >= 0]
    sentence, counts = torch.unique_consecutive(rows, return_inverse=True, return_counts=True)[1:]
    place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[sentence]
    return Packing(sentence, place, torch.arange(int(counts.max()), device=rows.device) < counts[:, None])


def chain_loss(logits: Tensor, labels: Tensor, weight: Tensor | None, chain: Chain, batch: Batch) -> Tensor:
    """The SUM over sentences of the negative log likelihood, `()`; logits: `(words, tags)` of `word_logits`.

    weight: `(tags,)`; a chain weighs as much as its words do on average.
    """
    packing = pack_sentences(batch)
    mask = packing.mask
    scores = logits.new_zeros((*mask.shape, logits.shape[-1])).index_put(packing[:2], logits)
    gold = labels.new_zeros(mask.shape).index_put(packing[:2], labels)
    losses = nll(scores, gold, mask, chain)
    if weight is not None:
        losses = (
            losses * torch.zeros_like(losses).index_add(0, packing.sentence, weight[labels]) / mask.sum(1)
        )
    return losses.sum()


def attach_chain(model: Any, tags: int, encoder: Encoder | None) -> nn.Module:
    """The model with a CRF whose chain goes with its logits; encoder: the folder to load it from."""
    model.crf = CRF(tags)
    if encoder:
        load_extra_module(encoder, "crf", model.crf)
    # A hook, since it also runs inside peft's and DDP's wrappers, and leaves the class as it was.
    model.register_forward_hook(_with_chain)
    return model  # type: ignore[no-any-return]


def _with_chain(model: Any, inputs: Any, outputs: Any) -> Any:
    chain = model.crf(outputs.logits)
    # DDP takes outputs apart and rebuilds them, which the model's own type refuses; and it takes a parameter
    # that is
    # an output for one that is finished.
    return {"logits": outputs.logits, "chain": Chain(*(part.clone() for part in chain))}
