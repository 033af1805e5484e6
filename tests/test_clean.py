"""What a finished run keeps of its checkpoints, and `clean`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import small

from bertkit.cli.main import main
from bertkit.hub.payload import payload
from bertkit.inference.evaluate import evaluate
from bertkit.report.html import write_report
from bertkit.run import Run, only_writer
from bertkit.training.train import train

SHORT = ("training.num_train_epochs=3", "seeds=[1, 2]", "peft={r: 2}")


@pytest.fixture(scope="module")
def kept(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of two seeds that keeps its checkpoints."""
    room = tmp_path_factory.mktemp("kept")
    return train(small.recipe(room, tiny_encoder, *SHORT), room / "run")


@pytest.fixture
def run(kept: Run, tmp_path: Path) -> Run:
    """A copy of it."""
    return Run(Path(shutil.copytree(kept.folder, tmp_path / "run")))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def size(folder: Path) -> int:
    return sum(map(len, files(folder).values()))


def folders(run: Run) -> set[str]:
    """The folders of the seeds, and those in them."""
    return {str(path.relative_to(run.checkpoints)) for path in run.checkpoints.glob("**/") if path != run.checkpoints}


def loser(run: Run) -> int:
    """The seed whose model was not published."""
    return 2 if run.results["seeds"][0]["headline"] >= run.results["seeds"][1]["headline"] else 1


@pytest.mark.parametrize("keep", ["keep", "best", "none"])
def test_a_run_keeps_what_its_recipe_says(keep: str, kept: Run, tiny_encoder: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, *SHORT, f"checkpoints={keep}")
    run = train(recipe, tmp_path / "run")
    assert files(run.model) == files(kept.model) | {"README.md": (run.model / "README.md").read_bytes()}
    best = {"seed-1", "seed-2", f"seed-{loser(run)}/model", f"seed-{loser(run)}/adapter"}
    assert folders(run) == {"keep": folders(kept), "best": best, "none": set()}[keep]
    assert len(folders(kept)) > len(best)
    if keep != "none":
        assert files(run.checkpoints / f"seed-{loser(run)}/model") == files(
            kept.checkpoints / f"seed-{loser(run)}/model"
        )


def test_clean_frees_what_it_says_and_nothing_that_is_needed(run: Run, tmp_path: Path, capsys: Any) -> None:
    scores, before = evaluate(run.folder)["metrics"], files(run.folder)
    for keep in ("best", "none"):
        arguments = ["clean", str(run.folder), "--checkpoints", keep]
        total = size(run.folder)
        assert main([*arguments, "--dry-run"]) == 0
        promised = capsys.readouterr().out
        assert size(run.folder) == total
        assert main(arguments) == 0
        freed = total - size(run.folder)
        assert freed > 0
        assert capsys.readouterr().out == f"{run.folder}: {freed:,} bytes freed\n"
        assert promised == f"{run.folder}: {freed:,} bytes would be freed\n"
    after = files(run.folder)
    assert after == {name: content for name, content in before.items() if not name.startswith("checkpoints/")}
    assert evaluate(run.folder)["metrics"] == scores
    assert write_report([run.folder], tmp_path / "report.html").is_file()
    assert "model.safetensors" in {item.path for item in payload(run, "me/model")}
    assert train(run.recipe, run.folder, resume=True).results == run.results
    assert main(["clean", str(run.folder)]) == 0
    assert capsys.readouterr().out == f"{run.folder}: 0 bytes freed\n"


def test_clean_refuses_what_is_not_finished_and_deletes_nothing(run: Run, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(run.folder, tmp_path / "stopped", ignore=shutil.ignore_patterns("results.json"))
    before = files(tmp_path)
    named = [str(run.folder), str(tmp_path / "stopped"), str(tmp_path / "absent")]
    assert main(["clean", *named]) == 2
    said = capsys.readouterr().err
    assert f"{named[1]}: is not a finished run" in said
    assert f"{named[2]}: no such folder" in said
    with only_writer(run):
        assert main(["clean", named[0]]) == 2
    assert "another process" in capsys.readouterr().err
    assert files(tmp_path) == before


def test_clean_takes_the_runs_of_a_sweep(run: Run, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(run.folder, tmp_path / "sweep" / "best")
    assert main(["clean", str(tmp_path / "sweep")]) == 2
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    assert main(["clean", str(tmp_path / "sweep")]) == 0
    assert str(tmp_path / "sweep" / "best") in capsys.readouterr().out
    assert not folders(Run(tmp_path / "sweep" / "best"))
