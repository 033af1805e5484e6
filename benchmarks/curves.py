"""A picture of pretraining: of one run, its losses and accuracies by step; of several, what each learned, and
how soon.

Run:  python benchmarks/curves.py runs/bert-mini --output docs/images/pretraining.png
      python benchmarks/curves.py runs/bert-mini runs/modernbert-mini --output
      docs/images/pretraining-recipes.png
Several runs need the same held-out documents, and training.include_num_input_tokens_seen=non_padding.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

TOKENS = "num_input_tokens_seen"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def one(run: Path) -> Figure:
    """Loss in training; accuracy of masked tokens and of pairs on held-out documents."""
    events = events_of(run)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3), layout="constrained")
    losses = [(event["step"], event["loss"]) for event in events if "loss" in event]
    left.plot(*zip(*losses, strict=True), color=COLORS[0], linewidth=1)
    left.set(xlabel="step", ylabel="loss, nats: masked tokens + pairs", title="training")
    for (name, label), color in zip(
        {"eval_mlm_accuracy": "masked tokens", "eval_nsp_accuracy": "pairs"}.items(), COLORS[1:3], strict=True
    ):
        points = [(event["step"], event[name]) for event in events if name in event]
        right.plot(*zip(*points, strict=True), color=color, marker="o", markersize=3, label=label)
    right.set(xlabel="step", ylabel="accuracy", title="held-out documents", ylim=(0, 1))
    right.legend(frameon=False)
    return figure


def several(runs: Sequence[Path]) -> Figure:
    """Loss of the masked tokens of held-out documents, against tokens and against time."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
    for run, color in zip(runs, COLORS, strict=False):
        events = events_of(run)
        seconds = [event["train_runtime"] / event["step"] for event in events if "train_runtime" in event][-1]
        tokens = {event["step"]: event[TOKENS] for event in events if event.get(TOKENS)}
        per_step = max(tokens.values()) / max(tokens)
        evaluated = [(e["step"], math.log(e["eval_perplexity"])) for e in events if e.get("eval_perplexity")]
        for axis, scale in zip(axes, (per_step / 1e6, seconds / 60), strict=True):
            points = [(step * scale, loss) for step, loss in evaluated]
            axis.plot(*zip(*points, strict=True), color=color, marker="o", markersize=3, label=run.name)
    axes[0].set(xlabel="million tokens", ylabel="loss of masked tokens, nats", title="held-out documents")
    axes[1].set(xlabel="minutes")
    axes[1].legend(frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    (several(args.runs) if len(args.runs) > 1 else one(args.runs[0])).savefig(args.output, dpi=110)
    print(args.output)


if __name__ == "__main__":
    main()
