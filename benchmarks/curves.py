"""A picture of a pretraining run: loss in training; accuracy of masked pieces and of pairs on held-out documents.

Run:  python benchmarks/curves.py runs/bert-mini --output docs/images/pretraining.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    events = [json.loads(line) for line in (args.run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3), layout="constrained")
    losses = [(event["step"], event["loss"]) for event in events if "loss" in event]
    left.plot(*zip(*losses, strict=True), color="#0072b2", linewidth=1)
    left.set(xlabel="step", ylabel="loss, nats: masked pieces + pairs", title="training")
    for name, label, color in (
        ("eval_mlm_accuracy", "masked pieces", "#d55e00"),
        ("eval_nsp_accuracy", "pairs", "#009e73"),
    ):
        points = [(event["step"], event[name]) for event in events if name in event]
        right.plot(*zip(*points, strict=True), color=color, marker="o", markersize=3, label=label)
    right.set(xlabel="step", ylabel="accuracy", title="held-out documents", ylim=(0, 1))
    right.legend(frameon=False)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.output, dpi=110)
    print(args.output)


if __name__ == "__main__":
    main()
