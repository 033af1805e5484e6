"""What every attachment of a training must satisfy: exact resume, and the same step however it is divided.

It is also a program, for torchrun: the first step of each recipe in a folder, by several processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import small
import torch
from safetensors.torch import load_file, save_file
from steps import FirstStep
from test_equivalence import Step, assert_same_step
from test_resume import RHYTHM, killed, last

from bertkit.attachments.table import ATTACHMENTS
from bertkit.engine.clock import Clock
from bertkit.errors import RecipeError
from bertkit.files import sha256
from bertkit.recipe.recipe import Recipe, load_recipe, to_yaml
from bertkit.training.job import prepare_jobs
from bertkit.training.seed import make_trainer, untrained
from bertkit.training.train import train

USED = ("training.used_embeddings=true", "training.weight_decay=0.3")
TEACHER = "distillation={{teacher: {teacher}, alpha: 0.7}}"
RECIPES = {  # class of an attachment -> recipes that have it, as overrides
    "MuonOptimizer": {"muon": ("training.optim=muon",)},
    "UsedEmbeddings": {"used": USED, "used and muon": (*USED, "training.optim=muon")},
    "MicroBatchSplit": {"split": ("training.auto_find_batch_size=true",)},
    "TeacherLoss": {"teacher": (TEACHER,)},
}
NAMES = {name: more for recipes in RECIPES.values() for name, more in recipes.items()}
LORA = ("peft={r: 2}",)
WITHOUT_LORA = "used", "used and muon"  # the adapters leave the word embedding as it is
EVERY = [*NAMES, *(f"{name}, lora" for name in NAMES if name not in WITHOUT_LORA)]
ONE_STEP = (
    "training.max_steps=1", "~training.num_train_epochs", "training.eval_strategy=no", "training.save_strategy=no",
    "training.logging_steps=1", "training.max_grad_norm=1e9", "training.bf16=false",
)  # fmt: skip


def test_the_table_is_complete() -> None:
    assert {kind.__name__ for kind in ATTACHMENTS} == RECIPES.keys()


@pytest.fixture(scope="module")
def teacher(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    with cache_in(folder / "cache"):
        return train(small.recipe(folder, tiny_encoder), folder / "run").folder


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTKIT_CACHE", str(folder))
        yield


def overrides(name: str, teacher: Path) -> tuple[str, ...]:
    """Those of one of `EVERY`."""
    plain, _, lora = name.partition(", ")
    return (*(each.format(teacher=teacher) for each in NAMES[plain]), *(LORA if lora else ()))


@pytest.mark.parametrize("name", EVERY)
def test_a_resumed_run_is_the_uninterrupted_one(
    name: str, teacher: Path, tiny_encoder_with_dropout: Path, tmp_path: Path
) -> None:
    """Even if what a teacher says has to be computed again."""
    recipe = small.recipe(tmp_path, tiny_encoder_with_dropout, *RHYTHM, *overrides(name, teacher))
    with cache_in(tmp_path / "one"):
        run = killed(recipe, tmp_path / "killed")
    with cache_in(tmp_path / "other"):
        train(recipe, run.folder, resume=True)
        whole = train(recipe, tmp_path / "whole")
    assert sha256(run.model / "model.safetensors") == sha256(whole.model / "model.safetensors")
    assert last(run) == last(whole)


def first_step(recipe: Recipe, folder: Path) -> Step:
    """Loss and gradients of the first step."""
    jobs = prepare_jobs(recipe)[0]
    args, step = jobs.arguments(folder, 5), FirstStep()
    trainer = make_trainer(jobs, untrained(jobs, args), args, [step], Clock())
    trainer.train()
    return next(event["loss"] for event in trainer.state.log_history if "loss" in event), step.gradients


def sized(recipe: Recipe, size: int, accumulation: int = 1) -> Recipe:
    both = (f"training.per_device_train_batch_size={size}", f"training.gradient_accumulation_steps={accumulation}")
    return recipe.with_(*ONE_STEP, *both)


@pytest.fixture(scope="module")
def recipes(teacher: Path, tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recipe]:
    folder = tmp_path_factory.mktemp("recipes")
    return {name: small.recipe(folder, tiny_encoder, *overrides(name, teacher)) for name in EVERY}


@pytest.fixture(scope="module")
def whole(recipes: dict[str, Recipe], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Step]:
    """The first step of each on eight rows in one batch."""
    folder = tmp_path_factory.mktemp("whole")
    with cache_in(folder / "cache"):
        return {name: first_step(sized(recipe, 8), folder) for name, recipe in recipes.items()}


@pytest.mark.parametrize("name", EVERY)
def test_accumulation_equals_one_batch(
    name: str, recipes: dict[str, Recipe], whole: dict[str, Step], tmp_path: Path
) -> None:
    with cache_in(tmp_path / "cache"):
        assert_same_step(whole[name], first_step(sized(recipes[name], 2, 4), tmp_path))


@pytest.fixture(scope="module")
def by_two(recipes: dict[str, Recipe], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with the first step of each by two processes, and what these said."""
    folder = tmp_path_factory.mktemp("two")
    for name, recipe in recipes.items():
        (folder / f"{name}.yaml").write_text(to_yaml(sized(recipe, 4)))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", __file__]
    more = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "BERTKIT_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [*command, str(folder)], capture_output=True, text=True, check=False, env={**os.environ, **more}
    )
    return folder, done.stderr


@pytest.mark.parametrize("name", EVERY)
def test_two_processes_equal_one(name: str, by_two: tuple[Path, str], whole: dict[str, Step]) -> None:
    folder, said = by_two
    file = folder / f"{name}.safetensors"
    assert file.is_file(), said[-3000:]
    assert_same_step(whole[name], (json.loads(file.with_suffix(".json").read_text()), load_file(file)))


def test_used_rows_and_lora_are_an_error(tiny_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="has no effect: the word embedding is not trained"):
        prepare_jobs(small.recipe(tmp_path, tiny_encoder, *USED, *LORA))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for file in sorted(Path(sys.argv[1]).glob("*.yaml")):
        loss, gradients = first_step(load_recipe(file), file.parent / file.stem)
        if torch.distributed.get_rank() == 0:
            save_file(gradients, file.with_suffix(".safetensors"))
            file.with_suffix(".json").write_text(json.dumps(loss))
