"""How soon the first step is taken: `bertkit train` beside `from transformers import Trainer`, in fresh
processes.

The first ends when the optimizer has taken its first step on the sample, with MiniLM: recipe, data,
tokenizing, checks, model and run folder are before it. They take turns; medians, and the ratio of the
medians.

With --answers: how soon a fresh process answers one text (an exported model, a run, a search in a vector
store), beside the imports of torch and transformers. They take turns; medians of wall-clock and of processor
seconds.

Run:  python benchmarks/start.py [--rounds 7] [--profile]
      python benchmarks/start.py --rounds 5 --answers EXPORT RUN STORE
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

IMPORT = "from transformers import Trainer"
TRAIN = """
import os, sys
from transformers.trainer_callback import CallbackHandler
from bertkit.cli.main import main
CallbackHandler.on_step_end = lambda *given: os._exit(0)
sys.exit(main(["train", "quickstart", "--output-dir", sys.argv[1]]))
"""
PROFILED = """
import cProfile, pstats, sys
from transformers.trainer_callback import CallbackHandler
profile = cProfile.Profile()
def stop(*given):
    profile.disable()
    pstats.Stats(profile).sort_stats("cumulative").print_stats(80)
    sys.exit()
CallbackHandler.on_step_end = stop
profile.enable()
from bertkit.cli.main import main
main(["train", "quickstart", "--output-dir", sys.argv[1]])
"""


def seconds(code: str) -> float:
    """From the start of a process that runs this code to its end."""
    with tempfile.TemporaryDirectory() as room:
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code, str(Path(room) / "run")], capture_output=True, text=True
        )
        taken = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    return taken


def answers(export: str, run: str, store: str) -> dict[str, list[str]]:
    """Name -> the command of a process."""
    text, bertkit = "not bad at all", ["-m", "bertkit"]
    return {
        "python -c 'import transformers'": ["-c", "import transformers"],
        "python -c 'import torch'": ["-c", "import torch"],
        "bertkit --help": [*bertkit, "--help"],
        "bertkit predict EXPORT TEXT": [*bertkit, "predict", export, text],
        "bertkit predict RUN TEXT": [*bertkit, "predict", run, text],
        "bertkit search STORE TEXT": [*bertkit, "search", store, text],
    }


def print_answers(rounds: int, commands: dict[str, list[str]]) -> None:
    """Each command in turn, `rounds` times; then a line each."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, words in commands.items():
            started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
            wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
            processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            times[name].append((wall, processor))
    for name, taken in times.items():
        wall, processor = (statistics.median(each) for each in zip(*taken, strict=True))
        print(f"{name:32} {wall:6.2f} s, processor {processor:6.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--profile", action="store_true", help="print where the time of one start goes, by function"
    )
    parser.add_argument(
        "--answers", nargs=3, metavar=("EXPORT", "RUN", "STORE"), help="time commands that answer"
    )
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.answers:
        print_answers(args.rounds, answers(*args.answers))
        return
    if args.profile:
        with tempfile.TemporaryDirectory() as room:
            subprocess.run([sys.executable, "-c", PROFILED, str(Path(room) / "run")], check=False)
        return
    times: dict[str, list[float]] = {"import": [], "train": []}
    for number in range(1, args.rounds + 1):
        for name, code in (("import", IMPORT), ("train", TRAIN)):
            times[name].append(seconds(code))
        print(
            f"round {number}: import {times['import'][-1]:.2f} s, first step {times['train'][-1]:.2f} s",
            flush=True,
        )
    imported, stepped = (statistics.median(times[name]) for name in ("import", "train"))
    print(f"median: import {imported:.2f} s, first step {stepped:.2f} s, ratio {stepped / imported:.2f}")


if __name__ == "__main__":
    main()
