"""Numeric parity: do the ways in which this machine can compute attention give the same numbers?

A fast path that is wrong says nothing and answers wrongly. A small BERT with random weights reads the same texts by
every path: each text alone, all of them padded in one batch, and backwards. What they are held against is the plainest
path there is: `eager`, on the CPU, in fp32, each text alone. Differences are ‖a - b‖ / ‖b‖.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import BertConfig, BertModel
from transformers.utils.import_utils import is_flash_attn_2_available, is_flash_attn_3_available

from bertkit.models.cpu_kernels import FasterStep
from bertkit.models.device import best_device

SIZES = (40, 1, 17, 3, 64)  # word pieces of the texts
EXACT = 1e-5  # sums of fp32, in another order
ROUNDED = 5e-2  # bf16 keeps 8 bits: 0.4 % at each of some twenty operations, more in gradients
CPU = torch.device("cpu")
STEP = "bertkit's step"  # of training on a CPU: models/cpu_kernels.py


class Check(NamedTuple):
    """One path held against the plainest. difference: null where it did not run; `why` says so."""

    name: str
    difference: float | None
    limit: float
    why: str = ""

    @property
    def ok(self) -> bool:
        """Is the difference within the limit? One that is not a number is not."""
        return self.difference is not None and self.difference <= self.limit


class Way(NamedTuple):
    """A way to compute attention. name: as transformers has it, but for bertkit's own step."""

    name: str
    device: torch.device
    bf16: bool

    @property
    def title(self) -> str:
        """What people read."""
        return f"{self.name}, {self.device.type}, {'bf16' if self.bf16 else 'fp32'}"


def parity() -> list[Check]:
    """Every path that this machine has."""
    reference = Way("eager", CPU, bf16=False)
    alone, backwards = texts_alone(reference), gradients(reference)
    found = []
    for way in ways(best_device()):
        limit = ROUNDED if way.bf16 else EXACT
        for what, run, against in (
            ("texts alone", texts_alone, alone),
            ("texts in a padded batch", texts_in_a_batch, alone),
            ("gradients", gradients, backwards),
        ):
            found.append(_check(f"{way.title}: {what}", partial(run, way), against, limit))
    return found


def ways(device: torch.device) -> list[Way]:
    """The ways to compute attention on this device, and bertkit's own for a CPU's training step."""
    names = ["eager", "sdpa", *([STEP] if device.type == "cpu" else [])]
    precisions = (False, True) if device.type in ("cpu", "cuda") else (False,)
    found = [Way(name, device, bf16) for bf16 in precisions for name in names]
    if device.type == "cuda":  # these have no fp32
        flash = {"flash_attention_2": is_flash_attn_2_available, "flash_attention_3": is_flash_attn_3_available}
        found += [Way(name, device, bf16=True) for name, is_there in flash.items() if is_there()]
    return found


def texts_alone(way: Way) -> list[torch.Tensor]:
    """The hidden states of each text, `(pieces, hidden)`, without padding and without a mask."""
    model = _model(way)
    with torch.inference_mode(way.name != STEP), _as(way):
        return [_states(model, ids[None].to(way.device)).detach().float().cpu()[0] for ids in _texts()]


def texts_in_a_batch(way: Way) -> list[torch.Tensor]:
    """The hidden states of each text, `(pieces, hidden)`, of all in one padded batch."""
    with torch.inference_mode(way.name != STEP), _as(way):
        return [states.detach().float().cpu() for states in _batched(way, _model(way))]


def gradients(way: Way) -> list[torch.Tensor]:
    """The gradient of every parameter, in one list, of a loss over all texts in one padded batch."""
    model = _model(way).train()
    with _as(way):
        states = torch.cat(_batched(way, model))
    draw = torch.Generator().manual_seed(1)
    loss = (states.float() * torch.randn(states.shape, generator=draw).to(way.device)).sum()
    found = torch.autograd.grad(loss, list(model.parameters()))
    return [torch.cat([gradient.float().cpu().flatten() for gradient in found])]


def _check(name: str, run: Callable[[], list[torch.Tensor]], against: list[torch.Tensor], limit: float) -> Check:
    try:
        got = run()
    except (ImportError, RuntimeError, ValueError, TypeError) as error:  # as kernels say that they do not fit
        return Check(name, None, limit, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
    each = [float((a - b).norm() / b.norm()) for a, b in zip(got, against, strict=True)]
    return Check(name, torch.tensor(each).max().item(), limit)  # NaN, if one is


def _texts() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(1, 100, (size,), generator=draw) for size in SIZES]


def _model(way: Way) -> Any:
    """The same small model each time; weights large enough for attention that prefers some pieces to others."""
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


def _batched(way: Way, model: Any) -> list[torch.Tensor]:
    texts = _texts()
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True).to(way.device)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        mask[row, : len(text)] = 1
    states = _states(model, ids, attention_mask=mask)
    return [states[row, : len(text)] for row, text in enumerate(texts)]


def _states(model: Any, ids: torch.Tensor, **mask: torch.Tensor) -> torch.Tensor:
    states: torch.Tensor = model(input_ids=ids, **mask).last_hidden_state
    return states


@contextlib.contextmanager
def _as(way: Way) -> Iterator[None]:
    own = FasterStep() if way.name == STEP else contextlib.nullcontext()
    with own, torch.autocast(way.device.type, torch.bfloat16, enabled=way.bf16), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # flash attention says that the weights are fp32; autocast sees to it
        yield
