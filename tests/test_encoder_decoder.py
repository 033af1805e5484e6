"""What surrounds a task, for a model of two stacks: parts that are trained, students, reports, hostile folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from cases import CASES, encoder
from conftest import build_encoder

from bertkit.models.bert.transformer import EncoderDecoderModel
from bertkit.models.trained_parts import freeze, merged, with_lora
from bertkit.sections import Freeze, Lora
from bertkit.training.distillation import check_sizes, find_teacher, keep_layers
from bertkit.training.seed import save

(CASE,) = (case for case in CASES if case.id == "text-to-text")
BATCH = {
    "input_ids": torch.tensor([[2, 6, 7, 20, 3]]),
    "attention_mask": torch.ones(1, 5, dtype=torch.long),
    "decoder_input_ids": torch.tensor([[2, 8, 9]]),
}


@pytest.fixture
def model(tmp_path: Path) -> EncoderDecoderModel:
    """Both halves from one BERT of three layers, with large random weights."""
    folder = build_encoder(tmp_path / "bert", layers=3)
    made: Any = CASE.task(folder).model(encoder(folder)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return made


def saved(model: Any, folder: Path) -> Any:
    """The model as transformers' own class loads it."""
    model.save_pretrained(folder)
    again, report = transformers.EncoderDecoderModel.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return again.eval()


# --- the parts that are trained


def test_both_halves_are_frozen_but_not_the_attention_between_them(model: Any) -> None:
    before = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    freeze(model, Freeze(embeddings=True, layers=2))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad} - before
    stacks = ("encoder.", "decoder.bert.")
    wanted = tuple(f"{half}{part}." for half in stacks for part in ("embeddings", "encoder.layer.0", "encoder.layer.1"))
    names = [name for name, _ in model.named_parameters()]
    assert frozen == {name for name in names if name.startswith(wanted) and "crossattention" not in name}
    assert len(frozen) == 2 * (5 + 2 * 16)


def test_lora_adapts_both_halves_and_trains_what_is_between_them(model: Any, tmp_path: Path) -> None:
    adapted = with_lora(model, Lora(r=2), {}).eval()
    trained = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert len([name for name in trained if "lora_A" in name]) == 2 * 3 * 2  # query and value, three layers, two halves
    whole = {name for name in trained if "lora_" not in name}
    assert all(".crossattention.modules_to_save." in name or ".cls.modules_to_save." in name for name in whole)
    assert len(whole) == 3 * 10 + 5  # and not the projection, which is tied to the embeddings
    with torch.no_grad():
        for parameter in trained.values():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    wanted = adapted(**BATCH).logits
    again = saved(merged(adapted), tmp_path / "merged")
    torch.testing.assert_close(again(**BATCH).logits, wanted, rtol=1e-4, atol=1e-4)


# --- students


def test_a_student_keeps_layers_of_both_halves(model: Any, tmp_path: Path) -> None:
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    student = keep_layers(model, 2)
    names = ("encoder.encoder.layer", "decoder.bert.encoder.layer")
    for name in names:
        ours, theirs = (f"{name}.{index}.attention.self.query.weight" for index in (1, 2))
        assert torch.equal(student.state_dict()[ours], kept[theirs])
        assert f"{name}.2.attention.self.query.weight" not in student.state_dict()
    again = saved(student, tmp_path / "student")
    assert (again.config.encoder.num_hidden_layers, again.config.decoder.num_hidden_layers) == (2, 2)
    source = {name: BATCH[name] for name in ("input_ids", "attention_mask")}
    answers = [each.generate(**source, max_new_tokens=12, num_beams=2) for each in (student, again)]
    assert torch.equal(*answers)
    assert answers[0].shape[1] > 3


def test_a_student_of_an_encoder_decoder_is_compared_with_its_teacher(tiny_encoder: Path, tmp_path: Path) -> None:
    from bertkit.sections import Distillation

    task = CASE.task(tiny_encoder)
    model = task.model(encoder(tiny_encoder))
    save(model, task, tmp_path, {"version": "0", "precision": "fp32", "batch_size": 4, "columns": {}})
    spec = Distillation(teacher=str(tmp_path))
    check_sizes(spec, find_teacher(spec, task), task, model, task.features(CASE.rows()))
