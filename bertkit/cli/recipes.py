"""The commands about recipes: init, recipes, show, copy, check, train, sweep, audit; and tokenizer train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bertkit
from bertkit import processes
from bertkit.cli.shared import LAYOUT, OVERRIDES, RECIPE, ROWS, argument, command, flag, path, say
from bertkit.errors import UserError
from bertkit.recipe import shipped_recipes
from bertkit.text import columns, shell_word


@command(
    "write a first recipe for a file: task, columns and settings are guessed",
    argument("data", "csv, xlsx, jsonl, …, or a folder of train.csv or label/*.txt", metavar="FILE"),
    argument("--text", "the column of texts; twice for a pair", action="append", default=[], metavar="NAME"),
    argument(
        "--label",
        "the column to predict; several columns of 0 and 1 as A,B",
        action="append",
        default=[],
        metavar="NAME",
    ),
    argument("--task", "the task, such as text-classification"),
    argument("--model", "an encoder: a Hub id or a folder", metavar="NAME"),
    path("--output", "the new recipe; default: in this folder, by the file's name", "RECIPE"),
    LAYOUT,
    example="bertkit init tickets.csv",
    page="your-data",
)
def init(data: str, rest: list[str], output: Path | None, **options: Any) -> None:
    from bertkit.data.reader import uncompressed
    from bertkit.files import write_text

    stem = uncompressed(Path(data).absolute()).stem
    file = output or Path(f"{stem}.yaml")
    if file.exists():
        raise UserError(file, "already exists", "Choose another file: --output RECIPE.")
    first = bertkit.init(data, layout=rest, **options)
    write_text(file, first.text(file))
    say("\n".join(first.why))
    say(f"\n{file} is yours. Next:")
    say(f"bertkit check {shell_word(file)}")
    say(f"bertkit train {shell_word(file)} --output-dir {shell_word(f'runs/{file.stem}')}")


@command("list the shipped recipes: task, encoder, expected score", example="bertkit recipes", page="recipes")
def recipes() -> None:
    from bertkit.recipe.recipe import MultiTaskRecipe, read

    rows = [["recipe", "task", "encoder", "expected"]]
    for name, file in sorted(shipped_recipes().items(), key=lambda item: (item[1].parent.name, item[0])):
        recipe = read(file, check_files=False)
        parts = recipe.parts if isinstance(recipe, MultiTaskRecipe) else {recipe.task.name: recipe}
        ranges = [
            f"{metric} {bounds[0]}–{bounds[1]}"
            for part in parts.values()
            for metric, bounds in (part.expected or {}).items()
            if isinstance(bounds, list)
        ]
        rows.append([name, " + ".join(parts), recipe.model.title, ", ".join(ranges) or "none stated"])
    say(columns(rows))


@command(
    "print a recipe with bertkit's defaults filled in",
    argument("recipe", "a shipped recipe's name, or a file", nargs="?"),
    OVERRIDES,
    flag("--schema", "print the JSON Schema of recipes, for editors"),
    example="bertkit show quickstart training.num_train_epochs=2",
    page="recipes",
)
def show(recipe: str | None, rest: list[str], schema: bool) -> None:
    from bertkit.recipe.json_schema import json_schema
    from bertkit.recipe.recipe import read, to_yaml

    if schema:
        say(json.dumps(json_schema(), indent=2))
    elif recipe is None:
        raise UserError(
            "", "no recipe given", "Use a file, or a shipped recipe: `bertkit recipes` lists them."
        )
    else:
        say(to_yaml(read(recipe, overrides=rest, check_files=False)), end="")


@command(
    "copy a recipe to a file of your own, which reads the same data",
    RECIPE,
    argument("file", "a new file", type=Path),
    example="bertkit copy quickstart my.yaml",
    page="recipes",
)
def copy(recipe: str, file: Path) -> None:
    from bertkit.files import write_text
    from bertkit.recipe.recipe import copied

    text = copied(recipe, file)
    if file.exists():
        raise UserError(file, "already exists", "Choose another file.")
    write_text(file, text)
    say(f"{file} is yours. Next: bertkit check {shell_word(file)}")


@command(
    "check a recipe and its data, without training",
    RECIPE,
    OVERRIDES,
    example="bertkit check my.yaml",
    page="command-line",
)
def check(recipe: str, rest: list[str]) -> None:
    from bertkit.recipe.recipe import read

    loaded = read(recipe, overrides=rest, own_metrics=False)
    for line in bertkit.check(loaded).lines():
        say(line)


@command(
    "train a recipe into a run folder",
    RECIPE,
    OVERRIDES,
    path("--output-dir", "a new or empty folder", "RUN", required=True),
    flag("--resume", "continue an interrupted run"),
    flag("--changed", "with --resume: continue even if recipe, data or libraries have changed"),
    example="bertkit train quickstart --output-dir runs/quickstart",
    page="training",
    interrupted="continue with the same command and --resume",
)
def train(recipe: str, rest: list[str], output_dir: Path, resume: bool, changed: bool) -> None:
    from bertkit.recipe.recipe import read

    if changed and not resume:
        raise UserError("", "--changed works only with --resume", "Use both, or neither.")
    loaded = read(recipe, overrides=rest, own_metrics=False)
    from bertkit.report.score_tables import after_training

    run = bertkit.train(loaded, output_dir, resume=resume, changed=changed)
    if run.finished and processes.first():
        say(after_training(run.folder, run.results))


@command(
    "search for the best settings of a recipe",
    RECIPE,
    OVERRIDES,
    path("--space", "YAML: key of the recipe -> {low, high, log, step}, or a list of choices", required=True),
    path("--output-dir", "a new folder, or a sweep to continue", "DIR", required=True),
    argument("--trials", "number of trials", default=20),
    argument("--timeout", "no trial starts after this time", type=float, metavar="SECONDS"),
    argument(
        "--confirm",
        "new seeds on which the winner and the base recipe are trained",
        default=3,
        metavar="SEEDS",
    ),
    example="bertkit sweep my.yaml --space space.yaml --output-dir runs/sweep",
    page="sweeps",
    interrupted="the same command continues from here",
)
def sweep(recipe: str, rest: list[str], space: Path, output_dir: Path, **limits: Any) -> None:
    loaded = bertkit.load_recipe(recipe, rest, own_metrics=False)
    done = bertkit.sweep(loaded, space, output_dir, **limits)
    say(f"{done.table()}\n")
    say("\n".join(done.results["verdict"]))
    say(f"\nrecipe: {done.folder}/best.yaml\nrun: {done.folder}/best\nall trials: {done.folder}/sweep.json")


@command(
    "find label errors and duplicates, and choose rows to label next",
    argument("source", "a shipped recipe's name, a file, or a run", metavar="RECIPE"),
    OVERRIDES,
    path("--output-dir", "a new folder, or an audit to continue", "DIR", required=True),
    path("--unlabelled", "rows without labels, of which the most useful to label are chosen"),
    argument("--next", "with --unlabelled: how many rows to choose; default: 100", type=int, metavar="N"),
    example="bertkit audit my.yaml --output-dir audits/mine",
    page="audit",
    interrupted="the same command continues from here",
)
def audit(source: str, rest: list[str], output_dir: Path, **files: Any) -> None:
    done = bertkit.audit(source, output_dir, overrides=rest, **files)
    if processes.first():
        say("\n".join(part.summary for part in done.parts))
        say(f"\nall parts: {done.folder}/audit.html")


@command(
    "train a tokenizer on texts: WordPiece or byte-level BPE",
    LAYOUT,
    argument("--input", ROWS, nargs="+", required=True, metavar="FILE"),
    path("--output", "a new folder", "DIR", required=True),
    argument("--vocab-size", "tokens", default=30522),
    flag(
        "--byte-level",
        "BPE of bytes, as RoBERTa's, which keeps texts as they are: for models that generate texts",
    ),
    flag("--cased", "keep case and accents; by default they are removed"),
    argument("--min-frequency", "minimum count of a pair to be merged", default=2),
    argument("--limit-alphabet", "maximum number of different characters", type=int),
    argument("--column", "columns of texts", dest="columns", default=["text"], nargs="+", metavar="NAME"),
    argument("--max-length", "maximum tokens of the model's input", default=512),
    example="bertkit tokenizer train --input books.txt --output tokenizer",
    page="tokenizer",
)
def tokenizer_train(
    rest: list[str], input: list[str], output: Path, columns: list[str], **options: Any
) -> None:
    words = (*input, *rest, *columns)
    overrides = [word for word in words if word.lstrip("~").startswith("data.") and "=" in word]
    files = [word for word in (*input, *rest) if word not in overrides]
    names = [name for name in columns if name not in overrides]
    bertkit.train_tokenizer(files, output, columns=names, overrides=overrides, **options)
