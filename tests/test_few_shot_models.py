"""What a trained head is used for, in both forms in which it is saved: exported, served, pushed, and as a teacher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small
from huggingface_hub import ModelCard
from serving import make_app, said
from starlette.testclient import TestClient
from test_few_shot import with_layout

import bertkit
from bertkit.cli.main import main
from bertkit.export.program import export
from bertkit.inference.predictor import load
from bertkit.models.heads.vector_head import Layout
from bertkit.run import Run
from bertkit.serve.limits import Limits

TEXTS = ["the cat was good", "a dog was awful and it sat on the mat " * 3, "yes"]


@pytest.fixture(scope="module", params=["sentence-transformers", "transformers"])
def trained(request: pytest.FixtureRequest, tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of a head in this form."""
    room = tmp_path_factory.mktemp("few")
    folder = with_layout(tiny_encoder, room / "encoder", Layout("cls") if request.param == "transformers" else None)
    run = bertkit.train(small.recipe(room, folder, "task.method=head", "~training"), room / "run")
    assert (run.model / "modules.json").is_file() == (request.param == "sentence-transformers")
    card = ModelCard.load(run.model / "README.md")
    assert card.data.library_name == request.param
    assert ('pipeline("text-classification"' in card.text) == (request.param == "transformers")
    return run


def test_it_is_exported(trained: Run, tmp_path: Path) -> None:
    export(trained.folder, tmp_path / "onnx")
    assert json.loads((tmp_path / "onnx" / "export.json").read_text())["fp32"]["answers_differ"] == 0
    ours, theirs = load(trained.folder, precision="fp32")(TEXTS), load(tmp_path / "onnx")(TEXTS)
    for one, other in zip(ours, theirs, strict=True):
        assert other["scores"] == pytest.approx(one["scores"], abs=1e-5)
        assert other["truncated"] == one["truncated"]


def test_it_is_served(trained: Run) -> None:
    predictor = load(trained.folder, precision="fp32")
    with TestClient(make_app(predictor, "few", Limits())) as client:
        found = said(client, "/predict", rows=[{"text": text} for text in TEXTS])["answers"]
    for one, other in zip(predictor(TEXTS), found, strict=True):
        assert other["scores"] == pytest.approx(one["scores"], abs=1e-6)


def test_its_files_are_fit_to_be_pushed(trained: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(trained.folder), "me/few", "--dry-run"]) == 0
    lines = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}
    sent = {str(file.relative_to(trained.model)) for file in trained.model.rglob("*") if file.is_file()}
    assert sent <= lines
    assert ("3_Dense/model.safetensors" in sent) == (trained.model / "modules.json").is_file()


def test_a_fine_tuned_student_learns_from_it(trained: Run, tiny_encoder: Path, tmp_path: Path) -> None:
    given = small.recipe(tmp_path, tiny_encoder, f"distillation.teacher={trained.folder}")
    run = bertkit.train(given, tmp_path / "run")
    theirs = trained.results["splits"]["validation"]["metrics"]
    assert run.results["baselines"]["validation"]["teacher"] == theirs
    assert run.load().task.options.method is None
