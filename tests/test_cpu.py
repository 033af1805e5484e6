"""Dropout and attention of a CPU's training step, against torch's own; memory that is kept and given back."""

import contextlib
import platform

import pytest
import small
import torch
import torch.nn.functional as F
from cases import CASES, encoder
from small import memory
from steps import first_step
from test_bert import gradients as of_all
from torch.testing import assert_close
from transformers import AutoModel, BertConfig, set_seed

from bertkit.inference import runner
from bertkit.models import malloc
from bertkit.models.cpu_kernels import FasterStep, attention, dropout
from bertkit.models.malloc import memory_kept


def inputs(dtype=torch.float64):
    """Query, key and value of 3 texts, 2 heads, 7 words, 4 numbers each."""
    torch.manual_seed(0)
    return [torch.randn(3, 2, 7, 4, dtype=dtype, requires_grad=True) for _ in range(3)]


def gradients(made, of):
    torch.manual_seed(1)
    return list(torch.autograd.grad((made * torch.randn_like(made)).sum(), of))


def masks():
    allowed = torch.ones(3, 1, 7, 7, dtype=torch.bool)
    allowed[0, ..., 5:] = allowed[2, ..., 1:] = False
    bias = torch.zeros(3, 1, 1, 7, dtype=torch.float64).masked_fill(~allowed[:, :, :1], -1e9)
    return {"no mask": None, "booleans": allowed, "one row": allowed[:, :, :1], "a bias": bias}


@pytest.mark.parametrize("kind", masks())
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_is_torchs_own(kind, scale):
    given = inputs()
    mask = masks()[kind]
    ours = attention(*given, attn_mask=mask, scale=scale)
    theirs = F.scaled_dot_product_attention(*given, attn_mask=mask, scale=scale)
    assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert_close(gradients(ours, given), gradients(theirs, given), rtol=1e-10, atol=1e-12)
    causal = (function(*given, is_causal=True) for function in (attention, F.scaled_dot_product_attention))
    assert torch.equal(*causal), "what BERT does not use is left to torch"


def test_attention_with_one_dropout_mask_is_its_equation():
    query, key, value = given = inputs()
    torch.manual_seed(3)
    ours = attention(*given, dropout_p=0.4)
    torch.manual_seed(3)
    mask = dropout(torch.ones(3, 2, 7, 7, dtype=torch.float64), 0.4)
    theirs = ((query @ key.transpose(-1, -2) / 2).softmax(-1) * mask) @ value
    assert_close(ours, theirs)
    assert_close(gradients(ours, given), gradients(theirs, given))


def test_attention_under_autocast_is_within_bf16s_rounding_and_of_padding_alone_gives_numbers():
    given = inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = attention(*given, attn_mask=masks()["booleans"])
    assert ours.dtype == torch.bfloat16
    theirs = F.scaled_dot_product_attention(*given, attn_mask=masks()["booleans"])
    assert_close(ours.float(), theirs, rtol=2e-2, atol=2e-2)
    given = inputs(torch.float32)
    made = attention(*given, attn_mask=torch.zeros(3, 1, 7, 7, dtype=torch.bool))
    assert torch.isfinite(made).all()
    assert all(torch.isfinite(g).all() for g in gradients(made, given))


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_p_and_keeps_the_mean(p, dtype):
    torch.manual_seed(2)
    count = 1_000_001  # not a multiple of four
    made = dropout(torch.ones(count, dtype=dtype), p).float()
    dropped = (made == 0).sum().item()
    assert abs(dropped - p * count) < 5 * (count * p * (1 - p)) ** 0.5 + count / 2**16
    kept = made[made != 0]
    rounding = 8e-3 if dtype == torch.bfloat16 else 1e-3
    assert_close(kept, torch.full_like(kept, 1 / (1 - p)), rtol=rounding, atol=0)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3])
