"""Rows per second in training and prediction, and peak memory, by encoder and length of texts.

Each line is a fresh process: text classification in batches of 32 with random weights, which are as fast as
trained ones. Texts have from half to one and a half times as many tokens as the line says.
Run:  python benchmarks/time_and_memory.py [--encoders minilm base] [--tokens 16 64 256] [--steps 20]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = ("good", "bad", "film", "time", "people", "year", "work", "life", "day", "house", "water", "night")
ENCODERS = {  # layers, hidden size
    "minilm": (6, 384),
    "bge-small": (12, 384),
    "base": (12, 768),
}
TOKENIZER = "sentence-transformers/all-MiniLM-L6-v2"
BATCH = 32


def rows(tokens: int, count: int) -> list[dict[str, str]]:
    """Rows of one-token words; two more tokens are special."""
    rng = random.Random(tokens)
    lengths = [rng.randint(tokens // 2, 3 * tokens // 2) - 2 for _ in range(count)]
    return [{"text": " ".join(rng.choices(WORDS, k=n)), "label": rng.choice(WORDS[:2])} for n in lengths]


def measure(encoder: str, tokens: int, steps: int) -> None:
    """Print one line as JSON: rows per second of training and of prediction, MB at the most."""
    import bertkit

    layers, hidden = ENCODERS[encoder]
    config = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": 12,
        "intermediate_size": 4 * hidden,
    }
    with tempfile.TemporaryDirectory() as folder:
        run = bertkit.train(
            "text-classification",
            Path(folder, "run"),
            data={"train": rows(tokens, steps * BATCH)},
            model={"config": config, "tokenizer": TOKENIZER, "max_length": 2 * tokens},
            training={
                "max_steps": steps,
                "per_device_train_batch_size": BATCH,
                "save_strategy": "no",
                "eval_strategy": "no",
            },
            explain=False,
            verify=False,
        )
        training = steps * BATCH / run.results["seeds"][0]["seconds"]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        predictor = run.load()
        texts = [row["text"] for row in rows(tokens, steps * BATCH)]
        predictor(texts[:BATCH])
        started = time.perf_counter()
        predictor(texts)
        prediction = len(texts) / (time.perf_counter() - started)
    print(json.dumps({"training": training, "prediction": prediction, "memory": memory}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoders", nargs="+", choices=ENCODERS, default=[*ENCODERS])
    parser.add_argument("--tokens", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        measure(args.cell[0], int(args.cell[1]), args.steps)
        return
    print("| encoder | tokens | training, rows/s | prediction, rows/s | memory, MB |\n|---|---|---|---|---|")
    for encoder in args.encoders:
        for tokens in args.tokens:
            cell = [sys.executable, __file__, "--cell", encoder, str(tokens), "--steps", str(args.steps)]
            done = subprocess.run(cell, check=True, capture_output=True, text=True)
            result = json.loads(done.stdout.splitlines()[-1])
            numbers = (result["training"], result["prediction"], result["memory"])
            print(f"| {encoder} | {tokens} | {' | '.join(f'{n:,.0f}' for n in numbers)} |", flush=True)


if __name__ == "__main__":
    main()
