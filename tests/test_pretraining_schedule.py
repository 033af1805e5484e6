"""What changes in the course of a pretraining: the share of masked tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import DOCUMENTS, Case
from datasets import Dataset
from steps import arguments, made
from test_pretraining import recipe
from test_pretraining_data import made_documents, vocabulary
from test_resume import killed, last
from transformers import BertTokenizer

from bertkit.encoding.padding import Collator, mask_of
from bertkit.models.bert.masking import Masking, fewer_masks
from bertkit.models.bert.pretraining_data import encode_documents
from bertkit.recipe.recipe import Recipe
from bertkit.tasks.pretraining import Pretraining, PretrainingOptions
from bertkit.training.train import train

__all__ = ["recipe"]  # a fixture

FALLING = {"name": "pretraining", "mask_probability": {"start": 0.4, "end": 0.1}}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("nsp", ["nsp", "none"])
@pytest.mark.parametrize("more", [{}, {"whole_word": True}], ids=["tokens", "words"])
def test_fewer_masks_are_those_that_the_lower_share_draws(nsp: Any, more: dict[str, Any]) -> None:
    documents, words = made_documents(60)
    tokenizer = BertTokenizer(vocab=vocabulary(words))
    documents += ["a [MASK] b", "a b"]  # no masks of ours; one token at least
    features = encode_documents(Dataset.from_dict({"text": documents}), tokenizer, 64, nsp=nsp)
    indices = list(range(len(features)))[::-3]
    collate = Collator.of(tokenizer, Pretraining.padding)
    high = Masking.of(tokenizer, nsp=nsp, mask_probability=0.5, keep_order=True, **more)
    batch = collate(high(features, indices, 3, 4))
    masked = []
    for rate in (0.5, 0.3, 0.15, 0.01):
        low = Masking.of(tokenizer, nsp=nsp, mask_probability=rate, **more)
        expected = collate(low(features, indices, 3, 4))
        assert equal(fewer_masks(batch, rate), expected)
        masked.append(int((expected["labels"] != -100).sum()))
    assert masked == sorted(masked, reverse=True)
    assert masked[0] > 10 * masked[-1] > 0


def test_the_share_follows_the_progress_and_evaluation_has_the_last_one(tiny_encoder: Path) -> None:
    falling = Case("falling", FALLING, {"text": DOCUMENTS})

    def constant(share: float) -> Any:
        return Case("constant", {**FALLING, "mask_probability": share}, {"text": DOCUMENTS}).task(tiny_encoder)

    task = falling.task(tiny_encoder)
    assert task.describe() == "masked tokens (40% to 10%), next sentences"
    features = task.encode(falling.rows())
    collate = Collator.of(task.tokenizer, task.padding)
    batch = collate(task.examples(features, range(8), (1, 2)))
    for progress, share in ((0.0, 0.4), (0.5, 0.25), (1.0, 0.1)):
        expected = collate(constant(share).examples(features, range(8), (1, 2)))
        assert equal(task.scheduled(batch, progress), expected)
        assert equal(constant(share).scheduled(expected, progress), expected)
    assert task.examples(features, range(8)) == constant(0.1).examples(features, range(8))


def test_the_share_may_rise(tiny_encoder: Path) -> None:
    rising = Case("rising", {**FALLING, "mask_probability": {"start": 0.1, "end": 0.4}}, {"text": DOCUMENTS})
    task = rising.task(tiny_encoder)
    features = task.encode(rising.rows())
    batch = Collator.of(task.tokenizer, task.padding)(task.examples(features, range(8), (1, 2)))
    first, last = (int((task.scheduled(batch, progress)["labels"] != -100).sum()) for progress in (0.0, 1.0))
    assert first < last == int((batch["labels"] != -100).sum())


def test_a_training_follows_the_schedule(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []

    def loss(self: Any, outputs: Any, batch: Any, smoothing: float = 0.0, real: Any = Pretraining.loss) -> Any:
        shares.append(float((batch["labels"] != -100).sum() / (mask_of(batch).sum() - 2 * len(batch["row"]))))
        return real(self, outputs, batch, smoothing)

    monkeypatch.setattr(Pretraining, "loss", loss)
    options = {"name": "pretraining", "nsp": "none", "short_sequences": 0.0}
    options |= {"mask_probability": {"start": 0.8, "end": 0.1}}
    case = Case("falling", options, {"text": [" ".join(DOCUMENTS)] * 8}, max_length=64)
    made(case, tiny_encoder, arguments(tmp_path, 8, 1, max_steps=8)).train()
    assert shares == pytest.approx([0.8 - 0.7 * step / 8 for step in range(8)], abs=0.06)  # [UNK] is never masked


def test_resumed_in_the_middle_of_a_schedule_it_is_the_run_that_was_never_stopped(
    recipe: Recipe, tmp_path: Path
) -> None:
    share = {"start": 0.5, "end": 0.1}
    options = {"name": "pretraining", "nsp": "none", "mask_probability": share}
    training = {**recipe.training, "num_train_epochs": 3, "per_device_train_batch_size": 2}
    task = PretrainingOptions.model_validate(options)
    changed = recipe.model_copy(update={"task": task, "training": training, "verify": False, "explain": False})
    whole = train(changed, tmp_path / "whole")
    run = killed(changed, tmp_path / "killed", at=10)
    assert last(train(changed, run.folder, resume=True)) == last(whole)
    assert (run.model / "model.safetensors").read_bytes() == (whole.model / "model.safetensors").read_bytes()
    assert [run.results[k] for k in ("splits", "baselines")] == [whole.results[k] for k in ("splits", "baselines")]
