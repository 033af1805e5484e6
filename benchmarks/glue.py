"""GLUE (Wang et al. 2018): one run per task over several seeds, and a table beside published figures of
BERT-base.

Scores are those of the development sets, times 100: mean ± sample standard deviation over the seeds.

Run:  python benchmarks/glue.py [--tasks cola mrpc] [--seeds 1 2 3] [--encoder minilm] [--data GLUE_data]
With --data the rows are GLUE's published files, FOLDER/CoLA/train.tsv and so on, else the Hub's. Runs are in
runs/glue/ENCODER. The same command again skips finished runs, continues an interrupted one, and prints the
table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from bertkit.errors import UserError
from bertkit.recipe import shipped_recipes
from bertkit.recipe.recipe import Recipe, load_recipe
from bertkit.recipe.yaml import parse
from bertkit.run import Run
from bertkit.training.train import train

ENCODERS = {"bert-base": "", "minilm": "-minilm"}  # name -> what the names of its recipes end with
FILES = "-minilm"  # recipes that read GLUE's files
STSB = {  # GLUE's own files; stsb-minilm reads those of the STS benchmark, which may be in the same folder
    "source": {"train": "STS-B/train.tsv", "validation": "STS-B/dev.tsv"},
    "columns": {"text_a": "sentence1", "text_b": "sentence2", "score": "score"},
}


class Figure(NamedTuple):
    """A line of the table."""

    task: str
    title: str
    split: str
    metric: str  # in results.json
    test: str  # BERT-base on GLUE's test set: Devlin et al. 2019, table 1
    dev: str  # bert-base-cased: transformers, examples/pytorch/text-classification/README.md


FIGURES = (
    Figure("cola", "CoLA", "validation", "matthews_correlation", "52.1", "56.53"),
    Figure("sst2", "SST-2", "validation", "accuracy", "93.5", "92.32"),
    Figure("mrpc", "MRPC", "validation", "f1/equivalent", "88.9", "88.85"),
    Figure("mrpc", "MRPC", "validation", "accuracy", "", "84.07"),
    Figure("stsb", "STS-B", "validation", "pearson", "", "88.64"),
    Figure("stsb", "STS-B", "validation", "spearman", "85.8", "88.48"),
    Figure("qqp", "QQP", "validation", "f1/duplicate", "71.2", "87.49"),
    Figure("qqp", "QQP", "validation", "accuracy", "", "90.71"),
    Figure("mnli", "MNLI, matched", "validation", "accuracy", "84.6", "83.91"),
    Figure("mnli", "MNLI, mismatched", "test", "accuracy", "83.4", "84.10"),
    Figure("qnli", "QNLI", "validation", "accuracy", "90.5", "90.66"),
    Figure("rte", "RTE", "validation", "accuracy", "66.4", "65.70"),
    Figure("wnli", "WNLI", "validation", "accuracy", "", "56.34"),
)
TASKS = tuple(dict.fromkeys(figure.task for figure in FIGURES))


def recipe_of(
    task: str, encoder: str, data: Path | None, seeds: list[int], overrides: Sequence[str]
) -> Recipe:
    """The shipped recipe of this task and encoder, with rows from GLUE's files or the Hub. Raises
    RecipeError.
    """
    recipe, rows = (
        parse(shipped_recipes()[f"{task}{ending}"].read_bytes()).data
        for ending in (ENCODERS[encoder], FILES if data else "")
    )
    section = STSB if data and task == "stsb" and (data / "STS-B").is_dir() else rows["data"]
    if data:
        section = {
            **section,
            "source": {split: str(data / file) for split, file in section["source"].items()},
        }
    changed = {"task": rows["task"], "data": section, "seeds": seeds, "expected": None}
    return load_recipe({**recipe, **changed}, overrides)


def table(runs: dict[str, Run]) -> str:
    """The scores of these finished runs, as Markdown."""
    lines = ["| task | metric | dev | BERT-base, test ¹ | bert-base-cased, dev ² |", "|---|---|---|---|---|"]
    for task, title, split, metric, test, dev in FIGURES:
        if task in runs:
            found = [seed["metrics"][split][metric] for seed in runs[task].results["seeds"]]
            lines.append(f"| {title} | {metric} | {over_seeds(found)} | {test or '–'} | {dev} |")
    notes = (
        "¹ Devlin et al. 2019, table 1.",
        "² transformers, examples/pytorch/text-classification/README.md: one seed.",
    )
    return "\n".join([*lines, "", *notes])


def over_seeds(scores: Sequence[float | None]) -> str:
    """Such as "84.31 ± 0.22"; "–" where a seed has no score."""
    values = [100 * score for score in scores if score is not None]
    if len(values) < len(scores):
        return "–"
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--encoder", choices=ENCODERS, default="bert-base")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="GLUE's published files; default: the Hub"
    )
    parser.add_argument("--output-dir", type=Path, default=Path("runs/glue"))
    parser.add_argument("--overrides", nargs="+", default=[], metavar="key=value", help="of all recipes")
    args = parser.parse_args(arguments)
    try:
        recipes = {
            task: recipe_of(task, args.encoder, args.data, args.seeds, args.overrides) for task in args.tasks
        }
        folder = args.output_dir / args.encoder
        runs = {task: train(recipe, folder / task, resume=True) for task, recipe in recipes.items()}
    except UserError as error:
        raise SystemExit(str(error)) from None
    print(table(runs))


if __name__ == "__main__":
    main()
