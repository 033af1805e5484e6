"""Length batches: nothing lost, nothing repeated, little padding, the same steps however they are divided."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from cases import Case
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from small import raises
from steps import arguments, made

from bertkit.encoding.padding import Collator, batches_by_length, mask_of
from bertkit.engine.batching import LengthBatches, TokenBatches
from bertkit.inference.runner import Runner
from bertkit.sections import Batching

sizes = st.integers(1, 4)


@settings(max_examples=300)
@given(
    units=st.integers(4, 200),
    batch=sizes,
    accumulation=sizes,
    world=st.integers(1, 3),
    epoch=st.integers(0, 3),
)
def test_every_unit_once_and_steps_do_not_depend_on_their_division(units, batch, accumulation, world, epoch):
    lengths = default_rng(0).integers(3, 60, units).tolist()

    def micro_batches(batch, accumulation, world):
        ranks = []
        more = {"batch_size": batch, "accumulation": accumulation, "world": world, "seed": 3}
        for rank in range(world):
            sampler = LengthBatches(lengths, range(units), rank=rank, **more)
            sampler.set_epoch(epoch)
            ranks.append(list(sampler))
            assert len(ranks[-1]) == len(sampler)
        assert len({len(r) for r in ranks}) == 1, "every process has as many micro-batches"
        return ranks

    ranks = micro_batches(batch, accumulation, world)
    assert sorted(i for r in ranks for b in r for i in b) == list(range(units))
    assert all(b for r in ranks for b in r)
    step = batch * accumulation * world
    whole = micro_batches(step, 1, 1)[0]
    for number, expected in enumerate(whole[: units // step - 1]):
        parts = [b for r in ranks for b in r[number * accumulation : (number + 1) * accumulation]]
        assert sorted(i for b in parts for i in b) == sorted(expected)


def by_rows(lengths, units, epoch=0, **more):
    sampler = LengthBatches(lengths, units, **{"batch_size": 4, "seed": 3, **more})
    sampler.set_epoch(epoch)
    return list(sampler)


def test_windows_of_a_row_stay_together():
    rows = [0, 1, 1, 1, 2, 3, 3, 4, 5, 5]
    batches = by_rows([9] * 10, rows, batch_size=2)
    assert len(batches) == 3
    for batch in batches:
        assert len({rows[i] for i in batch}) == 2
        assert all(set(batch) >= {i for i, r in enumerate(rows) if r == rows[j]} for j in batch)


def test_prediction_batches_come_longest_first_and_have_a_bound_on_a_cpu():
    lengths = [3, 9, 5, 9, 1]
    batches = batches_by_length(lengths, 2)
    assert [i for b in batches for i in b] == [1, 3, 2, 0, 4]
    lengths = [512] * 6 + [500] * 4 + [10] * 40
    sizes = [(len(batch), lengths[batch[0]]) for batch in batches_by_length(lengths, 32, on_cpu=True)]
    assert sizes == [(4, 512), (4, 512), (4, 500), (32, 10), (6, 10)]
    for device, count in ((torch.device("cpu"), 2), (torch.device("cuda"), 1), (None, 1)):
        runner = Runner(cast("Any", None), None, device, "fp32", 32)
        assert len(runner.batches([512] * 8)) == count


# --- by a budget of tokens


def by_tokens(lengths, units, epoch=0, **more):
    sampler = TokenBatches(lengths, units, **{"tokens": 120, "seed": 3, **more})
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    return batches


@settings(max_examples=300)
@given(
    sizes=st.lists(st.tuples(st.integers(2, 300), st.integers(1, 3)), min_size=1, max_size=120),
    tokens=st.integers(8, 700),
    accumulation=sizes,
    world=st.integers(1, 3),
    epoch=st.integers(0, 2),
)
def test_a_token_budget_holds_and_every_unit_comes_once(sizes, tokens, accumulation, world, epoch):
    units = [unit for unit, (_, count) in enumerate(sizes) for _ in range(count)]
    lengths = [max(2, sizes[unit][0] - 5 * place) for place, unit in enumerate(units)]
    if len(sizes) < world:
        raises(ValueError, "too few", by_tokens, lengths, units, tokens=tokens, world=world)
        return
    given = {"tokens": tokens, "accumulation": accumulation, "world": world}
    try:
        ranks = [by_tokens(lengths, units, epoch, rank=rank, **given) for rank in range(world)]
    except ValueError:  # nearly every unit fills the budget, and there is not one more to make them even
        assert len(sizes) < len(by_tokens(lengths, units, tokens=tokens)) + world
        return
    assert len({len(rank) for rank in ranks}) == 1, "every process has as many micro-batches"
    assert len(ranks[0]) == len(by_tokens(lengths, units, epoch + 1, **given)), "and every epoch"
    batches = [batch for rank in ranks for batch in rank]
    assert sorted(feature for batch in batches for feature in batch) == list(range(len(units)))
    for batch in batches:
        together = {units[feature] for feature in batch}
        assert all(set(batch) >= {f for f, unit in enumerate(units) if unit == each} for each in together)
        assert len(together) == 1 or len(batch) * max(lengths[feature] for feature in batch) <= tokens


def test_steps_by_tokens_do_not_depend_on_their_division():
    lengths = default_rng(0).integers(3, 60, 500).tolist()

    def steps(accumulation, world):
        given = {"accumulation": accumulation, "world": world}
        ranks = [by_tokens(lengths, range(500), rank=rank, **given) for rank in range(world)]
        counts = range(0, len(ranks[0]), accumulation)
        return [sorted(batch for rank in ranks for batch in rank[i : i + accumulation]) for i in counts]

    assert steps(4, 1) == steps(2, 2) == steps(1, 4)
    assert {len(step) for step in steps(4, 1)} == {4}


@pytest.mark.parametrize("by", [lambda **more: by_tokens([5, 9, 17] * 39, range(117), **more),
                                lambda **more: by_rows([5] * 64, range(64), **more)])  # fmt: skip
def test_the_order_is_a_function_of_seed_and_epoch_alone(by):
    assert by() == by()
    assert by() != by(epoch=1)
    assert by() != by(seed=4)
    first, second = ({frozenset(batch) for batch in by(epoch=epoch)} for epoch in (0, 1))
    assert len(first & second) < 2, "rows of one length keep other company in each epoch"


@pytest.mark.parametrize("tokens", [None, 120])
def test_batches_do_not_come_in_the_order_of_their_lengths(tokens):
    lengths = np.arange(400) % 50 + 10
    given = {"batch_size": 4} if tokens is None else {"tokens": tokens}
    batches = (LengthBatches if tokens is None else TokenBatches)(lengths, range(400), **given)
    longest = [int(lengths[batch].max()) for batch in batches]
    assert abs(np.corrcoef(longest, range(len(longest)))[0, 1]) < 0.3
    batches.set_epoch(1)
    assert [int(lengths[batch].max()) for batch in batches] != longest


def test_padding_is_small():
    lengths = default_rng(0).gamma(3, 5, 20_000).astype(int) + 3
    for batches in (
        by_tokens(lengths, range(20_000), tokens=2048),
        by_rows(lengths, range(20_000), batch_size=32),
    ):
        slots = [len(batch) * lengths[batch].max() for batch in batches]
        assert 1 - lengths.sum() / sum(slots) < 0.02
    assert (
        np.median([len(b) * lengths[b].max() for b in by_tokens(lengths, range(20_000), tokens=2048)])
        > 0.95 * 2048
    )


@pytest.mark.parametrize("windows", [1, 30])
def test_the_heaviest_batch_has_the_longest_rows(windows):
    """Or a row of so many windows that it fills the budget several times."""
    lengths = [*range(10, 60), *[40] * windows]
    units = [*range(50), *[50] * windows]
    sampler = TokenBatches(lengths, units, tokens=120)
    assert sorted(sampler.heaviest()) == ([*range(50, 80)] if windows == 30 else [48, 49])
    assert len(LengthBatches(lengths, units, batch_size=2).heaviest()) == (31 if windows == 30 else 2)


def test_one_long_row_takes_more_memory_than_more_slots_of_short_ones():
    assert TokenBatches([60, *[10] * 10], range(11), tokens=100).heaviest() == [0]


@given(st.lists(st.integers(1, 200), max_size=60), st.integers(8, 400), st.booleans())
def test_answers_by_tokens(lengths, tokens, on_cpu):
    """Every feature once, longest first, and no more slots than the budget, but of one feature alone."""
    batches = [batch.tolist() for batch in batches_by_length(lengths, Batching(tokens=tokens), on_cpu)]
    flat = [feature for batch in batches for feature in batch]
    assert sorted(flat) == list(range(len(lengths)))
    assert [lengths[f] for f in flat] == sorted(lengths, reverse=True)
    assert all(len(b) == 1 or len(b) * lengths[b[0]] <= tokens for b in batches)


def test_too_few_rows_for_the_processes():
    raises(ValueError, "too few for 3 processes", LengthBatches, [3, 3], range(2), batch_size=4, world=3)
    raises(ValueError, "too few for 3 processes", TokenBatches, [3, 3], range(2), tokens=40, world=3)


def test_collator_pads_and_gives_a_mask_where_it_did():
    collate = Collator({"input_ids": 7, "tags": -100})
    batch = collate({"input_ids": [[1, 2], [3]], "tags": [[0, 1], [2]], "labels": [1, 0]})
    assert batch["input_ids"].tolist() == [[1, 2], [3, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["tags"].tolist() == [[0, 1], [2, -100]]
    assert batch["labels"].tolist() == [1, 0]
    collate = Collator({"input_ids": 7})
    assert "attention_mask" not in collate({"input_ids": [[1, 2], [3, 4]]})
    for ids in ([[1, 2], [3]], [[1], [2, 3]]):
        batch = collate({"input_ids": ids})
        assert mask_of(batch) is batch["attention_mask"]
    assert mask_of(collate({"input_ids": [[1, 2], [7, 4]]})).tolist() == [[1, 1], [1, 1]]  # a 7 that is text


@pytest.mark.parametrize("even", [True, False])
def test_the_model_gets_a_mask_only_where_there_is_padding(even, tiny_encoder, tmp_path):
    """In training and in prediction, also where a vector is the mean over the tokens that are not padding."""
    texts = ["cat " * (3 if even else number) for number in range(1, 9)]
    case = Case(
        "c", {"name": "sentence-similarity"}, {"text_a": texts, "text_b": texts, "score": [0.0, 1.0] * 4}
    )
    trainer = made(case, tiny_encoder, arguments(tmp_path, 8, 1))
    masks = []
    model = trainer.model
    model.register_forward_pre_hook(
        lambda _, args, given: masks.append(given.get("attention_mask")), with_kwargs=True
    )
    trainer.train()
    trainer.data.runner(trainer.data.features)
    assert len(masks) == 3
    assert all((mask is None) == even for mask in masks)