def test_over_all_numbers_that_can_be_drawn_the_mean_is_exact(p, monkeypatch):
    """So the scale is that of the rounded probability."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    monkeypatch.setattr(torch.Tensor, "random_", lambda words, *_: words.copy_(every.view(torch.int64)))
    made = dropout(torch.ones(2**16, dtype=torch.float64), p)
    assert (made == 0).sum() == round(p * 2**16)
    assert made.mean().item() == pytest.approx(1, abs=1e-12)


def test_dropouts_neighbours_are_independent():
    torch.manual_seed(4)
    kept = (dropout(torch.ones(400_000), 0.3) != 0).double()
    for apart in (1, 2, 3, 4, 8):
        both = (kept[:-apart] * kept[apart:]).mean().item()
        assert abs(both - 0.49) < 5 * (0.49 * 0.51 / 400_000) ** 0.5 * 2


def test_dropout_sends_back_what_it_kept_follows_the_seed_and_has_ends():
    x = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(6)
    made = dropout(x, 0.25)
    (gradient,) = torch.autograd.grad(made.sum(), x)
    assert_close(gradient, (made / x).detach())
    x = torch.ones(1000)
    torch.manual_seed(7)
    first = dropout(x, 0.5)
    second = dropout(x, 0.5)
    torch.manual_seed(7)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)
    x = torch.randn(100)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros(100))
    assert torch.equal(dropout(x, 0.5, training=False), x)
    small.raises(ValueError, "between 0 and 1", dropout, x, 1.5)


def bert(probability=0.1):
    set_seed(1)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), probability)
    config = BertConfig(vocab_size=30, **sizes, **rates)
    return AutoModel.from_config(config, attn_implementation="sdpa")


IDS = torch.tensor([[2, 5, 6, 3, 0, 0], [2, 7, 8, 9, 10, 3]])
BATCH = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}


def test_a_model_in_evaluation_is_not_touched():
    model = bert().eval()
    with torch.inference_mode():
        plain = model(**BATCH).last_hidden_state
        with FasterStep():
            assert torch.equal(model(**BATCH).last_hidden_state, plain)


def test_without_dropout_a_step_has_torchs_gradients():
    model = bert(0.0).train()

    def step():
        model.zero_grad()
        model(**BATCH).last_hidden_state[:, 0].square().sum().backward()
        return of_all(model)

    plain = step()
    with FasterStep():
        assert_close(step(), plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_trainer_takes_it_if_activations_are_kept(
    checkpointing, tiny_encoder_with_dropout, tmp_path, monkeypatch
):
    def drawn():
        first_step(
            CASES[0], tiny_encoder_with_dropout, tmp_path, 8, 1, **{small.CHECKPOINTING: checkpointing}
        )
        return torch.rand(4)

    ours = drawn()
    monkeypatch.setattr("bertkit.models.cpu_kernels.FasterStep", contextlib.nullcontext)
    assert torch.equal(drawn(), ours) == checkpointing


GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc has these options")


@GLIBC
def test_memory_is_kept_in_the_block_and_given_back_after_it():
    def used(blocks=50):
        many = [torch.ones(1 << 20) for _ in range(blocks)]  # of 4,096 KiB
        during = memory("VmRSS")
        del many
        return during

    before = memory("VmRSS")
    with memory_kept():
        during = used()
        assert during > before + 100_000
        assert memory("VmRSS") > during - 50_000
    assert memory("VmRSS") < during - 100_000
    during = used(125)  # the first fifty may lie where the heap has room since the block, and stay there
    assert memory("VmRSS") < during - 200_000, "as before the block"


@GLIBC
def test_memory_that_is_kept_is_at_most_twice_what_steps_need():
    with memory_kept() as bound:
        bound()
        before = malloc._held()
        large = [torch.ones(1 << 20) for _ in range(64)]
        while malloc._held() < 2.2 * before:
            large += [torch.ones(1 << 20) for _ in range(64)]
        last = large.pop()  # the end of the heap: without it, malloc gives nothing back by itself
        large.clear()
        assert malloc._held() > 2.1 * before
        bound()
        assert malloc._held() < 1.3 * before
        assert last.sum() == 1 << 20


@GLIBC
def test_freed_memory_between_what_is_used_is_given_back():
    malloc.give_back()
    before = malloc._held()
    pieces = [torch.ones(1 << 14) for _ in range(2000)]  # of 64 KiB: below what malloc maps by itself
    last = pieces.pop()
    pieces.clear()
    assert malloc._held() > before + 25_000
    malloc.give_back()
    assert malloc._held() < before + 5_000
    assert last.sum() == 1 << 14


def test_prediction_gives_memory_back_every_few_batches(tiny_encoder, monkeypatch):
    case = CASES[0]
    calls = []
    task = case.task(tiny_encoder)
    rows = case.rows()
    monkeypatch.setattr(runner, "GIVEN_BACK_EVERY", 3)
    monkeypatch.setattr(runner, "give_back", lambda: calls.append(1))
    run = runner.Runner(task, task.model(encoder(tiny_encoder)), torch.device("cpu"), "fp32", 1)
    assert len(list(task.answer(rows, run))) == len(rows) == 8
    assert len(calls) == 2
