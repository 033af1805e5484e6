"""The run folder: where everything about one training lies, and how it is read back."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import processes
from bertkit.errors import Problem, RecipeError, UserError
from bertkit.files import read_json
from bertkit.recipe.recipe import load_recipe, to_yaml

if TYPE_CHECKING:
    from bertkit.inference.predictor import Predictor
    from bertkit.recipe.recipe import Recipe

ANYWAY = "go on anyway with --resume --changed"
LIBRARIES = (
    "bertkit",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "accelerate",
    "peft",
    "numpy",
    "scikit-learn",
)


@dataclass(frozen=True)
class Run:
    """A run folder. See docs/architecture.md for its files."""

    folder: Path

    @property
    def model(self) -> Path:
        """What push uploads, and what loads without bertkit."""
        return self.folder / "model"

    @property
    def checkpoints(self) -> Path:
        """One folder per seed."""
        return self.folder / "checkpoints"

    @property
    def finished(self) -> bool:
        """Has everything been written? results.json comes last."""
        return (self.folder / "results.json").is_file()

    @property
    def results(self) -> dict[str, Any]:
        """Metrics per split and seed, intervals, baselines. Raises OSError before the run is finished."""
        return dict(read_json(self.folder / "results.json"))

    @property
    def recipe(self) -> Recipe:
        """What was run, every default written out. Raises RecipeError."""
        return load_recipe(self.folder / "recipe.yaml", check_files=False)

    def load(self) -> Predictor:
        """The run's predictor."""
        from bertkit.inference.predictor import load

        return load(self.folder)


def open_run(recipe: Recipe, folder: Path, resume: bool, changed: bool = False) -> Run:
    """A run folder that may be trained into: a new one, or an unfinished one of this recipe. Raises UserError.

    changed: an unfinished one of another recipe will do too.

    Nothing is written yet: what is wrong with data or model leaves no folder behind.
    """
    run, text = Run(folder), to_yaml(recipe)
    kept = folder / "recipe.yaml"
    if folder.exists() and not folder.is_dir():
        raise UserError(Problem(str(folder), "is not a folder", "Name a folder with --output-dir."))
    if resume and folder.is_dir() and not kept.is_file() and any(folder.iterdir()):
        raise UserError(
            Problem(str(folder), "is not a run: it has no recipe.yaml", "Leave out --resume, or name a run.")
        )
    if not resume and folder.exists() and any(folder.iterdir()):
        what = "holds a finished run" if run.finished else "is not empty"
        fix = "Name another --output-dir." if run.finished else "Name another --output-dir, or go on with --resume."
        raise UserError(Problem(str(folder), what, fix))
    if resume and not changed and kept.is_file() and kept.read_text(encoding="utf-8", errors="replace") != text:
        ours, theirs = text.splitlines(), kept.read_text(encoding="utf-8", errors="replace").splitlines()
        new = [line.strip() for line in ours if line not in theirs]
        what = f"the recipe is not the one this run was started with; now: {'; '.join(new[:5]) or 'lines are gone'}"
        fix = f"Give the same recipe and overrides, or another --output-dir, or {ANYWAY}."
        raise RecipeError(Problem(str(kept), what, fix))
    return run


@contextmanager
def only_writer(run: Run) -> Iterator[None]:
    """Refuse a second process that trains into the same folder. The lock goes with the process that holds it."""
    import fcntl

    try:
        run.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(Problem(str(run.folder), f"can not be made: {error.strerror}")) from error
    with (run.folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            what = "another process is training into this folder"
            raise UserError(Problem(str(run.folder), what, "Wait for it, or name another --output-dir.")) from error
        yield


def versions() -> dict[str, str | None]:
    """Library -> its version; None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def environment(device: str, precision: str) -> dict[str, Any]:
    """Versions, hardware and the working copy's commit, for environment.json."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
        "device": _accelerator() if device.startswith("cuda") else _processor(),
        "cpus": os.cpu_count(),
        "threads": _threads(),
        "processes": processes.world(),
        "precision": precision,
        "git_commit": _commit(),
    }


def _accelerator() -> str:
    import torch

    return torch.cuda.get_device_name()


def _threads() -> int | None:
    """Those of torch; None where it is not installed."""
    if find_spec("torch") is None:
        return None
    import torch

    return torch.get_num_threads()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str | None:
    """The commit of the folder that bertkit was started in, if that is a git checkout."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
