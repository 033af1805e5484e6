"""Peak memory of predicting many short rows from csv to jsonl, above the loaded model, with a small model.

Run:  python benchmarks/predict_memory.py [--rows 1000000]
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path

from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from bertkit.inference.predict_file import predict
from bertkit.inference.predictor import load

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(1000))]


def peak() -> float:
    """Peak resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as room:
        folder, source, target = Path(room) / "model", Path(room) / "rows.csv", Path(room) / "answers.jsonl"
        config = BertConfig(
            vocab_size=len(WORDS),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
        )
        BertForSequenceClassification(config).save_pretrained(folder)
        BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)}, model_max_length=512).save_pretrained(
            folder
        )
        with source.open("w") as file:
            file.write("id,text\n")
            for i in range(rows):
                file.write(f"{i},{' '.join(rng.choice(WORDS[5:]) for _ in range(rng.randint(2, 8)))}\n")
        predictor = load(folder, task="text-classification")
        predictor("warm up")
        before, started = peak(), time.perf_counter()
        count = predict(folder, source, target)
        seconds = time.perf_counter() - started
        with target.open() as file:
            assert sum(1 for _ in file) == count == rows
    print(f"{count:,} rows in {seconds:.0f} s ({count / seconds:,.0f} rows/s)")
    print(f"peak memory {peak():.0f} MB, {peak() - before:.0f} MB above the loaded model")


if __name__ == "__main__":
    main()
