"""A user's own metric: computed during training, and able to choose the checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import small

from bertkit.cli.main import main
from bertkit.errors import RecipeError
from bertkit.inference.evaluate import evaluate
from bertkit.run import Run
from bertkit.training.train import train

BY_MINE = ("training.metric_for_best_model=mine", "training.num_train_epochs=4")


class Scripted:
    """Returns these numbers at the evaluations of a training, which the one of the untrained model precedes."""

    def __init__(self, *numbers: float) -> None:
        self.numbers, self.calls = (0.0, *numbers), 0

    def compute(self, predictions: Any, references: Any) -> dict[str, float]:
        self.calls += 1
        return {"mine": self.numbers[min(self.calls, len(self.numbers)) - 1]}


class Hits:
    """The number of right answers."""

    def compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {"mine": float(sum(p == r for p, r in zip(predictions, references, strict=True)))}


def evaluations(run: Run, name: str) -> list[float]:
    return [event[name] for event in small.read_rows(run.folder / "metrics.jsonl") if name in event]


def test_a_metric_of_ones_own_chooses_the_checkpoint_and_stops_a_training(tiny_encoder: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, *BY_MINE, "early_stopping={patience: 1}")
    run = train(recipe, tmp_path / "run", metrics=[Scripted(0.2, 0.9, 0.3, 1.0)])
    assert evaluations(run, "eval_mine") == [0.2, 0.9, 0.3]
    outcome = run.results["seeds"][0]
    assert outcome["best_step"] == 2 * outcome["steps"] / 3


def test_it_sees_the_answers_of_every_evaluation_and_chooses_the_seed(
    tiny_encoder: Path, tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING, "bertkit")
    recipe = small.recipe(tmp_path, tiny_encoder, *BY_MINE, "training.learning_rate=1e-2", "seeds=[1, 2]")
    run = train(recipe, tmp_path / "run", metrics=[Hits()])
    assert evaluations(run, "eval_mine") == pytest.approx([10 * each for each in evaluations(run, "eval_accuracy")])
    results = run.results
    assert results["headline"] == "mine"
    for outcome in results["seeds"]:
        scores = outcome["metrics"]["validation"]
        assert outcome["headline"] == scores["mine"] == pytest.approx(10 * scores["accuracy"])
        assert outcome["metrics"]["test"]["mine"] == pytest.approx(7 * outcome["metrics"]["test"]["accuracy"])
    published = results["splits"]["validation"]["metrics"]["mine"]
    assert published == max(outcome["headline"] for outcome in results["seeds"])
    assert (run.folder / "report.html").is_file()
    assert (run.model / "README.md").is_file()
    assert not [record for record in caplog.records if "was written" in record.message]
    assert evaluate(run.folder)["metrics"]["accuracy"] == results["splits"]["test"]["metrics"]["accuracy"]


def test_a_name_that_no_metric_returns_is_refused_before_anything_is_written(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, "training.metric_for_best_model=mime")
    with pytest.raises(RecipeError, match="no metric 'mime'; did you mean 'mine'"):
        train(recipe, tmp_path / "run", metrics=[Hits()])
    with pytest.raises(RecipeError, match=r"no metric 'mime'(.|\n)*bertkit.train\(…, metrics="):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["check", "train"])
def test_the_command_line_says_where_metrics_come_from(
    command: str, tiny_encoder: Path, tmp_path: Path, capsys: Any
) -> None:
    output = ["--output-dir", str(tmp_path / "run")] if command == "train" else []
    file = small.write_recipe(tmp_path, tiny_encoder)
    assert main([command, str(file), BY_MINE[0], *output]) == 2
    said = capsys.readouterr().err
    assert "override training.metric_for_best_model=mine" in said
    assert "metrics of your own are passed from Python: bertkit.train(…, metrics=[…])" in said
    assert not (tmp_path / "run").exists()
