"""Answers of a few cases, as every process of torchrun has them; a program."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from cases import CASES, encoder
from torch import distributed
from transformers import set_seed

from bertkit.inference import Spread, predictor
from bertkit.training.sharding import spread

NAMES = ("single-label", "ner-crf-windows-bioes", "qa-windows-or-none", "similarity-in-batch", "retrieval")


def answers(folder: Path, how: Spread) -> dict[str, Any]:
    """Case -> its answers, in batches of 3, which do not go evenly into its rows."""
    made: dict[str, Any] = {}
    for case in (case for case in CASES if case.id in NAMES):
        set_seed(5)
        task, rows = case.task(folder), case.rows()
        model = task.model(encoder(folder))
        for some in (rows, rows.select(range(1))):
            predict = predictor(task, torch.device("cpu"), "fp32", 3, spread=how)(model)
            made.setdefault(case.id, []).append(list(task.answer(some, predict)))
    return made


if __name__ == "__main__":
    warnings.simplefilter("error")
    distributed.init_process_group("gloo")
    found = answers(Path(sys.argv[1]), spread)
    Path(sys.argv[2], f"{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()
