"""What each layer encodes: a table of validation scores over layers and their combinations.

After the table of feature-based results of Devlin et al. 2019, section 5.3, with a linear classifier instead of
their BiLSTM, and one vector per text instead of one per word. All layers are read in one pass.

Run:       python recipes/features/layers.py
           python recipes/features/layers.py --train train.tsv --validation dev.tsv --text sentence --label label

Expected:  on the 160 validation rows of sample:sentiment (all-MiniLM-L6-v2, bf16 on a CPU): embeddings 0.675, layers 1
to 6: 0.719 0.725 0.819 0.794 0.756 0.706, last four concatenated 0.781. The encoder was tuned for the topic of a
text, not its sentiment: its last layer is worse than its middle ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertkit.data.readers import read_rows
from bertkit.data.sources import samples_folder
from bertkit.inference.features import Features
from bertkit.models.encoder import load_config, resolve_encoder
from bertkit.sections import DataSpec, ModelSpec
from bertkit.text import columns


def main() -> None:
    sample = samples_folder() / "sentiment"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--train", type=Path, default=sample / "train.jsonl", help="csv, tsv, json, jsonl or parquet")
    parser.add_argument("--validation", type=Path, default=sample / "validation.jsonl")
    parser.add_argument("--text", default="text", help="the column of the texts")
    parser.add_argument("--label", default="label", help="the column of the labels")
    parser.add_argument("--pool", default="mean", choices=["mean", "cls"])
    args = parser.parse_args()

    files = (args.train, args.validation)
    train, validation = ([row for _, row in read_rows(f, DataSpec(source=str(f)))] for f in files)
    count = load_config(resolve_encoder(ModelSpec(name=args.model)).folder).num_hidden_layers
    every = Features(args.model, layers=range(count + 1), pool=args.pool).fit([])
    # (texts, layers + 1, size): pooling by mean or cls goes with sums over layers, in any order.
    given, asked = (
        every.transform([row[args.text] for row in rows]).reshape(len(rows), count + 1, -1)
        for rows in (train, validation)
    )

    def score(chosen: list[int], combine: str) -> str:
        parts = given[:, chosen], asked[:, chosen]
        known, new = (part.reshape(len(part), -1) if combine == "concat" else part.sum(1) for part in parts)
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
        model.fit(known, [row[args.label] for row in train])
        return f"{model.score(new, [row[args.label] for row in validation]):.4f}"

    last, half = list(range(count - 3, count + 1)), list(range(count // 2 + 1, count + 1))
    table = [["layers", "accuracy on validation"], ["embeddings", score([0], "concat")]]
    table += [[f"layer {layer}", score([layer], "concat")] for layer in range(1, count + 1)]
    table += [["sum of the last four", score(last, "sum")], ["last four side by side", score(last, "concat")]]
    table += [["sum of all layers", score(list(range(1, count + 1)), "sum")], ["upper half, sum", score(half, "sum")]]
    print(columns(table))
    print(f"{len(train):,} rows of train, {len(validation):,} of validation, pooling by {args.pool}")


if __name__ == "__main__":
    main()
