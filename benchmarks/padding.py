"""Padding: the share of slots that hold no word piece, in training and for answers, by rows and by tokens.

In brackets the share of batches without any, whose model gets no mask.

Run:  python benchmarks/padding.py DATA [--tokens 4096]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertkit import data as sources
from bertkit.encoding.padding import batches_by_length
from bertkit.engine.batching import LengthBatches, TokenBatches
from bertkit.models.encoder import load_tokenizer, resolve_encoder
from bertkit.sections import DataSpec, ModelSpec
from bertkit.tasks import get_task
from bertkit.tasks.base import prepare

SETS = {
    "SST-2": ("text-classification", "sst2/train.tsv", {"text": "sentence"}, 128),
    "WNUT-17": ("token-classification", "wnut17/train.conll", {}, 128),
    "SQuAD v1.1, validation": ("question-answering", "squad_v1/dev.json", {}, 384),
}
EPOCHS = 3


def padding(lengths: np.ndarray, batches: Sequence[Sequence[int]]) -> str:
    """The share of padding in these batches, and of batches without."""
    slots = [len(batch) * int(lengths[batch].max()) for batch in batches]
    real = [int(lengths[batch].sum()) for batch in batches]
    return f"{1 - sum(real) / sum(slots):.2%} ({np.equal(slots, real).mean():.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    args = parser.parse_args()
    tokenizer = load_tokenizer(
        resolve_encoder(ModelSpec(name="sentence-transformers/all-MiniLM-L6-v2")).folder
    )
    print(f"{'':24}  training: 32 rows  {args.tokens} tokens  answers: 32 rows")
    for title, (name, file, columns, limit) in SETS.items():
        kind = get_task(name)
        options = kind.Options.model_validate({"name": name})
        spec = DataSpec(source={"train": str(args.folder / file)}, columns=columns)
        rows = sources.load(spec, kind.schema, kind.rules(options)).rows["train"]
        task = prepare(kind, options, tokenizer, limit, rows, [])
        features = task.encode(rows)
        lengths, units = np.asarray(features["length"][:]), task.units(features)
        shares, sizes = [], []
        for sampler in (
            LengthBatches(lengths, units, batch_size=32),
            TokenBatches(lengths, units, tokens=args.tokens),
        ):
            batches: list[list[int]] = []
            for epoch in range(EPOCHS):
                sampler.set_epoch(epoch)
                batches += sampler
            shares.append(padding(lengths, batches))
            sizes.append(len(batches) // EPOCHS)
        starts = range(0, len(lengths), task.chunk_size)
        answers = [
            part[batch] for s in starts for part in [np.arange(s, len(lengths))[: task.chunk_size]]
            for batch in batches_by_length(lengths[part], 32)
        ]  # fmt: skip
        shares.append(padding(lengths, answers))
        print(
            f"{title:24}  {shares[0]:>17}  {shares[1]:>11}  {shares[2]:>16}  batches: {sizes[0]}, {sizes[1]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
