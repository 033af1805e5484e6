"""The run folder: the files of one training, and how they are read back."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bertkit import processes
from bertkit.errors import ModelError, UserError, translated
from bertkit.files import not_a_run, read_json
from bertkit.inference.multitask_predictor import tasks_of_run
from bertkit.recipe.recipe import Recipe, load_recipe
from bertkit.sections import Checkpoints
from bertkit.text import Json

if TYPE_CHECKING:
    from bertkit.inference.predictor import Predictor

OUT_OF_FOLD = (
    "train-oof"  # in results and predictions: the training rows, answered by the models of other folds
)
TEACHER = "teacher"  # in results: the teacher of a distillation, beside the baselines
LOCK = ".lock"  # held by the process that trains
LIBRARIES = "bertkit torch transformers tokenizers datasets accelerate peft numpy scikit-learn".split()


@dataclass(frozen=True)
class Run:
    """A run folder, whose files are listed in docs/run-folder.md."""

    folder: Path  # a str becomes one

    def __post_init__(self) -> None:
        vars(self)["folder"] = Path(self.folder).expanduser()

    def __fspath__(self) -> str:
        """A run is given wherever the path of its folder is."""
        return str(self.folder)

    __str__ = __fspath__

    @property
    def model(self) -> Path:
        """The model folder: what push uploads, and what loads without bertkit."""
        return self.folder / "model"

    @property
    def checkpoints(self) -> Path:
        """One folder per seed and fold."""
        return self.folder / "checkpoints"

    def predictions(self, split: str) -> Path:
        """The rows of a split with their answers."""
        return self.folder / "predictions" / f"{split}.jsonl"

    @property
    def finished(self) -> bool:
        """Whether it is trained and scored; only report and card are written after results.json."""
        return (self.folder / "results.json").is_file()

    def require_finished(self) -> None:
        """Raises ModelError where the folder is not a finished run."""
        if not self.finished:
            raise ModelError(not_a_run(self.folder))

    @property
    def results(self) -> Json:
        """Metrics per split and seed, intervals, baselines. Raises OSError before the run is finished."""
        return dict(read_json(self.folder / "results.json"))

    def metrics(self, split: str | None = None) -> dict[str, float | None]:
        """The scores on a split, by default validation, or else the first that was scored. Raises
        ModelError.
        """
        self.require_finished()
        scored = self.results.get("splits", {})
        name = split or next((name for name in ("validation", *scored) if name in scored), "validation")
        if name not in scored:
            what = f"has no scores on {name}, only on: {', '.join(scored) or 'no split'}"
            raise ModelError(self.folder, what, "Use one of these splits, or the run of one task: RUN/NAME.")
        return dict(scored[name]["metrics"])

    @property
    def recipe(self) -> Recipe:
        """The recipe, with every default filled in. Raises RecipeError."""
        return load_recipe(self.folder / "recipe.yaml", check_files=False)

    @property
    def tasks(self) -> dict[str, Self]:
        """The run of each task of a finished run of several tasks; otherwise empty."""
        return {name: type(self)(self.folder / name) for name in tasks_of_run(self.folder)}

    def load(self) -> Predictor:
        """The run's predictor."""
        from bertkit.inference.predictor import load

        return load(self.folder)


def names_in(folder: Path) -> set[str]:
    """The names in a folder, or none if it is new; without what a run that was killed at its start may leave.

    That is its lock, and a file aside (`bertkit.files`). Raises UserError where it is not a folder.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(folder, "is a file", "Use another folder.")
    paths = folder.iterdir() if folder.is_dir() else ()
    return {path.name for path in paths if path.name != LOCK and path.suffix != ".writing"}


def delete_checkpoints(run: Run, keep: Checkpoints) -> int:
    """Delete checkpoints of a finished run, which needs none; returns the bytes that this frees.

    keep: "best": `model` and `adapter` of each seed, where they were not moved to the run; "keep":
    everything.
    """
    # of folds nothing is kept: predictions/ has their answers
    patterns = {"keep": (), "best": ("seed-*/*", "fold-*"), "none": ("seed-*", "fold-*")}[keep]
    paths = (path for pattern in patterns for path in run.checkpoints.glob(pattern))
    unneeded = [path for path in paths if path.is_dir() and path.name not in ("model", "adapter")]
    freed = sum(
        file.lstat().st_size for folder in unneeded for file in folder.rglob("*") if not file.is_dir()
    )
    for folder in unneeded:
        shutil.rmtree(folder)
    return freed


@contextmanager
def only_writer(run: Run) -> Iterator[None]:
    """Lock the run folder against other processes that train into it. The lock ends with the process."""
    from filelock import FileLock, Timeout

    with translated(OSError, UserError, run.folder, "cannot be created", "Use another folder."):
        run.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run.folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        what = "another process is training into this folder"
        raise UserError(run.folder, what, "Wait until it ends, or use another folder.") from error
    try:
        yield
    finally:
        lock.release()


def versions() -> dict[str, str | None]:
    """Library -> its version; None if it is not installed."""
    installed: dict[str, str | None] = dict.fromkeys(LIBRARIES)
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def environment(device: str, precision: str) -> Json:
    """Versions, hardware and the working copy's commit, for environment.json."""
    threads = None
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    name = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    if find_spec("torch"):
        import torch

        threads = torch.get_num_threads()
        name = torch.cuda.get_device_name() if device.startswith("cuda") else name
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
        "device": name,
        "cpus": os.cpu_count(),
        "threads": threads,  # of torch
        "processes": processes.world(),
        "precision": precision,
        "git_commit": _commit(),
    }


def _commit() -> str | None:
    """The commit of the working directory, if that is a git checkout."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "rev-parse", "HEAD"]
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10).strip()
    return None
