"""Length batches: nothing lost, nothing repeated, little padding, the same steps however they are divided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.training.batching import Collator, LengthBatches, batches_by_length

sizes = st.integers(1, 4)


@settings(max_examples=300, deadline=None)
@given(units=st.integers(4, 200), batch=sizes, accumulation=sizes, world=st.integers(1, 3), epoch=st.integers(0, 3))
def test_every_unit_once_and_steps_do_not_depend_on_their_division(
    units: int, batch: int, accumulation: int, world: int, epoch: int
) -> None:
    lengths = np.random.default_rng(0).integers(3, 60, units).tolist()

    def micro_batches(batch: int, accumulation: int, world: int) -> list[list[list[int]]]:
        ranks = []
        for rank in range(world):
            sampler = LengthBatches(
                lengths, range(units), batch_size=batch, accumulation=accumulation, world=world, rank=rank, seed=3
            )
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


def test_windows_of_a_row_stay_together() -> None:
    rows = [0, 1, 1, 1, 2, 3, 3, 4, 5, 5]
    batches = list(LengthBatches([9] * 10, rows, batch_size=2, seed=1))
    assert len(batches) == 3
    for batch in batches:
        assert len({rows[i] for i in batch}) == 2
        assert all(set(batch) >= {i for i, r in enumerate(rows) if r == rows[j]} for j in batch)


def test_order_is_a_function_of_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = LengthBatches([5] * 64, range(64), batch_size=4, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_padding_is_small() -> None:
    lengths = np.random.default_rng(0).gamma(3, 5, 20_000).astype(int) + 3
    batches = list(LengthBatches(lengths.tolist(), range(len(lengths)), batch_size=32, seed=0))
    slots = sum(len(b) * lengths[b].max() for b in batches)
    assert 1 - lengths.sum() / slots < 0.02


def test_prediction_batches_are_a_permutation_longest_first() -> None:
    lengths = [3, 9, 5, 9, 1]
    batches = batches_by_length(lengths, 2)
    assert [i for b in batches for i in b] == [1, 3, 2, 0, 4]


def test_too_few_rows_for_the_processes() -> None:
    with pytest.raises(ValueError, match="too few for 3 processes"):
        LengthBatches([3, 3], range(2), batch_size=4, world=3)


def test_collator_pads_and_nothing_else() -> None:
    collate = Collator({"input_ids": 7, "tags": -100})
    batch = collate({"input_ids": [[1, 2], [3]], "tags": [[0, 1], [2]], "labels": [1, 0]})
    assert batch["input_ids"].tolist() == [[1, 2], [3, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["tags"].tolist() == [[0, 1], [2, -100]]
    assert batch["labels"].tolist() == [1, 0]
