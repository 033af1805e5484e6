"""The GPU column: with one command, on one GPU, in fifteen minutes, what every other table here says of a
CPU.

1. The tests of the GPU: `pytest -m cuda tests/test_devices.py`.
2. Each encoder x task, a cell, in a process of its own: rows and tokens per second, MFU and peak memory of
   (a) transformers at its best. Training: stock Trainer in bf16, batches by length, padded to a multiple of
   8, fused
       AdamW, with loader workers where these are faster. Predictions: the pipeline in bf16, texts sorted by
       length, in the faster of two batch sizes; for pairs and for questions, which have no pipeline, a loop
       of the same kind.
   (b) bertkit: the same rows in as many batches of as many rows, with the faster number of workers, or batch
   size.
   Both take turns in training; predictions begin with (a). Rows per second are those of the median of two
   rounds,
   after one that is not counted. Of training they are without model, optimizer and tokenizing; of predictions
   they are from texts to answers.
3. OUTPUT.json and OUTPUT.md, written again after each cell. A cell that fails, or that takes longer than its
share of
   the time, is in them with the reason.

Nothing is downloaded. An encoder has its weights where the Hub's cache has them, else random ones, in a
tokenizer of random words; rows are random words, in lengths as real ones have (`LENGTHS` in gpu_rows.py).

MFU, the model's FLOPs by the device's: FLOPs of the rows / seconds / peak. A text of T tokens takes
    2 N T + 4 h T Σ min(T, window)
where N are the weights of the layers' matrices, h is the hidden size, and the sum is over layers (their
window is all of the text, but for ModernBERT's local attention); training takes three times as many
(Chowdhery et al. 2022, appendix B). Padding, embeddings and heads are not counted. The peak is that of dense
bf16, by the name of the device.

Run:  python benchmarks/gpu.py [--output gpu] [--seconds 900] [--peak-tflops N]
With --tiny, the whole program on any machine, with a tiny encoder: a test of the program, and no measurement.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import product
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from gpu_rows import ENCODERS

from bertkit.files import read_json, write_json, write_text
from bertkit.text import first_line

TASKS = ("text-classification", "token-classification", "question-answering", "sentence-similarity")
HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests" / "test_devices.py"
SHARE = 0.25  # of the time, that the tests may take

# Words of a device's name -> TFLOP/s, the first that fit. From NVIDIA's data sheets
# (nvidia.com/en-us/data-center): "BFLOAT16 Tensor Core" without sparsity; half of the number with sparsity,
# where they give no other.
PEAKS = {
    **{
        "H200 NVL": 835.5,
        "H200": 989.5,
        "GH200": 989.5,
        "H100 NVL": 835.5,
        "H100 PCIe": 756.5,
        "H100": 989.5,
    },
    **{"A100": 312.0, "A30": 165.0, "A10": 125.0, "L40S": 362.0, "L40": 181.0, "L4": 121.0},
}
COLUMNS = (
    "encoder|task||rows/s: bertkit|transformers|ratio|tokens/s|MFU|transformers|peak memory, GB|transformers"
).split("|")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=Path("gpu"), help="OUTPUT.json and OUTPUT.md are written"
    )
    parser.add_argument("--seconds", type=float, default=900.0, help="for everything")
    parser.add_argument("--encoders", nargs="+", metavar="NAME", help="in the Hub's cache, or folders")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument(
        "--peak-tflops", type=float, help="dense bf16, of a device that the table does not have"
    )
    parser.add_argument("--tiny", action="store_true", help="a tiny encoder, on any machine")
    args = parser.parse_args(arguments)
    end = time.monotonic() + args.seconds
    encoders = args.encoders or [name for name in ENCODERS if (name == "tiny") == args.tiny]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # of cells
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    found: dict[str, Any] = {
        "date": str(date.today()),
        "command": "python benchmarks/gpu.py " + " ".join(sys.argv[1:]),
    }
    multiprocessing.set_forkserver_preload(["gpu_cell"])
    forkserver.ensure_running()  # it makes the imports while the tests run
    found |= {"tests": tests(SHARE * args.seconds), "cells": []}
    cells = list(product(encoders, args.tasks))
    with tempfile.TemporaryDirectory() as room:
        for number, (encoder, task) in enumerate(cells):
            seconds = (end - time.monotonic()) / (len(cells) - number)
            cell = run(encoder, task, Path(room), seconds, args.tiny, args.peak_tflops)
            found["about"] = {**found.get("about", {}), **cell.pop("about", {})}
            found["cells"].append({"encoder": encoder, "task": task, **cell})
            write_json(args.output.with_suffix(".json"), found)
            write_text(args.output.with_suffix(".md"), "\n".join(lines(found)) + "\n")
            print(f"{encoder}, {task}: {cell.get('failed', 'measured')}", flush=True)


def tests(seconds: float) -> str:
    """What pytest says in its last line."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-q",
        "-m",
        "cuda",
        "-p",
        "no:cacheprovider",
        str(TESTS),
    ]
    try:
        done = subprocess.run(
            command, cwd=HERE.parent, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"failed: not finished after {seconds:.0f} s"
    said = (done.stdout or done.stderr).strip().splitlines() or ["nothing"]
    failures = [line for line in said[:-1] if line.startswith(("FAILED", "ERROR"))]
    return "; ".join([*failures, said[-1]])


def run(
    encoder: str, task: str, room: Path, seconds: float, tiny: bool, peak_tflops: float | None
) -> dict[str, Any]:
    """The results of a cell, or `failed`, the reason why there are none."""
    # Forked from a process that has made the imports, and has not touched CUDA, so that the fork can.
    context: Any = multiprocessing.get_context("forkserver")
    answer = room / "answer.json"
    answer.unlink(missing_ok=True)
    end = time.monotonic() + 0.8 * seconds
    process = context.Process(target=into, args=(answer, encoder, task, room, end, tiny, peak_tflops))
    process.start()
    process.join(max(seconds, 0))
    if process.is_alive():
        process.kill()
        process.join()
        return {"failed": f"not finished after {seconds:.0f} s"}
    return (
        dict(read_json(answer))
        if answer.is_file()
        else {"failed": f"its process ended with {process.exitcode}"}
    )


def into(
    answer: Path, encoder: str, task: str, room: Path, end: float, tiny: bool, peak_tflops: float | None
) -> None:
    """In a process of its own: write the results into a file."""
    from gpu_cell import TINY, Plan, about, measured

    results: dict[str, Any] = {}
    try:
        known = about()
        peak = peak_tflops or peak_of(known["device"])
        results["about"] = {**known, "peak_tflops": peak}
        results |= measured(encoder, task, room, TINY if tiny else Plan(), end, peak and peak * 1e12)
    except Exception as error:
        results["failed"] = f"{type(error).__name__}: {first_line(error)}"
    write_json(answer, results)


def peak_of(device: str) -> float | None:
    """TFLOP/s of a device, by its name."""
    return next((peak for name, peak in PEAKS.items() if re.search(rf"\b{name}\b", device)), None)


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The table, and what it was measured with."""
    about = found["about"]
    told = ", ".join(f"{name} {about.get(name)}" for name in ("bertkit", "torch", "cuda", "transformers"))
    peak = about.get("peak_tflops")
    yield f"`{found['command'].strip()}`, {about.get('device')}, {told}, {found['date']}."
    yield f"Precision: {about.get('precision')}. Peak for MFU: {f'{peak} TFLOP/s' if peak else 'not known'}."
    yield f"Tests: {found['tests']}."
    yield ""
    yield row(COLUMNS)
    yield row(["---"] * len(COLUMNS))
    for cell in found["cells"]:
        names = [cell["encoder"].rpartition("/")[2], cell["task"]]
        if "failed" in cell:
            yield row([*names, f"failed: {cell['failed']}".replace("|", "/"), *[""] * (len(COLUMNS) - 3)])
            continue
        for what in ("train", "predict"):
            yield row([*names, what, *figures(cell[what]["bertkit"], cell[what]["stock"])])


def figures(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    """The cells of a line."""
    yield f"{ours['rows_per_second']:,.0f}"
    yield f"{theirs['rows_per_second']:,.0f}"
    yield f"{ours['rows_per_second'] / theirs['rows_per_second']:.2f}"
    yield f"{ours['tokens_per_second']:,.0f}"
    for each in (ours, theirs):
        yield "–" if each["mfu"] is None else f"{each['mfu']:.1%}"
    for each in (ours, theirs):
        yield "–" if each["peak_bytes"] is None else f"{each['peak_bytes'] / 1e9:.2f}"


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
