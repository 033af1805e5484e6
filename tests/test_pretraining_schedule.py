"""What changes in the course of a pretraining: the share of masked tokens, and the length of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import DOCUMENTS, Case
from datasets import Dataset
from pydantic import ValidationError
from steps import arguments, made
from test_pretraining import recipe
from test_pretraining_data import made_documents, vocabulary
from test_resume import killed, last
from transformers import BertTokenizer

from bertkit.encoding.padding import Collator, mask_of
from bertkit.errors import RecipeError
from bertkit.models.bert.drawing import Drawing
from bertkit.models.bert.pretraining_data import encode_documents
from bertkit.models.bert.scheduled import fewer_masks
from bertkit.recipe.recipe import Recipe
from bertkit.tasks.pretraining import Pretraining, PretrainingOptions
from bertkit.training.train import train

__all__ = ["recipe"]  # a fixture

FALLING = {"name": "pretraining", "mask_probability": {"start": 0.4, "end": 0.1}}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("nsp", ["nsp", "none"])
@pytest.mark.parametrize(
    "more",
    [{}, {"whole_word": True}, {"spans": True}, {"spans": True, "whole_word": True, "replace": "mask"}],
    ids=["tokens", "words", "spans", "spans-of-words"],
)
def test_fewer_masks_are_those_that_the_lower_share_draws(nsp: Any, more: dict[str, Any]) -> None:
    documents, words = made_documents(60)
    tokenizer = BertTokenizer(vocab=vocabulary(words))
    documents += ["a [MASK] b", "a b"]  # no masks of ours; one token at least
    features = encode_documents(Dataset.from_dict({"text": documents}), tokenizer, 64, nsp=nsp)
    indices = list(range(len(features)))[::-3]
    collate = Collator.of(tokenizer, Pretraining.padding)
    high = Drawing.of(tokenizer, nsp=nsp, mask_probability=0.5, keep_order=True, **more)
    batch = collate(high(features, indices, 3, 4))
    masked = []
    for rate in (0.5, 0.3, 0.15, 0.01):
        low = Drawing.of(tokenizer, nsp=nsp, mask_probability=rate, **more)
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


SHORT = {"name": "pretraining", "nsp": "none", "curriculum": {"length": 10, "until": 0.5}}


def test_a_divided_row_has_every_token_once_between_special_tokens(tiny_encoder: Path) -> None:
    documents, words = made_documents(40)
    tokenizer = BertTokenizer(vocab=vocabulary(words))
    options = PretrainingOptions.model_validate({**SHORT, "mask_probability": {"start": 0.4, "end": 0.1}})
    task = Pretraining(options, tokenizer, 64)
    rows = Dataset.from_dict({"text": ["a b c", *documents]})
    features = task.features(rows)
    assert max(features["length"][:]) == 2 + 7 * 8  # of 62: seven parts without a rest
    assert max(task.encode(rows)["length"][:]) > 58  # evaluation is not divided
    collate = Collator.of(tokenizer, task.padding)
    indices = list(range(0, len(features), 3))
    columns = task.examples(features, indices, (1, 2))
    before = fewer_masks(collate({**columns, "unit": indices}), 0.4 - 0.3 * 0.4)
    after = task.scheduled(collate({**columns, "unit": indices}), 0.4)
    assert equal(task.scheduled(collate(columns), 0.5), fewer_masks(collate(columns), 0.4 - 0.3 * 0.5))
    expected: list[dict[str, Any]] = []
    for place in range(len(indices)):
        end = int(before["attention_mask"][place].sum()) - 1
        for start in range(1, end, 8):
            tokens = [0, *range(start, min(start + 8, end)), end]
            names = ("input_ids", "labels", "token_type_ids")
            part = {name: before[name][place, tokens].tolist() for name in names}
            expected.append({**part, **{name: int(before[name][place]) for name in ("unit", "row")}})
    assert len(expected) > 3 * len(indices)
    together = collate({name: [part[name] for part in expected] for name in expected[0]})
    assert after["input_ids"].shape == (len(expected), 10)
    assert all(torch.equal(after[name], together[name]) for name in together)
    assert task.count(after) == task.count(before)


def test_a_training_follows_both_schedules(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widths, shares = [], []

    def loss(self: Any, outputs: Any, batch: Any, smoothing: float = 0.0, real: Any = Pretraining.loss) -> Any:
        widths.append(batch["input_ids"].shape[1])
        shares.append(float((batch["labels"] != -100).sum() / (mask_of(batch).sum() - 2 * len(batch["row"]))))
        return real(self, outputs, batch, smoothing)

    monkeypatch.setattr(Pretraining, "loss", loss)
    options = {**SHORT, "short_sequences": 0.0, "mask_probability": {"start": 0.8, "end": 0.1}}
    case = Case("both", options, {"text": [" ".join(DOCUMENTS)] * 8}, max_length=64)
    made(case, tiny_encoder, arguments(tmp_path, 8, 1, max_steps=8)).train()
    assert widths[:4] == [10] * 4
    assert min(widths[4:]) > 10
    assert shares == pytest.approx([0.8 - 0.7 * step / 8 for step in range(8)], abs=0.06)  # [UNK] is never masked


@pytest.mark.parametrize(("length", "longest"), [(10, 58), (33, 64), (34, 64), (63, 64)])
def test_rows_become_longer_than_those_of_the_curriculum(length: int, longest: int, tiny_encoder: Path) -> None:
    """58 = 2 + 7 x 8. Rows of more than half of the 64 tokens would otherwise never become longer."""
    options = {**SHORT, "short_sequences": 0.0, "curriculum": {"length": length, "until": 0.5}}
    case = Case("longer", options, {"text": ["a " * (2 * (longest - 2))]}, max_length=64)
    task = case.task(tiny_encoder)
    assert task.features(case.rows())["length"][:] == [longest, longest]


def test_rows_that_are_short_enough_are_not_divided(tiny_encoder: Path) -> None:
    task = Case("short", SHORT, {"text": ["a b c d", "one two"]}).task(tiny_encoder)
    features = task.features(Dataset.from_dict({"text": ["the cat was good", "one two"]}))
    batch = Collator.of(task.tokenizer, task.padding)(task.examples(features, [0, 1], (1, 2)))
    assert equal(task.scheduled(batch, 0.0), batch)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"nsp": "sop"}, "write nsp: none"),
        ({"packing": True}, "remove packing or curriculum"),
        ({"curriculum": {"length": 10}}, "until"),
        ({"curriculum": {"length": 7, "until": 0.5}}, "greater than or equal to 8"),
    ],
)
def test_a_curriculum_is_refused_where_it_makes_no_sense(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PretrainingOptions.model_validate({**SHORT, **more})


def test_a_curriculum_of_rows_that_are_not_shorter_is_refused(tiny_encoder: Path) -> None:
    case = Case("long", {**SHORT, "curriculum": {"length": 32, "until": 0.5}}, {"text": DOCUMENTS}, max_length=32)
    with pytest.raises(RecipeError, match=r"task.curriculum.length: rows of 32 tokens, and model.max_length is 32"):
        case.task(tiny_encoder)


@pytest.mark.parametrize(
    "more", [{"packing": True}, {"curriculum": SHORT["curriculum"]}], ids=["packing", "curriculum"]
)
def test_resumed_in_the_middle_of_a_schedule_it_is_the_run_that_was_never_stopped(
    more: dict[str, Any], recipe: Recipe, tmp_path: Path
) -> None:
    share = {"start": 0.5, "end": 0.1}
    options = {"name": "pretraining", "nsp": "none", "mask_probability": share, **more}
    training = {**recipe.training, "num_train_epochs": 12, "per_device_train_batch_size": 2}
    task = PretrainingOptions.model_validate(options)
    changed = recipe.model_copy(update={"task": task, "training": training, "verify": False, "explain": False})
    whole = train(changed, tmp_path / "whole")
    run = killed(changed, tmp_path / "killed", at=10)
    assert last(train(changed, run.folder, resume=True)) == last(whole)
    assert (run.model / "model.safetensors").read_bytes() == (whole.model / "model.safetensors").read_bytes()
