"""Few rows per label: the methods of text classification beside a linear model on frozen vectors, made by hand.

For each number of rows per label and each draw of them: the score on held-out rows, and the seconds until their labels.
Nothing is fitted on the held-out rows. By hand: bertkit.Features and scikit-learn's LogisticRegression, with C = 1,
and with C by its own cross-validation.

Run:  python benchmarks/few_shot.py FILE --text COLUMN --label COLUMN [--dev FILE] [--shots 8 16 64] [--draws 3]
FILE is csv or tsv. Without --dev, the rows of FILE that are not drawn are held out.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import accuracy_score, f1_score

import bertkit
from bertkit.text import columns

SCORES: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy_score,
    "f1_macro": lambda gold, found: f1_score(gold, found, average="macro"),
}
STRENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0)


def read(file: Path, text: str, label: str) -> pandas.DataFrame:
    """The columns `text` and `label`."""
    rows = pandas.read_csv(file, sep="\t" if file.suffix == ".tsv" else ",", dtype=str, keep_default_na=False)
    return rows.rename(columns={text: "text", label: "label"})[["text", "label"]]


def by_hand(kind: str, train: pandas.DataFrame, dev: pandas.DataFrame, args: argparse.Namespace) -> Any:
    """The labels of the held-out rows, by a linear model on frozen vectors."""
    encoder = bertkit.Features(args.model, max_length=args.max_length)
    x, x_dev = encoder.fit_transform(train["text"]), encoder.transform(dev["text"])
    x, x_dev = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, x_dev))
    model: Any = LogisticRegression(max_iter=1000)
    if kind == "C by CV":
        model = LogisticRegressionCV(
            Cs=STRENGTHS, cv=min(5, int(train["label"].value_counts().min())), scoring="neg_log_loss", max_iter=1000,
            l1_ratios=(0,), use_legacy_attributes=False,
        )  # fmt: skip
    return model.fit(x, train["label"]).predict(x_dev)


def by_method(method: str, train: pandas.DataFrame, dev: pandas.DataFrame, seed: int, args: argparse.Namespace) -> Any:
    """The labels of the held-out rows, by bertkit.train."""
    with tempfile.TemporaryDirectory() as folder:
        run = bertkit.train(
            {
                "task": {"name": "text-classification", "method": None if method == "default" else method},
                "model": {"name": args.model, "max_length": args.max_length},
            },
            {"train": train, "test": dev},
            Path(folder) / "run",
            seeds=[seed],
            verify=False,
            explain=False,
        )
        return [each["label"] for each in bertkit.load(run.folder)(dev["text"].tolist())]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="label")
    parser.add_argument("--dev", type=Path)
    parser.add_argument("--dev-rows", type=int, default=2000, help="at most so many held-out rows")
    parser.add_argument("--shots", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["head", "contrastive", "full", "auto"], help="default: null")
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--metric", choices=SCORES, default="accuracy")
    args = parser.parse_args()
    rows = read(args.file, args.text, args.label)
    table = [["rows per label", "rows", "method", f"{args.metric}, mean ± sd", "seconds"]]
    for shots in args.shots:
        found: dict[str, list[tuple[float, float]]] = {}
        for draw in range(args.draws):
            train = rows.sample(frac=1, random_state=draw).groupby("label").head(shots)
            dev = read(args.dev, args.text, args.label) if args.dev else rows.drop(train.index)
            dev = dev.sample(min(len(dev), args.dev_rows), random_state=0)
            for method in ("by hand, C = 1", "by hand, C by CV", *args.methods):
                started = time.perf_counter()
                name = method.removeprefix("by hand, ")
                labels = (
                    by_method(method, train, dev, draw, args) if name == method else by_hand(name, train, dev, args)
                )
                seconds = time.perf_counter() - started
                score = SCORES[args.metric](dev["label"], labels)
                found.setdefault(method, []).append((score, seconds))
                print(f"{shots} rows per label, draw {draw}, {method}: {score:.4f}, {seconds:.1f} s", flush=True)
        for method, each in found.items():
            scores, times = zip(*each, strict=True)
            spread = f" ± {stdev(scores):.4f}" if len(scores) > 1 else ""
            shown = [str(shots), str(len(train)), method, f"{fmean(scores):.4f}{spread}", f"{fmean(times):.1f}"]
            table.append(shown)
    print(columns(table))


if __name__ == "__main__":
    main()
