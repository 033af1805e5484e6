"""The kill table: `kill -9` at random moments of a training, then --resume: are the weights those of one that
lived?

The moments are during a step, while a checkpoint is written, during an evaluation, between epochs and while
the finished model is saved, of tiny models of each task, with accumulation, LoRA, bf16, a budget of tokens,
and windows. Every run is a process of its own, forked from this one, which has imported everything. Bytes are
compared of model.safetensors and of the last checkpoint's weights and optimizer.

Run:  python benchmarks/kill.py [--moments 25] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from cases import CASES, DRAWN
from conftest import build_encoder

from bertkit.engine import checkpoint
from bertkit.engine.resume import latest_intact
from bertkit.engine.trainer import Trainer
from bertkit.files import sha256
from bertkit.recipe.recipe import Recipe, load_recipe
from bertkit.training import train as program

ROWS = ("training.per_device_train_batch_size=2",)
SCENARIOS = {  # name -> case of tests/cases.py, overrides
    "single-label, accumulation": ("single-label", (*ROWS, "training.gradient_accumulation_steps=2")),
    "NER with CRF, windows": ("ner-crf-windows-bioes", ROWS),
    "single-label, LoRA": ("single-label", (*ROWS, "peft={r: 2, lora_dropout: 0.1}")),
    "QA, windows": ("qa-windows-or-none", ROWS),
    "single-label, bf16": ("single-label", (*ROWS, "training.bf16=true")),
    "pretraining, MLM and NSP": ("mlm-nsp", ROWS),
    "windows, by tokens": ("windows", ("batching={tokens: 40}", "training.gradient_accumulation_steps=2")),
    "similarity, in-batch": ("similarity-in-batch", ROWS),
    "multi-label": ("multi-label", ROWS),
    "retrieval": ("retrieval", ROWS),
    "ranking, listwise": ("ranking-listwise", ROWS),
    "regression": ("regression", ROWS),
    "NER, documents": ("ner-document", ROWS),
    "similarity, CoSENT": ("similarity-cosent", ROWS),
}
COMMON = (
    "training.num_train_epochs=4",
    "training.eval_strategy=steps",
    "training.eval_steps=2",
    "training.learning_rate=3e-3",
    "verify=false",
)
KINDS = ("step", "checkpoint", "evaluation", "between epochs", "saving the model")


class Moments:
    """Tells a file what this process is doing, and kills it during the `nth` moment of a kind.

    It dies after `share` of the time that the moment before of this kind took.
    """

    def __init__(self, file: Path, kind: str | None, nth: int, share: float) -> None:
        self.file, self.kind, self.nth, self.share = file.open("wb", buffering=0), kind, nth, share
        self.seen = dict.fromkeys(KINDS, 0)
        self.lasted = dict.fromkeys(KINDS, 0.01)

    def around(self, owner: Any, name: str, kind: str) -> None:
        """From now on, `owner.name` is a moment of this kind."""
        real: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **more: Any) -> Any:
            started = time.perf_counter()
            self.begin(kind)
            made = real(*args, **more)
            self.lasted[kind] = time.perf_counter() - started
            self.tell(f"after {kind} {self.seen[kind]}")
            return made

        setattr(owner, name, watched)

    def begin(self, kind: str) -> None:
        self.seen[kind] += 1
        self.tell(f"{kind} {self.seen[kind]}")
        if (kind, self.seen[kind]) == (self.kind, self.nth):
            delay = self.share * (0.005 if kind == "between epochs" else self.lasted[kind])
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def tell(self, text: str) -> None:
        self.file.seek(0)
        self.file.write(text.ljust(40).encode())


def run(
    recipe: Recipe, folder: Path, resume: bool, told: Path, kind: str | None, nth: int, share: float
) -> None:
    """In a process of its own: train, and perhaps die."""
    logging.disable(logging.CRITICAL)
    moments = Moments(told, kind, nth, share)
    moments.around(Trainer, "training_step", "step")
    moments.around(Trainer, "_save_checkpoint", "checkpoint")
    moments.around(Trainer, "evaluate", "evaluation")
    moments.around(Trainer, "_run_epoch", "between epochs")
    moments.around(program, "save", "saving the model")
    try:
        program.train(recipe, folder, resume=resume)
        told.with_suffix(".counts").write_text(json.dumps(moments.seen))
    except BaseException:
        told.with_suffix(".error").write_text(traceback.format_exc())
        raise


def alone(*given: Any) -> int:
    """`run` in a process of its own; its exit code, -9 where it was killed."""
    process = multiprocessing.get_context("fork").Process(target=run, args=given)
    process.start()
    process.join()
    return int(process.exitcode or 0)


def weights(folder: Path) -> dict[str, str]:
    """sha256 of the model, and of the last checkpoint's weights and optimizer."""
    last = checkpoint.checkpoints(folder / "checkpoints" / "seed-42")[-1]
    files = [folder / "model" / "model.safetensors", *sorted(last.glob("[!r]*.safetensors"))]
    return {str(file.relative_to(folder)): sha256(file) for file in files}


def prepared(room: Path, name: str) -> Recipe:
    """The recipe of a scenario, with its rows beside it."""
    identifier, overrides = SCENARIOS[name]
    case = next(case for case in [*CASES, *DRAWN] if case.id == identifier)
    room.mkdir()
    (room / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in case.rows()))
    encoder = build_encoder(room / "encoder", dropout=0.1)
    model = {"name": str(encoder), "max_length": case.max_length}
    source = {"train": "rows.jsonl", "validation": "rows.jsonl"}
    (room / "recipe.yaml").write_text(
        json.dumps({"task": case.options, "model": model, "data": {"source": source}})
    )
    return load_recipe(room / "recipe.yaml", [*COMMON, *overrides])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rng, names, different = random.Random(args.seed), list(SCENARIOS), 0
    lived: dict[str, tuple[Recipe, dict[str, str], dict[str, int]]] = {}
    print("| task | killed during | resumed at | equal |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as room:
        for number in range(args.moments):
            name, kind = names[number % len(names)], KINDS[number % len(KINDS)]
            own = Path(room) / name
            if name not in lived:
                recipe = prepared(own, name)
                code = alone(recipe, own / "lived", False, own / "lived.told", None, 0, 0.0)
                assert code == 0, (own / "lived.error").read_text()
                lived[name] = (recipe, weights(own / "lived"), json.loads((own / "lived.counts").read_text()))
            recipe, whole, counts = lived[name]
            folder, told = own / f"run-{number}", own / f"run-{number}.told"
            code = alone(recipe, folder, False, told, kind, rng.randint(1, counts[kind]), rng.random())
            assert code == -signal.SIGKILL, f"exit code {code}, not killed"
            moment = told.read_text().strip()
            start, _ = latest_intact(folder / "checkpoints" / "seed-42")
            code = alone(recipe, folder, True, told, None, 0, 0.0)
            equal = code == 0 and weights(folder) == whole
            different += not equal
            found = "yes" if equal else f"NO (exit code {code})"
            print(
                f"| {name} | {moment} | {f'step {checkpoint.step_of(start)}' if start else 'the start'} | "
                f"{found} |"
            )
            if code:
                print(told.with_suffix(".error").read_text(), file=sys.stderr)
            sys.stdout.flush()
    print(f"\n{args.moments - different} of {args.moments} equal")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
