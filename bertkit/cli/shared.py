"""What the commands share: how one is declared, the arguments that several have, and how they print."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from bertkit import processes
from bertkit.errors import UserError
from bertkit.text import Json, printable

Argument = tuple[str, Json]  # what `add_argument` of argparse takes


SECTIONS = {  # of a command's help; what is not named stands under argparse's own titles
    "columns": "init:--text init:--label",
    "input": "--input --data --split --context --column --documents --unlabelled --shard",
    "output": "--output --output-dir --resume --changed --format --form --json --raw-cells",
    "model": "--model --task --revision --rerank --depth --store",
    "thresholds and labels": "--threshold --coverage --top-k --precision --recall --label --overall",
}


class Command(NamedTuple):
    """One command. run: called with its arguments by name; returns the exit code, or None for 0."""

    name: str  # "train", or "tokenizer train" for an action of a group
    help: str
    run: Callable[..., int | None]
    arguments: tuple[Argument, ...]
    example: str
    page: str  # of the documentation, below docs/
    interrupted: str  # how to continue after Ctrl-C


def command(
    help: str, *arguments: Argument, example: str, page: str, interrupted: str = ""
) -> Callable[[Callable[..., int | None]], Command]:
    """Declares the command that a function runs; its name is the function's, with spaces for underscores."""
    return lambda run: Command(
        run.__name__.replace("_", " "), help, run, arguments, example, page, interrupted
    )


ONEDNN_CACHE_SIZE = (
    "64"  # kernels: one is compiled for each layer and shape of a batch, and batches go by length
)


def one_process(run: Callable[..., None]) -> Callable[..., None]:
    """Require one process of a command that runs a model: several, as torchrun starts them, need `--shard`.

    It also bounds the memory of oneDNN's kernels, where the environment does not. The command raises
    UserError.
    """

    @wraps(run)
    def checked(**options: Any) -> None:
        # read when torch first computes
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", ONEDNN_CACHE_SIZE)
        if (count := processes.world()) > 1 and not options.get("shard"):
            fix = "Start one process, without torchrun"
            fix += (
                "; or give each process a part of the input: --shard $((RANK + 1))/$WORLD_SIZE."
                if "shard" in options
                else "."
            )
            raise UserError("WORLD_SIZE", f"all {count} processes would do the same work", fix)
        return run(**options)

    return checked


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
    return argument(name, help, metavar=metavar, type=_at_home, **options)


def _at_home(text: str) -> Path:
    """A path; also of `--output=~/x`, in which a shell leaves ~ as it is."""
    return Path(os.path.expanduser(text))


def say(*values: object, end: str = "\n", file: TextIO | None = None) -> None:
    """Print to stdout or `file`, with control characters escaped, so that no text of data or models uses
    them.
    """
    print(printable(" ".join(map(str, values))), end=end, file=file)


class LogFormatter(logging.Formatter):
    """A log record as its message, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def column_names(pairs: Sequence[str]) -> dict[str, str]:
    """Column -> its name in the file, from values of COLUMNS. Raises UserError."""
    names = dict(pair.partition("=")[::2] for pair in pairs)
    if "" in names.values():
        what = f"expected COLUMN=NAME, found {' '.join(pairs)}"
        raise UserError("--column", what, "Map a column to its name in the file: --column text=body")
    return names


ROWS = "csv, jsonl, parquet, txt with a text per line, or another `data.format`"
RUN = argument("source", "a run folder, a model folder or a Hub id", metavar="RUN")
MODEL = argument("source", "a Hub id, a model folder or a run folder", metavar="MODEL")
RECIPE = argument("recipe", "a shipped recipe's name, or a file")
OVERRIDES = argument(
    "rest",
    "change a key, e.g. training.num_train_epochs=1; ~key deletes one; all keys: bertkit show --schema",
    nargs="*",
    default=[],
    metavar="key=value",
)
TASK = argument(
    "--task",
    "the task of a model not trained by bertkit: text-classification, token-classification, "
    "question-answering, sentence-similarity, retrieval, text-ranking, …",
)
REVISION = argument("--revision", "commit, tag or branch of a Hub id", metavar="NAME")
COLUMN = argument("--column", "the column of texts", default="text", metavar="NAME")
COLUMNS = argument(
    "--column", "map a column of the input, e.g. text=body", action="append", default=[], metavar="text=NAME"
)
LAYOUT = argument(
    "rest", "layout of the file, e.g. data.delimiter=';'", nargs="*", default=[], metavar="data.KEY=VALUE"
)
SHARD = argument(
    "--shard",
    "with --input: the i-th of n parts of the rows; concatenated, they are the whole",
    metavar="i/n",
)
WITHOUT = "Add --input FILE, or leave the option out."
JSON = flag("--json", "print JSON", dest="as_json")
DECISIONS = (
    argument(
        "--threshold",
        "decision threshold, in place of the fitted one; a single label below it is unsure",
        type=float,
        metavar="X",
    ),
    argument(
        "--coverage", "prediction sets or intervals with this coverage, e.g. 0.9", type=float, metavar="X"
    ),
    argument("--top-k", "return only the N best labels", type=int, metavar="N"),
)
