"""The HTTP server on loopback: requests per second and latency with 1 to N clients, one row a request.

Beside it the same model called in a loop in this process, one row at a time, without any HTTP. They take
turns, and medians over the rounds are printed. Clients are threads that send the next request when they have
the last answer, so that the server is saturated. Every answer is compared with that of the loop: numbers to
0.03, which is bf16's rounding in other batches; the rest must be equal, but for labels whose scores are that
close.

Run:  python benchmarks/serve.py MODEL FILE [--task TASK] [--clients 1 8 32] [--requests 512] [--rounds 3]
[--threads 2]"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bertkit.data.readers import read_rows
from bertkit.inference.predictor import load
from bertkit.sections import DataSpec

CLOSE = 0.03


class Load(NamedTuple):
    """What one turn measured: requests per second, seconds of each request, and answers that were wrong."""

    rate: float
    seconds: list[float]
    wrong: int


def alike(found: Any, expected: Any) -> bool:
    """Are these answers the same, numbers to rounding?"""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            # A word on the edge between two labels may fall to the other side.
            name in ("label", "labels", "tag", "entities", "answer", "start", "end", "n_best")
            or alike(found[name], value)
            for name, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    if isinstance(expected, float):
        return abs(found - expected) < CLOSE
    return bool(found == expected)


@contextmanager
def served(model: str, task: str | None, threads: int) -> Iterator[int]:
    """`bertkit serve` as a process of its own: its port."""
    command = [
        sys.executable,
        "-m",
        "bertkit",
        "serve",
        model,
        "--port",
        "0",
        *(["--task", task] if task else []),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            found = None
            while not found:
                line = process.stderr.readline() if process.stderr else ""
                if not line:
                    raise SystemExit("the server did not start")
                found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            yield int(found[1])
        finally:
            process.terminate()


def looped(predictor: Any, rows: Sequence[Any]) -> tuple[Load, list[Any]]:
    """The model, called with one row at a time."""
    seconds, answers, started = [], [], time.perf_counter()
    for row in rows:
        before = time.perf_counter()
        answers.append(predictor(row))
        seconds.append(time.perf_counter() - before)
    return Load(len(rows) / (time.perf_counter() - started), seconds, 0), answers


def loaded(port: int, rows: Sequence[Any], expected: Sequence[Any], clients: int) -> Load:
    """So many clients, each with a share of the rows."""
    seconds, wrong = [0.0] * len(rows), [False] * len(rows)

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for index in range(number, len(rows), clients):
            before = time.perf_counter()
            connection.request(
                "POST", "/predict", json.dumps({"rows": [rows[index]]}), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            found = json.loads(response.read())
            seconds[index] = time.perf_counter() - before
            wrong[index] = response.status != 200 or not alike(found["answers"][0], expected[index])
        connection.close()

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return Load(len(rows) / (time.perf_counter() - started), seconds, sum(wrong))


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a run, a model folder or a Hub id")
    parser.add_argument("file", type=Path, help="rows")
    parser.add_argument("--task")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    predictor = load(args.model, task=args.task)
    rows = [row for _, row in islice(read_rows(args.file, DataSpec(source=str(args.file))), args.requests)]
    turns: dict[str, list[Load]] = {}
    with served(args.model, args.task, args.threads) as port:
        loaded(port, rows[:16], looped(predictor, rows[:16])[1], 2)  # both warm up
        for _ in range(args.rounds):
            load_, expected = looped(predictor, rows)
            turns.setdefault("in a loop", []).append(load_)
            for clients in args.clients:
                turns.setdefault(f"served, {clients} clients", []).append(
                    loaded(port, rows, expected, clients)
                )
    print(f"python {' '.join(sys.argv)}")
    print(f"{processor()}, {args.threads} threads, load average {os.getloadavg()[0]:.1f}; {date.today()}")
    print(
        f"torch {torch.__version__}, {predictor.precision}, {len(rows)} requests of one row, {args.rounds} "
        "rounds"
    )
    print(f"{'':20}{'requests/s':>12}{'ratio':>8}{'p50 ms':>9}{'p99 ms':>9}{'wrong':>7}")
    base = statistics.median(turn.rate for turn in turns["in a loop"])
    for name, runs in turns.items():
        rate = statistics.median(turn.rate for turn in runs)
        p50, p99 = np.percentile([each for turn in runs for each in turn.seconds], [50, 99]) * 1000
        wrong = sum(turn.wrong for turn in runs)
        print(f"{name:20}{rate:12.1f}{rate / base:8.2f}{p50:9.1f}{p99:9.1f}{wrong:7}")


if __name__ == "__main__":
    main()
