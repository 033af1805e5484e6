"""What each layer encodes: a table of validation scores over layers and their combinations.

After the table of feature-based results of Devlin et al. 2019, section 5.3, with a linear classifier instead
of
their BiLSTM, and one vector per text instead of one per word. All layers are read in one pass.

Run:       python recipes/features/layers.py
           python recipes/features/layers.py --train train.tsv --validation dev.tsv --text sentence --label
           label

Expected:  on the 160 validation rows of sample:sentiment (all-MiniLM-L6-v2, bf16 on a CPU): embeddings 0.675,
layers 1 to 6: 0.719 0.725 0.819 0.794 0.756 0.706, last four concatenated 0.781. The encoder was tuned for
the topic of a text, not its sentiment: its last layer is worse than its middle ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertkit import Features, samples_folder


def main() -> None:
    sample = samples_folder() / "sentiment"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--train", type=Path, default=sample / "train.jsonl", help="csv, tsv or jsonl")
    parser.add_argument("--validation", type=Path, default=sample / "validation.jsonl")
    parser.add_argument("--text", default="text", help="the column of the texts")
    parser.add_argument("--label", default="label", help="the column of the labels")
    parser.add_argument("--layers", type=int, default=6, help="the number of layers of the model")
    parser.add_argument("--pool", default="mean", choices=["mean", "cls"])
    args = parser.parse_args()

    train, validation = (
        pd.read_json(file, lines=True)
        if file.suffix == ".jsonl"
        else pd.read_csv(file, sep=None, engine="python")
        for file in (args.train, args.validation)
    )
    count = args.layers
    every = Features(args.model, layers=range(count + 1), pool=args.pool).fit([])
    # (texts, layers + 1, size): pooling by mean or cls goes with sums over layers, in any order.
    given, asked = (
        every.transform(rows[args.text]).reshape(len(rows), count + 1, -1) for rows in (train, validation)
    )

    def score(chosen: list[int], combine: str) -> str:
        parts = given[:, chosen], asked[:, chosen]
        known, new = (part.reshape(len(part), -1) if combine == "concat" else part.sum(1) for part in parts)
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
        model.fit(known, train[args.label])
        return f"{model.score(new, validation[args.label]):.4f}"

    last, half = list(range(count - 3, count + 1)), list(range(count // 2 + 1, count + 1))
    print("accuracy on validation of layers:")
    print(f"{'embeddings':24}{score([0], 'concat')}")
    for layer in range(1, count + 1):
        print(f"{f'layer {layer}':24}{score([layer], 'concat')}")
    print(f"{'sum of the last four':24}{score(last, 'sum')}")
    print(f"{'last four side by side':24}{score(last, 'concat')}")
    print(f"{'sum of all layers':24}{score(list(range(1, count + 1)), 'sum')}")
    print(f"{'upper half, sum':24}{score(half, 'sum')}")
    print(f"{len(train):,} rows of train, {len(validation):,} of validation, pooling by {args.pool}")


if __name__ == "__main__":
    main()
