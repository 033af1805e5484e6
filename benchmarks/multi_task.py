"""The speed of several tasks over one encoder, beside that of their models one by one, on the same texts.

    python benchmarks/multi_task.py RUN --tasks sentiment entities --input texts.txt --rows 500

RUN is a run of several tasks. --input: a file with a text on each line. Both ways are timed in turn, after a
first
time that does not count; the medians, their ratio and the share of equal answers are printed as JSON. Where
texts have several windows, batches differ, and so does the rounding of scores.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from bertkit import load, load_tasks


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--tasks", nargs="+", required=True, help="those that read single texts")
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    texts = [line for line in given.input.read_text(encoding="utf-8").splitlines() if line.strip()][
        : given.rows
    ]
    several = load_tasks(given.run).only(*given.tasks)
    alone = {name: load(given.run / name) for name in given.tasks}
    seconds: dict[str, list[float]] = {"together": [], "one by one": []}
    for _ in range(given.repeats + 1):
        started = time.perf_counter()
        together = list(several.stream(texts))
        seconds["together"].append(time.perf_counter() - started)
        started = time.perf_counter()
        separate = {name: list(predictor.stream(texts)) for name, predictor in alone.items()}
        seconds["one by one"].append(time.perf_counter() - started)
    medians = {way: median(times[1:]) for way, times in seconds.items()}
    facts = {
        "rows": len(texts),
        "tasks": given.tasks,
        "threads": torch.get_num_threads(),
        "seconds": medians,
        "one by one / together": medians["one by one"] / medians["together"],
        "precision": several.tasks[given.tasks[0]].precision,
        "equal answers": {
            name: sum(one[name] == other for one, other in zip(together, separate[name], strict=True))
            / len(texts)
            for name in given.tasks
        },
    }
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
