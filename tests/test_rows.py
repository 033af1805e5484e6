"""Steps through the used rows of word embeddings, against torch's own AdamW through all of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, DRAWN, Case
from steps import arguments, made
from torch.nn.utils import clip_grad_norm_

from bertkit.training.checkpoint import load_optimizer, save_optimizer
from bertkit.training.rows import RowsAdamW, clip, sparse

IDS = [[1, 2, 3], [3, 4, 3], [5], [2, 9, 9, 11], [7], [1, 12], [0, 0, 0]]  # of a padded row: no gradient


class Small(torch.nn.Module):
    """Words, whose sum goes through a layer."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(rows, width, padding_idx=0)
        self.layer = torch.nn.Linear(width, 2)

    def forward(self, ids: list[int]) -> torch.Tensor:
        return self.layer(self.words(torch.tensor(ids)).sum(0)).square().sum()


def grouped(model: Small, decay: float) -> list[dict[str, Any]]:
    return [
        {"params": [model.words.weight, model.layer.weight], "weight_decay": decay},
        {"params": [model.layer.bias], "weight_decay": 0.0, "lr": 0.5},
    ]


def walk(model: Small, optimizer: torch.optim.Optimizer, batches: list[list[int]], by_rows: bool) -> None:
    for number, ids in enumerate(batches):
        if by_rows:
            with sparse(model.words):
                model(ids).backward()
                model(ids[:1]).backward()  # accumulated
            clip(model.parameters(), 1.0)
        else:
            model(ids).backward()
            model(ids[:1]).backward()
            clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        optimizer.step()
        optimizer.zero_grad()


def assert_equal(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rows", [13, 50])  # of 13 most are used soon
@pytest.mark.parametrize("width", [5, 32])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_adamws(rows: int, width: int, decay: float) -> None:
    ours, theirs = Small(rows, width), Small(rows, width)
    rows_only = RowsAdamW(grouped(ours, decay), lr=0.1)
    whole = torch.optim.AdamW(grouped(theirs, decay), lr=0.1, fused=True)
    start = ours.words.weight.detach().clone()
    walk(ours, rows_only, IDS * 3, True)
    walk(theirs, whole, IDS * 3, False)
    assert_equal(ours.state_dict(), theirs.state_dict())
    assert_equal(rows_only.state_dict()["state"], whole.state_dict()["state"])
    assert torch.equal(ours.words.weight[6], start[6]) == (decay == 0)
    assert ours.words.sparse is False
    assert rows_only.used[ours.words.weight].nonzero()[:, 0].tolist() == [1, 2, 3, 4, 5, 7, 9, 11, 12]


@pytest.mark.parametrize("by_rows", [False, True])
def test_its_states_are_adamws_on_disk(by_rows: bool, tmp_path: Path) -> None:
    """Begun in either, a training goes on in the other; and in its own byte by byte."""
    ours = Small(40, 32)
    first = RowsAdamW(grouped(ours, 0.1), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(first)
    walk(ours, first, IDS, True)
    save_optimizer(tmp_path, first, schedule)
    other = copy.deepcopy(ours)
    kind = RowsAdamW if by_rows else torch.optim.AdamW
    second = kind(grouped(other, 0.1), lr=0.1, fused=True)
    load_optimizer(tmp_path, second, torch.optim.lr_scheduler.ConstantLR(second))
    walk(ours, first, IDS[::-1], True)
    walk(other, second, IDS[::-1], by_rows)
    assert_equal(ours.state_dict(), other.state_dict())
    if by_rows:
        assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in other.state_dict().items())


def test_a_table_may_be_stepped_through_whole_in_between() -> None:
    ours, theirs = Small(40, 32), Small(40, 32)
    rows_only = RowsAdamW(grouped(ours, 0.1), lr=0.1)
    whole = torch.optim.AdamW(grouped(theirs, 0.1), lr=0.1, fused=True)
    for by_rows, batches in [(True, IDS[:2]), (False, [[20, 21], [22]]), (True, IDS)]:
        walk(ours, rows_only, batches, by_rows)
        walk(theirs, whole, batches, False)
    assert_equal(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("largest", [1e-3, 1e9])
def test_clip_is_torchs(largest: float) -> None:
    ours, theirs = Small(40, 32), Small(40, 32)
    with sparse(ours.words):
        ours([1, 2, 1]).backward()
    theirs([1, 2, 1]).backward()
    assert_equal(clip(ours.parameters(), largest), clip_grad_norm_(theirs.parameters(), largest))
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_equal(one.grad.to_dense(), other.grad)  # type: ignore[union-attr]


@pytest.mark.parametrize("case", [*CASES, *DRAWN], ids=[case.id for case in [*CASES, *DRAWN]])
def test_a_training_is_the_same(
    case: Case, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, kinds = [], []
    for share in (1.0, 0.0):
        monkeypatch.setattr("bertkit.training.rows.MOST", share)
        given = {"learning_rate": 1e-3, "weight_decay": 0.1, "max_grad_norm": 1.0}
        args = arguments(tmp_path, 2, 2, max_steps=4, adam_epsilon=1e-4, **given)  # or noise decides some signs
        trainer = made(case, tiny_encoder, args)
        if share == 0:
            monkeypatch.setattr(trainer, "_by_rows", lambda: False)
        trainer.train()
        kinds.append(type(trainer.optimizer.optimizer))  # type: ignore[union-attr]
        trained.append(trainer.model.state_dict())  # type: ignore[union-attr]
    assert kinds == [RowsAdamW, torch.optim.AdamW]
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-6)
