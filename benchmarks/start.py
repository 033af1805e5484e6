"""How soon the first step is taken: `bertkit train` beside `from transformers import Trainer`, in fresh processes.

The first ends when the optimizer has taken its first step on the sample, with MiniLM: recipe, data, tokenizing, checks,
model and run folder are before it. They take turns; medians, and the ratio of the medians.

Run:  python benchmarks/start.py [--rounds 7] [--profile]
"""

from __future__ import annotations

import argparse
import os
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
        done = subprocess.run([sys.executable, "-c", code, str(Path(room) / "run")], capture_output=True, text=True)
        taken = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="print where the time of one start goes, by function")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.profile:
        with tempfile.TemporaryDirectory() as room:
            subprocess.run([sys.executable, "-c", PROFILED, str(Path(room) / "run")], check=False)
        return
    times: dict[str, list[float]] = {"import": [], "train": []}
    for number in range(1, args.rounds + 1):
        for name, code in (("import", IMPORT), ("train", TRAIN)):
            times[name].append(seconds(code))
        print(f"round {number}: import {times['import'][-1]:.2f} s, first step {times['train'][-1]:.2f} s", flush=True)
    imported, stepped = (statistics.median(times[name]) for name in ("import", "train"))
    print(f"median: import {imported:.2f} s, first step {stepped:.2f} s, ratio {stepped / imported:.2f}")


if __name__ == "__main__":
    main()
