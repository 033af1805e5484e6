"""Packed documents: every token once, and each document as if it were alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from cases import DRAWN
from datasets import Dataset
from pydantic import ValidationError
from steps import arguments
from steps import made as made_trainer
from test_pretraining_data import made_documents, vocabulary
from transformers import BertTokenizer

from bertkit.errors import ModelError
from bertkit.models.bert import packing
from bertkit.models.bert.bert import BertForMaskedLM
from bertkit.models.bert.bert_config import BertConfig
from bertkit.models.bert.drawing import Drawing
from bertkit.models.bert.packing import _best_fit, check_packing, pack_chunks, packed_inputs
from bertkit.models.bert.pretraining_data import encode_documents
from bertkit.models.encoder import load_tokenizer
from bertkit.tasks.pretraining import PretrainingOptions

LENGTH = 64
SMALL = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 48, "max_position_embeddings": 80, "pad_token_id": 0}


@pytest.fixture(scope="module")
def made() -> tuple[Any, Dataset]:
    """(tokenizer, chunks of documents, some of them short, one a cloze)."""
    documents, words = made_documents(60)
    tokenizer = BertTokenizer(vocab=vocabulary(words))
    documents[7:7] = ["a b", "a", "a [MASK] b", "c d e"]
    return tokenizer, encode_documents(Dataset.from_dict({"text": documents}), tokenizer, LENGTH, nsp="none")


@pytest.fixture(scope="module")
def packed(made: tuple[Any, Dataset]) -> Dataset:
    return pack_chunks(made[1], LENGTH, made[0].mask_token_id)


def test_every_chunk_is_in_one_row_and_rows_are_full(made: tuple[Any, Dataset], packed: Dataset) -> None:
    tokenizer, chunks = made
    found = []
    for row in packed.to_list():
        assert row["length"] == len(row["input_ids"]) + 2 * len(row["sentences"]) <= LENGTH
        assert row["row"] == row["rows"][0]
        start = 0
        for size, document in zip(row["sentences"], row["rows"], strict=True):
            found.append((document, row["input_ids"][start : start + size]))
            start += size
        assert start == len(row["input_ids"])
        if tokenizer.mask_token_id in row["input_ids"]:
            assert len(row["rows"]) == 1
    assert sorted(found) == sorted(zip(chunks["row"][:], chunks["input_ids"][:], strict=True))
    one, other = sorted(row["length"] for row in packed.to_list() if tokenizer.mask_token_id not in row["input_ids"])[
        :2
    ]
    assert one + other > LENGTH  # no two of them are one
    assert len(packed) < len(chunks)


def test_a_row_that_a_chunk_fills_exactly_takes_it() -> None:
    assert _best_fit(np.array([40, 24, 30, 34, 1]), 64).tolist() == [0, 0, 1, 1, 2]


def test_packed_examples_have_special_tokens_and_positions_of_their_own(
    made: tuple[Any, Dataset], packed: Dataset
) -> None:
    tokenizer, _ = made
    drawing = Drawing.of(tokenizer, nsp="none", mask_probability=0.3, keep_order=True)
    indices = list(range(len(packed)))
    columns = drawing(packed, indices, 5, 1)
    several = masked = 0
    for index, row in enumerate(packed.to_list()):
        ids, labels = columns["input_ids"][index], columns["labels"][index]
        unmasked = [i if label == -100 else label for i, label in zip(ids, labels, strict=True)]
        start, expected, positions = 0, [], []
        for size in row["sentences"]:
            expected += [tokenizer.cls_token_id, *row["input_ids"][start : start + size], tokenizer.sep_token_id]
            positions += range(size + 2)
            start += size
        assert unmasked == expected
        assert columns["position_ids"][index] == positions
        assert columns["token_type_ids"][index] == [0] * len(ids)
        assert columns["length"][index] == len(ids) == row["length"]
        own = [label for label in labels if label != -100]
        assert len(own) == (tokenizer.mask_token_id not in unmasked) * max(1, round(0.3 * len(row["input_ids"])))
        assert not set(own) & set(tokenizer.all_special_ids)
        several, masked = several + (len(row["rows"]) > 1), masked + len(own)
    assert several > 3
    assert masked > 100
    one = drawing(packed, [indices[-2]], 5, 1)
    assert {name: values[0] for name, values in one.items()} == {name: values[-2] for name, values in columns.items()}


FAMILIES = {
    "roberta": (transformers.RobertaConfig, {"pad_token_id": 1}),
    "xlm-roberta": (transformers.XLMRobertaConfig, {"pad_token_id": 1}),
    "electra": (transformers.ElectraConfig, {"embedding_size": 16}),
    "distilbert": (transformers.DistilBertConfig, {}),
    "mpnet": (transformers.MPNetConfig, {"pad_token_id": 1}),
    "albert": (transformers.AlbertConfig, {"embedding_size": 16}),
    "modernbert": (transformers.ModernBertConfig, {"local_attention": 8, "global_attn_every_n_layers": 2}),
}


def model_of(family: str, attention: str) -> Any:
    torch.manual_seed(1)
    if family.startswith("bert"):
        fields = {"positions": "sinusoidal"} if family == "bert-sinusoidal" else {}
        return BertForMaskedLM(BertConfig.from_dict({**SMALL, **fields})).eval()
    kind, fields = FAMILIES[family]
    made = kind(**{**SMALL, **fields, "attn_implementation": attention})
    return transformers.AutoModelForMaskedLM.from_config(made).eval()


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        ("bert", "sdpa"),
        ("bert-sinusoidal", "sdpa"),
        ("mpnet", "eager"),  # it has no sdpa
        *((family, attention) for family in FAMILIES if family != "mpnet" for attention in ("sdpa", "eager")),
    ],
)
def test_a_packed_document_has_the_outputs_and_gradients_that_it_has_alone(family: str, attention: str) -> None:
    model = model_of(family, attention)
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(5, 300, (size,), generator=generator) for size in (20, 7, 30, 3, 40)]
    rows = [texts[:3], texts[3:]]
    ids = torch.nn.utils.rnn.pad_sequence([torch.cat(row) for row in rows], batch_first=True, padding_value=0)
    places = [torch.cat([torch.arange(len(text)) for text in row]) for row in rows]
    positions = torch.nn.utils.rnn.pad_sequence(places, batch_first=True)
    weights = [torch.randn(len(text), 300, generator=generator) for text in texts]

    def gradients(loss: Any) -> dict[str, Any]:
        model.zero_grad()
        loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    def logits(inputs: Any, **more: Any) -> Any:
        return next(iter(model(input_ids=inputs, **more).values()))

    packed = logits(ids, **packed_inputs(model.config, positions))
    found = [
        part
        for row, out in zip(rows, packed, strict=True)
        for part in out.split([*map(len, row), ids.shape[1] - sum(map(len, row))])[: len(row)]
    ]
    alone = [logits(text[None])[0] for text in texts]
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    totals = [sum((w * out).sum() for w, out in zip(weights, outs, strict=True)) for outs in (found, alone)]
    ours, theirs = map(gradients, totals)
    assert ours.keys() == theirs.keys()
    for name in ours:
        scale = theirs[name].abs().max().clamp(min=1.0)
        torch.testing.assert_close(ours[name] / scale, theirs[name] / scale, rtol=1e-5, atol=1e-5)
    changed = ids.clone()
    changed[0, 20:27] = 5  # the second document of the first row
    other = logits(changed, **packed_inputs(model.config, positions))
    assert torch.equal(other[0, :20], packed[0, :20])
    assert torch.equal(other[0, 27:57], packed[0, 27:57])
    assert not torch.equal(other[0, 20:27], packed[0, 20:27])


def test_an_architecture_that_mixes_packed_documents_is_refused(
    tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing = Drawing.of(load_tokenizer(tiny_encoder), nsp="none")
    fields = {**SMALL, "vocab_size": 42}
    with pytest.raises(ModelError, match=r"task\.packing: a deberta-v2 cannot read packed rows: "):
        check_packing(transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**fields)), drawing)
    model = transformers.ElectraForMaskedLM(transformers.ElectraConfig(**fields))
    model.train()
    check_packing(model, drawing)
    assert model.training
    for dropped in ("position_ids", "attention_mask"):

        def partial(*given: Any, dropped: str = dropped) -> dict[str, Any]:
            return {name: value for name, value in packed_inputs(*given).items() if name != dropped}

        monkeypatch.setattr(packing, "packed_inputs", partial)
        with pytest.raises(ModelError, match="its outputs for a text depend on the other texts of the row"):
            check_packing(model, drawing)


def test_packing_is_refused_with_pairs() -> None:
    with pytest.raises(ValidationError, match="write nsp: none"):
        PretrainingOptions.model_validate({"name": "pretraining", "packing": True})


def test_documents_of_a_packed_row_are_all_named(tiny_encoder: Path, tmp_path: Path) -> None:
    case = DRAWN[3]
    trainer = made_trainer(case, tiny_encoder, arguments(tmp_path, 2, 1))
    count = len(trainer.data.features)
    assert count < len(case.rows())
    assert trainer.data.row_locations(None, range(count)) == [f"row {row}" for row in range(1, 9)]
    task = case.task(tiny_encoder)
    findings = [finding.what for finding in task.check(task.features(case.rows()), "train")]
    assert len(findings) == 1
    assert "examples" in findings[0]
