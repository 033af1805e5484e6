"""Steps of a retrieval model's training: queries and documents in one batch, or each by themselves.

Forward, loss and backward of the same batches by both, in turn, in one process, as in training; the first
round is not counted. Prints seconds a step, and the median of the rounds' ratios.

Run:  python benchmarks/sides.py scifact [--rows 64] [--rounds 3] [model.name=…]
"""

from __future__ import annotations

import argparse
import statistics
import time
from unittest.mock import patch

from bertkit.encoding.padding import Collator
from bertkit.models.cpu_kernels import faster
from bertkit.models.malloc import memory_kept
from bertkit.recipe.recipe import load_recipe
from bertkit.tasks import vector_task
from bertkit.training.job import build, prepare_job

PAIRS = 32  # of a batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args, overrides = parser.parse_known_args()
    job, _ = prepare_job(load_recipe("scifact-minilm", [f"data.source={args.folder}", *overrides]))
    task = job.task
    model = build(job).train()
    collate = Collator.of(task.tokenizer, task.padding)
    starts = range(0, 2 * args.rows, 2 * PAIRS)
    batches = [collate(task.examples(job.features, range(start, start + 2 * PAIRS))) for start in starts]

    def seconds(wide: float) -> float:
        started = time.perf_counter()
        with patch.object(vector_task, "WIDE", wide):
            for batch in batches:
                model.zero_grad()
                task.loss(task.forward(model, batch), batch).backward()
        return (time.perf_counter() - started) / len(batches)

    ratios = []
    with memory_kept(), faster(model.device):
        for number in range(args.rounds + 1):
            together = seconds(float("inf"))
            apart = seconds(vector_task.WIDE)
            print(f"{together:.2f} s together, {apart:.2f} s apart", flush=True)
            if number:
                ratios.append(together / apart)
    print(f"median {statistics.median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
