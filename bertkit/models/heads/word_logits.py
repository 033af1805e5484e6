"""Word-level logits from token-level ones, and the loss of sentences that are chains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bertkit.models.encoder import Encoder, load_extra_module
from bertkit.models.heads.crf import CRF, nll
from bertkit.models.heads.forward_backward import Chain

Batch: TypeAlias = Mapping[str, Tensor]


def word_logits(logits: Tensor, batch: Batch) -> Tensor:
    """The logits of the first tokens of all words that the windows own, one after the other: `(words, tags)`."""
    heads = batch["heads"]
    window, _ = (heads >= 0).nonzero(as_tuple=True)
    return logits[window, heads[heads >= 0]]


def emissions(logits: Tensor, batch: Batch) -> Tensor:
    """The logits of the words of each window, padded: `(windows, words, tags)` fp32."""
    at = batch["heads"].clamp(min=0)[..., None].expand(-1, -1, logits.shape[-1])
    return logits.float().gather(1, at)


def reduced_words(outputs: Any, batch: Batch, *, crf: bool) -> dict[str, Tensor]:
    """What decoding needs: `emissions`, `words`, the number of words of each window, and with a CRF its parts, fp32."""
    reduced = {"emissions": emissions(outputs["logits"], batch), "words": (batch["heads"] >= 0).sum(1)}
    if crf:
        chain = zip(("transitions", "start", "end"), outputs["chain"], strict=True)
        reduced |= {name: part.float() for name, part in chain}
    return reduced


def pack_sentences(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """For the words of `word_logits`: sentence and place in it, `(words,)` each; and the mask `(sentences, words)`."""
    rows = batch["row"][:, None].expand_as(batch["heads"])[batch["heads"] >= 0]
    _, sentence, counts = torch.unique_consecutive(rows, return_inverse=True, return_counts=True)
    place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[sentence]
    return sentence, place, torch.arange(int(counts.max()), device=rows.device) < counts[:, None]


def chain_loss(logits: Tensor, labels: Tensor, weight: Tensor | None, chain: Chain, batch: Batch) -> Tensor:
    """The SUM over sentences of the negative log likelihood, `()`; logits: `(words, tags)` of `word_logits`.

    weight: `(tags,)`; a chain weighs as much as its words do on average.
    """
    sentence, place, mask = pack_sentences(batch)
    scores = logits.new_zeros((*mask.shape, logits.shape[-1])).index_put((sentence, place), logits)
    gold = labels.new_zeros(mask.shape).index_put((sentence, place), labels)
    losses = nll(scores, gold, mask, chain)
    if weight is not None:
        losses = losses * torch.zeros_like(losses).index_add(0, sentence, weight[labels]) / mask.sum(1)
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
    # DDP takes outputs apart and rebuilds them, which the model's own type refuses; and it takes a parameter that is
    # an output for one that is finished.
    return {"logits": outputs.logits, "chain": type(chain)(*(part.clone() for part in chain))}
