"""One model by torch and by ONNX Runtime: latency, rows/s, size, peak memory and metric, each in a fresh
process.

    python benchmarks/export.py RUN [--threads 2] [--rows 872] [--batches 1 32] [--lengths 16 128 512]

RUN is a finished run. It is exported twice beside nothing of its own (in a temporary folder), in fp32 and in
int8. The batches are of ids drawn at random, all of one length; latency is the median of a batch, after two
to warm up. The metric is the headline on the run's validation rows, by `Predictor`, so that it holds the
whole of the path."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from bertkit.tasks.base import evaluate as evaluate_task

VARIANTS = ("torch fp32", "torch default", "ONNX fp32", "ONNX int8")
SECONDS = 3.0  # that one cell is measured for, at least five batches


def measure(folder: Path, precision: str | None, spec: argparse.Namespace) -> dict[str, Any]:
    """Latency of a batch in ms by `batch x length`, peak memory in MB, metric and load time of one
    variant.
    """
    import numpy as np

    from bertkit import load
    from bertkit.encoding.padding import fills, pad

    started = time.perf_counter()
    predictor = load(folder, precision=precision)  # type: ignore[arg-type]
    loaded = time.perf_counter() - started
    task, draw = predictor.task, np.random.default_rng(0)
    run = runner(predictor)
    cells = {}
    for batch in spec.batches:
        for length in (n for n in spec.lengths if n <= task.max_length):
            columns: dict[str, list[Any]] = {"input_ids": draw.integers(1000, 2000, (batch, length)).tolist()}
            columns["token_type_ids"] = [[0] * length] * batch
            words = length - 2
            own = {"place": 1, "low": 0, "count": words, "first": 0, "end": words}
            columns |= {name: [own[name]] * batch for name in task.reduce_inputs if name in own}
            if "heads" in task.reduce_inputs:
                columns["heads"] = [list(range(1, 1 + words))] * batch
            arrays = pad(columns, fills(task.tokenizer, task.padding))
            cells[f"{batch} x {length}"] = latency(lambda arrays=arrays: run(arrays))
    return {"load_s": loaded, "cells": cells, "metric": metric(predictor, spec), "peak_mb": peak()}


def runner(predictor: Any) -> Any:
    """A batch of arrays -> what is kept of it, as the predictor does it."""
    if predictor.backend == "onnx":
        return lambda arrays: predictor.task.items(predictor.model(arrays))
    import torch

    def run(arrays: Any) -> Any:
        bf16 = predictor.precision == "bf16"
        with torch.inference_mode(), torch.autocast(predictor.device.type, torch.bfloat16, enabled=bf16):
            batch = {name: torch.from_numpy(values).to(predictor.device) for name, values in arrays.items()}
            return predictor.task.reduce(predictor.task.forward(predictor.model, batch), batch)

    return run


def latency(run: Any) -> float:
    """Median milliseconds."""
    run(), run()
    times: list[float] = []
    until = time.perf_counter() + SECONDS
    while len(times) < 5 or time.perf_counter() < until:
        started = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def metric(predictor: Any, spec: argparse.Namespace) -> float | None:
    from bertkit import data
    from bertkit.recipe.recipe import load_recipe

    recipe = load_recipe(spec.run / "recipe.yaml", check_files=False)
    split = "validation"
    rows = data.load(recipe.data, predictor.task.schema, predictor.task.rules(predictor.task.options)).rows[
        split
    ]
    rows = rows.select(range(min(len(rows), spec.rows)))
    scores = evaluate_task(predictor.task, rows, predictor.predict_features)
    value: float | None = scores[predictor.task.metrics[0]]
    return value


def table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown: a row a variant; of each cell milliseconds a batch, and how many times torch fp32 that is."""
    cells = list(found[VARIANTS[0]]["cells"])
    lines = [f"| | MB | peak MB | metric | load s | {' | '.join(f'{cell}: ms (rows/s)' for cell in cells)} |"]
    lines.append("|---" * (5 + len(cells)) + "|")
    for name, own in found.items():
        shown = []
        for cell in cells:
            ms, base, rows = own["cells"][cell], found[VARIANTS[0]]["cells"][cell], int(cell.split()[0])
            shown.append(f"{ms:.1f} ({1e3 * rows / ms:.0f}), {base / ms:.2f}x")
        head = f"{own['mb']:.1f} | {own['peak_mb']:.0f} | {own['metric']:.4f} | {own['load_s']:.1f}"
        lines.append(f"| {name} | {head} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--max-drop", type=float, default=0.005)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    spec = parser.parse_args()
    if spec.variant:
        print(json.dumps(measure(spec.folder, "fp32" if spec.variant == VARIANTS[0] else None, spec)))
        return
    environment = {**os.environ, "OMP_NUM_THREADS": str(spec.threads)}
    with tempfile.TemporaryDirectory() as room:
        folders = {"torch fp32": spec.run, "torch default": spec.run}
        for name, flags in (("ONNX fp32", []), ("ONNX int8", ["--int8", "--max-drop", str(spec.max_drop)])):
            folders[name] = Path(room) / name.replace(" ", "-")
            command = [sys.executable, "-m", "bertkit", "export", spec.run, "--output", folders[name], *flags]
            subprocess.run(command, check=True, env=environment)
        found = {}
        for name, folder in folders.items():
            command = [sys.executable, *sys.argv, "--variant", name, "--folder", folder]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            found[name] = json.loads(done.stdout.splitlines()[-1])
            weights = (
                folder / "model" / "model.safetensors" if name.startswith("torch") else folder / "model.onnx"
            )
            found[name]["mb"] = weights.stat().st_size / 1e6
    print(
        f"command: python {' '.join(sys.argv)}\ndate: {date.today()}; {platform.machine()}, {spec.threads} "
        "threads\n"
    )
    print(table(found))


if __name__ == "__main__":
    main()
