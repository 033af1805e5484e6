"""What the commands share: how one is declared, and the arguments that several have."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from bertkit import processes
from bertkit.errors import Problem, UserError
from bertkit.inference.workers import ALONE

Argument: TypeAlias = tuple[str, dict[str, Any]]  # what `add_argument` of argparse takes


class Command(NamedTuple):
    """One command. run: called with its arguments by name; returns the exit code, or None for 0."""

    name: str  # "train", or "tokenizer train" for an action of a group
    help: str
    run: Callable[..., int | None]
    arguments: tuple[Argument, ...]
    interrupted: str  # how to continue after Ctrl-C


def command(help: str, *arguments: Argument, interrupted: str = "") -> Callable[[Callable[..., int | None]], Command]:
    """Declares the command that a function runs; its name is the function's, with spaces for underscores."""
    return lambda run: Command(run.__name__.replace("_", " "), help, run, arguments, interrupted)


KERNELS = "64"  # that oneDNN keeps: it compiles one for each layer and shape of a batch, and batches go by length


def on_all_processes(run: Callable[..., None]) -> Callable[..., None]:
    """Divides the work of a command between the processes that torchrun started, by its argument `workers`.

    It also bounds the memory of oneDNN's kernels, where the environment does not.
    """

    @wraps(run)
    def started(**options: Any) -> None:
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)  # read when torch first computes
        if processes.world() == 1:
            return run(workers=ALONE, **options)
        from bertkit.engine.sharding import distributed_inference

        with distributed_inference() as workers:
            return run(workers=workers, **options)

    return started


def argument(name: str, help: str, **options: Any) -> Argument:
    """An argument. Its default gives the type, and is stated in its help if that says nothing of it."""
    default = options.get("default")
    if isinstance(default, int | float):
        options = {"type": type(default), "metavar": "N", **options}
    if isinstance(default, int | float | str) and "default: " not in help:
        help = f"{help}; default: {default}"
    return name, {"help": help, **options}


def flag(name: str, help: str, **options: Any) -> Argument:
    """An option without a value."""
    return argument(name, help, action="store_true", **options)


def path(name: str, help: str, metavar: str = "FILE", **options: Any) -> Argument:
    """An option that names a file or a folder."""
    return argument(name, help, metavar=metavar, type=Path, **options)


def column_names(pairs: Sequence[str]) -> dict[str, str]:
    """Column -> its name in the file, from values of COLUMNS. Raises UserError."""
    names = dict(pair.partition("=")[::2] for pair in pairs)
    if "" in names.values():
        raise UserError(Problem("--column", "write it as text=NAME_IN_THE_FILE"))
    return names


def cluster(engine: str, address: str | None, workers: int | None, shard: str | None) -> dict[str, Any]:
    """The options of the Ray cluster; none where it is not used. Raises UserError."""
    given = {name: value for name, value in {"address": address, "workers": workers}.items() if value is not None}
    if engine == "local" and given:
        raise UserError([Problem("", f"--{name} works only with --engine ray") for name in given])
    if engine == "ray" and processes.world() > 1:
        raise UserError("--engine ray starts processes of its own", "Run the command without torchrun.")
    if engine == "ray" and shard:
        raise UserError("--shard is for jobs without --engine ray, which divides by files")
    if workers is not None and workers < 1:
        raise UserError(Problem("--workers", f"{workers}, where a number from 1 on is expected"))
    return given


def files_and_overrides(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Files, and the `data.KEY=VALUE` among them."""
    overrides = [word for word in words if word.lstrip("~").startswith("data.") and "=" in word]
    return [Path(word) for word in words if word not in overrides], overrides


ROWS = "csv, tsv, xlsx, json, jsonl, parquet, arrow, conll, or txt with one text per line"
RUN = argument("source", "a run folder, a model folder or a Hub id", metavar="RUN")
MODEL = argument("source", "a run folder, a model folder or a Hub id", metavar="MODEL")
RECIPE = argument("recipe", "a shipped recipe's name, or a file")
OVERRIDES = argument(
    "rest", "a YAML value, or ~key to delete; e.g. training.num_train_epochs=1", nargs="*", metavar="key=value"
)
TASK = argument("--task", "task of a model that was not trained by bertkit")
REVISION = argument("--revision", "commit, tag or branch of a Hub id", metavar="NAME")
COLUMN = argument("--column", "the column of texts", default="text", metavar="NAME")
COLUMNS = argument("--column", "column of the input to read as text", action="append", default=[], metavar="text=NAME")
LAYOUT = argument("rest", "how the file is written, e.g. data.delimiter=';'", nargs="*", metavar="data.KEY=VALUE")
SHARD = argument(
    "--shard", "with --input: the i-th of n parts of the rows; concatenated, they are the whole", metavar="i/n"
)
JSON = flag("--json", "print JSON", dest="as_json")
ENGINE = (
    argument("--engine", "ray: models in the workers of a Ray cluster", choices=("local", "ray"), default="local"),
    argument("--address", "with ray: the cluster's; default: RAY_ADDRESS, or this machine", metavar="HOST:PORT"),
    argument(
        "--workers",
        "with ray: how many; default: one per GPU, or else per core",
        dest="ray_workers",
        type=int,
        metavar="N",
    ),
)
DECISIONS = (
    argument("--threshold", "in place of the fitted one; for single labels, unsure below it", type=float, metavar="X"),
    argument(
        "--coverage",
        "sets or intervals with the right label or number at this probability",
        type=float,
        metavar="X",
    ),
    argument("--top-k", "scores of the best labels only", type=int, metavar="N"),
)
