"""Every field of TrainingArguments has an effect in a recipe, or is refused with a reason."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import small
from transformers import Trainer, TrainingArguments, trainer_optimizer
from transformers.integrations import TrackioCallback

from bertkit.engine.arguments import Arguments
from bertkit.errors import RecipeError
from bertkit.recipe.recipe import load_recipe
from bertkit.recipe.training_arguments import DECIDED, training_fields
from bertkit.training.train import train

FIELDS = {field.name for field in fields(TrainingArguments)} & training_fields().keys()  # those that are to stay
# fields that a plain run does not read -> what reads them in the cases that they are for
READ_ELSEWHERE: Mapping[str, Any] = {
    f"{small.CHECKPOINTING}_kwargs": Trainer.train,
    "bf16": TrainingArguments,
    "ddp_timeout": TrainingArguments,
    "optim_target_modules": trainer_optimizer,
    "restore_callback_states_from_checkpoint": Trainer,
    "run_name": TrackioCallback,
    "tf32": TrainingArguments.__post_init__,
    **dict.fromkeys(("project", "trackio_bucket_id", "trackio_space_id", "trackio_static_space_id"), TrackioCallback),
}
LOOKING = ("__post_init__", "_validate_args", "to_dict", "_asdict_inner", "__repr__", "__eq__")  # reads without effect


@pytest.fixture(scope="module")
def run(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A run folder, and the fields of TrainingArguments that its training read."""
    folder, read, real = tmp_path_factory.mktemp("keys"), set[str](), object.__getattribute__

    def recorded(self: Arguments, name: str) -> Any:
        if name in FIELDS and sys._getframe(1).f_code.co_name not in LOOKING:
            read.add(name)
        return real(self, name)

    keys = ["eval_on_start=true", "logging_first_step=true", "logging_steps=3", "save_total_limit=1"]
    keys += ["include_num_input_tokens_seen=non_padding", "dataloader_num_workers=1", "dataloader_prefetch_factor=3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arguments, "__getattribute__", recorded)
        train(small.recipe(folder, tiny_encoder, *(f"training.{key}" for key in keys)), folder / "run")
    return folder / "run", read


def test_every_field_is_read_or_refused(run: tuple[Path, set[str]]) -> None:
    """So that none is accepted in vain. Of those that have no effect in bertkit, DECIDED says why."""
    assert run[1] | READ_ELSEWHERE.keys() | DECIDED.keys() == FIELDS
    assert not READ_ELSEWHERE.keys() & (run[1] | DECIDED.keys())


@pytest.mark.parametrize("name", READ_ELSEWHERE)
def test_what_a_plain_run_does_not_read_is_read_elsewhere(name: str) -> None:
    assert f".{name}" in inspect.getsource(READ_ELSEWHERE[name])


def test_effects_in_the_log(run: tuple[Path, set[str]]) -> None:
    lines = small.read_rows(run[0] / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == [1, 3, 6]
    assert next(line["step"] for line in lines if "eval_accuracy" in line) == 0
    assert lines[-1]["num_input_tokens_seen"] > 0
    assert len(list(run[0].rglob("checkpoint-*"))) == 1


SWITCHES = [name for name, field in training_fields().items() if name in DECIDED and field.default in ("True", "False")]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_default_asks_for_nothing(tmp_path: Path, tiny_encoder: Path, name: str) -> None:
    default = training_fields()[name].default.lower()
    assert small.recipe(tmp_path, tiny_encoder, f"training.{name}={default}")
    other = {"true": "false", "false": "true"}[default]
    with pytest.raises(RecipeError, match=f"training.{name}: bertkit decides this"):
        small.recipe(tmp_path, tiny_encoder, f"training.{name}={other}")


def test_the_best_checkpoint_alone_is_saved(tmp_path: Path, tiny_encoder: Path) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, "training.save_strategy=best")
    assert (recipe.training["eval_strategy"], recipe.training["save_strategy"]) == ("epoch", "best")
    with pytest.raises(RecipeError, match=r"training\.save_strategy: best needs evaluations"):
        load_recipe(tmp_path / "small.yaml", ["training.save_strategy=best", "training.eval_strategy=no"])
    recipe = small.recipe(tmp_path, tiny_encoder, "training.save_strategy=best", splits=("train", "test"))
    with pytest.raises(RecipeError, match=r"training\.save_strategy: the best checkpoint is selected on validation"):
        train(recipe, tmp_path / "run")
