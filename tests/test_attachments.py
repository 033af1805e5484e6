"""What every attachment of a training must satisfy: exact resume. Its steps are those of test_equivalence.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import small
from test_resume import RHYTHM, killed, last

from bertkit.attachments.table import ATTACHMENTS
from bertkit.files import sha256
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
RARE = "used and muon", "muon, lora", "split, lora"  # resumed with --all alone


def test_the_table_is_complete() -> None:
    assert {kind.__name__ for kind in ATTACHMENTS} == RECIPES.keys()


@pytest.fixture(scope="module")
def teacher(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    with cache_in(folder / "cache"):
        return train(small.recipe(folder, tiny_encoder, "training.save_strategy=no"), folder / "run").folder


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTKIT_CACHE", str(folder))
        yield


def overrides(name: str, teacher: Path) -> tuple[str, ...]:
    """Those of one of `EVERY`."""
    plain, _, lora = name.partition(", ")
    return (*(each.format(teacher=teacher) for each in NAMES[plain]), *(LORA if lora else ()))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.rare if n in RARE else ()) for n in EVERY])
def test_a_resumed_run_is_the_uninterrupted_one(name, teacher, tiny_encoder_with_dropout, tmp_path):
    """Even if what a teacher says has to be computed again."""
    more, splits = (*RHYTHM, *overrides(name, teacher)), ("train", "validation")
    recipe = small.recipe(tmp_path, tiny_encoder_with_dropout, *more, splits=splits)
    with cache_in(tmp_path / "one"):
        run = killed(recipe, tmp_path / "killed")
    with cache_in(tmp_path / "other"):
        train(recipe, run.folder, resume=True)
        whole = train(recipe, tmp_path / "whole")
    assert sha256(run.model / "model.safetensors") == sha256(whole.model / "model.safetensors")
    assert last(run) == last(whole)
