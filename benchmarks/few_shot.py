"""Few rows per label: the methods of text classification beside a linear model on frozen vectors, made by
hand.

For each number of rows per label and each draw of them: the score on held-out rows, and the seconds until
their labels. Nothing is fitted on the held-out rows. By hand: bertkit.Features and scikit-learn's
LogisticRegression, with C = 1, and with C by its own cross-validation.

Run:  python benchmarks/few_shot.py FILE --text COLUMN --label COLUMN [--dev FILE] [--shots 8 16 64] [--draws
3]
FILE is csv or tsv. Without --dev, the rows of FILE that are not drawn are held out.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from few_shot_rows import Method, arguments, compare
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

import bertkit

STRENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0)


def by_hand(
    kind: str, args: argparse.Namespace, train: pandas.DataFrame, dev: pandas.DataFrame, seed: int
) -> Sequence[str]:
    """The labels of the held-out rows, by a linear model on frozen vectors."""
    encoder = bertkit.Features(args.model, max_length=args.max_length)
    x, x_dev = encoder.fit_transform(train["text"]), encoder.transform(dev["text"])
    x, x_dev = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, x_dev))
    model: Any = LogisticRegression(max_iter=1000)
    folds = min(5, int(train["label"].value_counts().min()))
    if kind == "C by CV" and folds > 1:  # of one row nothing can be held out
        model = LogisticRegressionCV(
            Cs=STRENGTHS,
            cv=folds,
            scoring="neg_log_loss",
            max_iter=1000,
            l1_ratios=(0,),
            use_legacy_attributes=False,
        )
    labels: Sequence[str] = model.fit(x, train["label"]).predict(x_dev)
    return labels


def by_method(
    method: str, args: argparse.Namespace, train: pandas.DataFrame, dev: pandas.DataFrame, seed: int
) -> Sequence[str]:
    """The labels of the held-out rows, by bertkit.train."""
    with tempfile.TemporaryDirectory() as folder:
        run = bertkit.train(
            {
                "task": {"name": "text-classification", "method": None if method == "default" else method},
                "model": {"name": args.model, "max_length": args.max_length},
            },
            Path(folder) / "run",
            data={"train": train, "test": dev},
            seeds=[seed],
            verify=False,
            explain=False,
        )
        return [each["label"] for each in bertkit.load(run.folder)(dev["text"].tolist())]


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--methods", nargs="+", default=["head", "contrastive", "full"], help="default: null")
    parser.add_argument("--max-length", type=int, default=128)
    args = parser.parse_args()
    methods: dict[str, Method] = {
        f"by hand, {kind}": partial(by_hand, kind, args) for kind in ("C = 1", "C by CV")
    }
    compare(args, methods | {method: partial(by_method, method, args) for method in args.methods})


if __name__ == "__main__":
    main()
