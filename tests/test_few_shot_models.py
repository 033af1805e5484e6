"""What a trained head is used for: exported, pushed, and as a teacher."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import small
from huggingface_hub import ModelCard

import bertkit
from bertkit.cli.main import main
from bertkit.export.program import export
from bertkit.inference.predictor import load
from bertkit.run import Run

TEXTS = ["the cat was good", "a dog was awful and it sat on the mat " * 3, "yes"]


@pytest.fixture(scope="module")
def trained(tiny_encoder, tmp_path_factory):
    """The run of a head."""
    room = tmp_path_factory.mktemp("few")
    run = bertkit.train(small.recipe(room, tiny_encoder, "task.method=head", "~training", "explain=true"), room / "run")
    assert (run.model / "modules.json").is_file()
    assert ModelCard.load(run.model / "README.md").data.library_name == "sentence-transformers"
    return run


def test_it_is_a_run_like_any_other_and_its_card_is_true(trained):
    (seed,) = trained.results["seeds"]
    assert (seed["steps"], seed["best_step"]) == (0, None)
    assert trained.results["splits"]["test"]["metrics"]["accuracy"] is not None
    assert trained.load().task.options.temperature is not None
    assert (trained.folder / "report.html").is_file()
    card = ModelCard.load(trained.model / "README.md")
    assert card.data.pipeline_tag == "text-classification"
    assert " steps" not in card.text
    assert "with a linear head for text-classification" in card.text
    (code,) = re.findall(r"```python\n(from sentence_transformers.*?)```", card.text, re.DOTALL)
    found = {}
    exec(code.replace("PATH_OR_HUB_ID", str(trained.model)), found)
    answers = load(trained.folder, precision="fp32")(["your text", "another"])
    assert found["probabilities"] == pytest.approx(np.array([[*each["scores"].values()] for each in answers]), abs=1e-6)


def test_it_is_exported(trained, tmp_path):
    export(trained.folder, tmp_path / "onnx")
    assert json.loads((tmp_path / "onnx" / "export.json").read_text())["fp32"]["answers_differ"] == 0
    ours, theirs = load(trained.folder, precision="fp32")(TEXTS), load(tmp_path / "onnx")(TEXTS)
    for one, other in zip(ours, theirs, strict=True):
        assert other["scores"] == pytest.approx(one["scores"], abs=1e-5)
        assert other["truncated"] == one["truncated"]


def test_its_files_are_fit_to_be_pushed(trained: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(trained.folder), "me/few", "--dry-run"]) == 0
    lines = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}
    sent = {str(file.relative_to(trained.model)) for file in trained.model.rglob("*") if file.is_file()}
    assert sent <= lines
    assert "3_Dense/model.safetensors" in sent


def test_a_fine_tuned_student_learns_from_it(trained, tiny_encoder, tmp_path):
    more = (f"distillation.teacher={trained.folder}", "training.num_train_epochs=1", "training.save_strategy=no")
    given = small.recipe(tmp_path, tiny_encoder, *more)
    run = bertkit.train(given, tmp_path / "run")
    theirs = trained.results["splits"]["validation"]["metrics"]
    assert run.results["baselines"]["validation"]["teacher"] == theirs
    assert run.load().task.options.method is None
