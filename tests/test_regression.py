"""Numbers of any size are predicted as well as standardised ones, and the saved model gives them in their own
units.
"""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import small
import torch
from cases import BY_ID
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

import bertkit
from bertkit.attachments.soft_targets import SOFT_TARGETS
from bertkit.errors import DataError
from bertkit.run import OUT_OF_FOLD
from bertkit.tasks.class_labels import mean_and_deviation
from bertkit.training.train import train

UNITS = (1000.0, 340.0)  # offset and factor
METRIC = "neg_mean_absolute_error"
LEARNED = (*small.LEARN, "training.bf16=false", f"training.metric_for_best_model={METRIC}")
KINDS = {
    "full": (),
    "lora": ("peft={r: 2}", "seeds=[1, 2]", "task.overflow=window", "task.stride=4", "model.max_length=12"),
    "folds": ("folds=2",),
}


def trained(folder, home, *overrides, units=(0.0, 1.0)):
    """A run on the small rows, whose numbers are in other units."""
    folder.mkdir()
    recipe = small.recipe(folder, home, *LEARNED, *overrides, kind="regression")
    for file in folder.glob("*.jsonl"):
        rows = small.read_rows(file)
        small.write_rows(file, [row | {"score": units[0] + units[1] * row["score"]} for row in rows])
    return train(recipe, folder / "run")


def texts():
    return [row["text"] for row in small.rows("regression", 12, 40)]


def answers(run):
    return np.array([answer["score"] for answer in bertkit.load(run.folder, precision="fp32")(texts())])


@pytest.mark.parametrize("kind", KINDS)
def test_the_units_of_the_targets_change_nothing_else(kind, tiny_encoder, tmp_path):
    """Least squares is equivariant: other units give the same training, and answers and errors in these
    units.
    """
    offset, factor = UNITS
    plain = trained(tmp_path / "plain", tiny_encoder, *KINDS[kind])
    other = trained(tmp_path / "other", tiny_encoder, *KINDS[kind], units=UNITS)
    ours = answers(plain)
    theirs = answers(other)
    assert np.ptp(ours) > 0.1
    assert theirs == pytest.approx(offset + factor * ours, abs=0.01 * factor)
    split = OUT_OF_FOLD if kind == "folds" else "validation"
    one, two = (run.results["splits"][split]["metrics"][METRIC] for run in (plain, other))
    assert two == pytest.approx(factor * one, rel=0.01)
    steps = small.read_rows(other.folder / "metrics.jsonl")
    assert kind == "folds" or two == pytest.approx(
        max(step.get(f"eval_{METRIC}", -np.inf) for step in steps), rel=1e-4
    )


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_transformers_and_peft_give_the_numbers_and_a_further_training_begins_with_them(
    tiny_encoder, tmp_path
):
    run = trained(tmp_path / "first", tiny_encoder, "peft={r: 2}", units=UNITS)
    read = bertkit.load(run.folder, precision="fp32").task.tokenizer(
        texts(), padding=True, return_tensors="pt"
    )
    base = AutoModelForSequenceClassification.from_pretrained(tiny_encoder, num_labels=1)
    adapted = PeftModel.from_pretrained(base, f"{run.folder}/adapter")
    for model in (AutoModelForSequenceClassification.from_pretrained(run.model), adapted):
        with torch.inference_mode():
            assert model.eval()(**read).logits[:, 0].numpy() == pytest.approx(answers(run), abs=0.01)
    once = ("training.learning_rate=1e-12", "training.num_train_epochs=1")
    assert answers(trained(tmp_path / "second", run.model, *once, units=UNITS)) == pytest.approx(
        answers(run), abs=0.05
    )


def test_the_scale_is_that_of_the_targets_or_of_the_recipe(tiny_encoder):
    assert mean_and_deviation([0.1] * 10) == pytest.approx([0.1, 1.0])
    assert mean_and_deviation([1.0, 3.0, 5.0]) == pytest.approx([3.0, np.std([1, 3, 5])])
    prices = np.random.default_rng(0).normal(100, 34, 1000)
    assert mean_and_deviation([*prices, 10_000.0]) == pytest.approx([100, 34], rel=0.2)
    assert mean_and_deviation(np.exp(prices / 34)) == pytest.approx(
        [np.exp(prices / 34).mean(), np.exp(prices / 34).std()]
    )
    # no quartiles
    assert mean_and_deviation([0.0] * 99 + [1.0]) == pytest.approx([0.01, np.std([0.0] * 99 + [1.0])])
    case = BY_ID["regression"]
    assert case.task(tiny_encoder).options.target_scale == pytest.approx(
        mean_and_deviation(case.columns["score"])
    )
    for options, name in (
        ({"target_scale": [0, 0]}, "regression"),
        ({"target_scale": [0, 1]}, "single-label"),
    ):
        wrong = dataclasses.replace(BY_ID[name], options={**BY_ID[name].options, **options})
        small.raises(
            DataError, "target_scale: expected a mean and a standard deviation", wrong.task, tiny_encoder
        )


def test_a_student_learns_its_teachers_numbers_as_it_learns_the_targets(tiny_encoder):
    task = BY_ID["regression"].task(tiny_encoder)
    mean, deviation = task.options.target_scale
    standard = torch.tensor([[0.5], [-2.0]])
    batch = {"row": torch.tensor([0, 1]), "soft": torch.tensor([[5.0], [1.0]])}
    loss = SOFT_TARGETS[task.name].loss(task, SimpleNamespace(logits=standard), batch, 1.0)
    expected = (((mean + deviation * standard - batch["soft"]) / deviation) ** 2).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
