"""Logistic regression on frozen features: the encoder is not trained (Devlin et al. 2019, section 5.3).

Run:       python recipes/features/frozen.py
           python recipes/features/frozen.py --train train.tsv --test dev.tsv --text sentence --label label

The last four layers concatenated. C is selected on folds of train; vectors are cached on disk, so every fold
after
the first fit, and every later run, skips the encoder.

Expected:  accuracy 0.757, macro F1 0.757 on the 140 test rows of sample:sentiment (all-MiniLM-L6-v2, bf16 on
a CPU)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertkit import Features, samples_folder


def main() -> None:
    sample = samples_folder() / "sentiment"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--train", type=Path, default=sample / "train.jsonl", help="csv, tsv or jsonl")
    parser.add_argument("--test", type=Path, default=sample / "test.jsonl")
    parser.add_argument("--text", default="text", help="the column of the texts")
    parser.add_argument("--label", default="label", help="the column of the labels")
    parser.add_argument("--layers", type=int, nargs="+", default=[-4, -3, -2, -1])
    parser.add_argument("--pool", default="mean", choices=["mean", "cls", "max"])
    args = parser.parse_args()

    train, test = (
        pd.read_json(file, lines=True)
        if file.suffix == ".jsonl"
        else pd.read_csv(file, sep=None, engine="python")
        for file in (args.train, args.test)
    )
    head = make_pipeline(
        Features(args.model, layers=args.layers, pool=args.pool),
        StandardScaler(),
        LogisticRegression(max_iter=1000),
    )
    search = GridSearchCV(head, {"logisticregression__C": [1e-4, 1e-3, 1e-2, 1e-1]}, cv=5)
    search.fit(train[args.text], train[args.label])
    expected, found = test[args.label], search.predict(test[args.text])
    print(f"{len(train):,} rows of train, {len(test):,} of test, {search.best_params_}")
    print(
        f"accuracy {accuracy_score(expected, found):.4f}  macro F1 "
        f"{f1_score(expected, found, average='macro'):.4f}"
    )


if __name__ == "__main__":
    main()
