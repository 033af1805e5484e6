"""Few rows per label: draws of training rows, and methods compared on the held-out rows; it needs no bertkit.

Used by few_shot.py, and by few_shot_setfit.py in an environment of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeAlias

import pandas
from sklearn.metrics import accuracy_score, f1_score

Method: TypeAlias = Callable[[pandas.DataFrame, pandas.DataFrame, int], Sequence[str]]
"""Training rows, held-out rows and the number of the draw -> the labels of the held-out rows."""

SCORES: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy_score,
    "f1_macro": lambda gold, found: f1_score(gold, found, average="macro"),
}


def arguments(description: str) -> argparse.ArgumentParser:
    """The arguments that `compare` reads, and the model."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="label")
    parser.add_argument("--dev", type=Path)
    parser.add_argument("--dev-rows", type=int, default=2000, help="at most so many held-out rows")
    parser.add_argument("--shots", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--metric", choices=SCORES, default="accuracy")
    return parser


def read(file: Path, text: str, label: str) -> pandas.DataFrame:
    """The columns `text` and `label`."""
    rows = pandas.read_csv(file, sep="\t" if file.suffix == ".tsv" else ",", dtype=str, keep_default_na=False)
    return rows.rename(columns={text: "text", label: "label"})[["text", "label"]]


def compare(args: argparse.Namespace, methods: Mapping[str, Method]) -> None:
    """Print each method's score and seconds on each draw, and a table of the means."""
    rows, table = read(args.file, args.text, args.label), []
    for shots in args.shots:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
        for draw in range(args.draws):
            train = rows.sample(frac=1, random_state=draw).groupby("label").head(shots)
            dev = read(args.dev, args.text, args.label) if args.dev else rows.drop(train.index)
            dev = dev.sample(min(len(dev), args.dev_rows), random_state=0)
            for name, method in methods.items():
                started = time.perf_counter()
                labels = method(train, dev, draw)
                seconds = time.perf_counter() - started
                score = SCORES[args.metric](dev["label"], labels)
                found[name].append((score, seconds))
                print(
                    f"{shots} rows per label, draw {draw}, {name}: {score:.4f}, {seconds:.1f} s", flush=True
                )
        for name, each in found.items():
            scores, times = zip(*each, strict=True)
            spread = f" ± {stdev(scores):.4f}" if len(scores) > 1 else ""
            table.append([shots, len(train), name, f"{fmean(scores):.4f}{spread}", f"{fmean(times):.1f}"])
    header = ["rows per label", "rows", "method", f"{args.metric}, mean ± sd", "seconds"]
    print(pandas.DataFrame(table, columns=header).to_string(index=False))
