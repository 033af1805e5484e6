"""Whether every path by which this machine can compute attention gives the same numbers.

A wrong fast path fails silently: it gives wrong answers. A small BERT with random weights reads the same texts by every
path: each text alone, all of them padded in one batch, and backwards. The reference is the plainest path there is:
`eager`, on the CPU, in fp32, each text alone. Differences are ‖a - b‖ / ‖b‖.
"""

from __future__ import annotations

import contextlib
import warnings
from itertools import product
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertModel
from transformers.utils.import_utils import is_flash_attn_2_available, is_flash_attn_3_available

from bertkit.models.cpu_kernels import FasterStep

SIZES = (40, 1, 17, 3, 64)  # tokens of the texts
EXACT = 1e-5  # sums of fp32, in another order
ROUNDED = 5e-2  # bf16 keeps 8 bits: 0.4 % at each of some twenty operations, more in gradients
CPU = torch.device("cpu")
STEP = "bertkit's step"  # of training on a CPU: models/cpu_kernels.py


class Way(NamedTuple):
    """A way to compute attention: an implementation of transformers', or STEP."""

    name: str
    device: torch.device
    bf16: bool


def disagreements(device: torch.device) -> dict[tuple[Way, str], float]:
    """The difference of each way of this device, and of what it computes, that is too far from the reference."""
    reference, found = Way("eager", CPU, bf16=False), {}
    for way, run in product(ways(device), (texts_alone, texts_in_a_batch, gradients)):
        expected = gradients(reference) if run is gradients else texts_alone(reference)
        differences = [(a - b).norm() / b.norm() for a, b in zip(run(way), expected, strict=True)]
        difference = torch.stack(differences).max().item()  # NaN, if one is
        if not difference <= (ROUNDED if way.bf16 else EXACT):
            found[way, run.__name__] = difference
    return found


def ways(device: torch.device) -> list[Way]:
    """The ways to compute attention on this device, and bertkit's own for a CPU's training step."""
    names = ["eager", "sdpa", *([STEP] if device.type == "cpu" else [])]
    precisions = (False, True) if device.type in ("cpu", "cuda") else (False,)
    available = [Way(name, device, bf16) for bf16 in precisions for name in names]
    if device.type == "cuda":  # these have no fp32
        flash = {"flash_attention_2": is_flash_attn_2_available, "flash_attention_3": is_flash_attn_3_available}
        available += [Way(name, device, bf16=True) for name, installed in flash.items() if installed()]
    return available


def texts_alone(way: Way) -> list[torch.Tensor]:
    """The hidden states of each text, `(tokens, hidden)`, without padding and without a mask."""
    model = _model(way)
    with torch.inference_mode(way.name != STEP):
        return [_states(way, model, [text])[0].detach().float().cpu() for text in _texts()]


def texts_in_a_batch(way: Way) -> list[torch.Tensor]:
    """The hidden states of each text, `(tokens, hidden)`, all in one padded batch."""
    with torch.inference_mode(way.name != STEP):
        return [states.detach().float().cpu() for states in _states(way, _model(way), _texts())]


def gradients(way: Way) -> list[torch.Tensor]:
    """The gradients of all parameters, end to end, of a loss over all texts in one padded batch."""
    model = _model(way).train()
    states = torch.cat(_states(way, model, _texts()))
    generator = torch.Generator().manual_seed(1)
    loss = (states.float() * torch.randn(states.shape, generator=generator).to(way.device)).sum()
    return [torch.cat([g.float().cpu().flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])]


def _texts() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, 100, (size,), generator=generator) for size in SIZES]


def _model(way: Way) -> Any:
    """The same small model each time; weights large enough for attention that prefers some tokens to others."""
    config: Any = BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=max(SIZES),
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config._attn_implementation = "sdpa" if way.name == STEP else way.name
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = BertModel(config, add_pooling_layer=False)
    return model.eval().to(way.device)


def _states(way: Way, model: Any, texts: list[torch.Tensor]) -> list[torch.Tensor]:
    """The hidden states of each text, all in one batch; a single text has neither padding nor a mask."""
    ids = pad_sequence(texts, batch_first=True).to(way.device)  # token 0 is padding: no text has it
    mask = (ids > 0).long() if len(texts) > 1 else None
    step = FasterStep() if way.name == STEP else contextlib.nullcontext()
    with step, torch.autocast(way.device.type, torch.bfloat16, enabled=way.bf16), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # flash attention warns that the weights are fp32; autocast handles that
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return [states[row, : len(text)] for row, text in enumerate(texts)]
