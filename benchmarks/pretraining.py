"""Pretraining speed beside stock Trainer, in one run: word pieces per second of a new BERT-mini (4 x 256).

(a) transformers' BertForPreTraining, stock Trainer, DataCollatorForLanguageModeling.
(b) bertkit's pretraining task.

Both start from the same weights and see the same pairs of sentences, packed to the same length, with the same
batch, precision and fused AdamW; (a) gets its pairs ready-made, (b) draws them. Tokenising is not timed. The
contestants take turns; the ratio of each round is printed, and their median. With --curves N both train N
steps, and their losses are printed side by side; with --memory, the peak of a process that trains four steps,
over that of one that has only built the model. With --profile PRESET … only (b) is measured, without dropout,
on a CPU: tokens per second of processor time, and the operations that a step spends its time in.

Run:  python benchmarks/pretraining.py enwiki2014.jsonl.xz TOKENIZER [--documents 1500] [--steps 40] [--rounds
3]
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset
from torch.profiler import ProfilerActivity, profile
from transformers import (
    DataCollatorForLanguageModeling,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    set_seed,
)

from bertkit import data as sources
from bertkit.attachments.used_rows import UsedEmbeddings
from bertkit.engine import trainer as engine
from bertkit.engine.arguments import Arguments
from bertkit.engine.training_data import TaskData
from bertkit.inference.runner import Runner
from bertkit.models.device import best_device, best_precision
from bertkit.models.encoder import resolve_encoder
from bertkit.sections import DataSpec, ModelSpec
from bertkit.tasks.base import prepare
from bertkit.tasks.pretraining import Pretraining, PretrainingOptions

LENGTH, BATCH = 128, 32
PRODUCTS = {f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm")}  # matrix products
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


class Losses(TrainerCallback):
    """The loss of each logged step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        self.values += [float(logs["loss"])] if "loss" in logs else []


def arguments(steps: int, **more: Any) -> Arguments:
    device = best_device()
    return Arguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        learning_rate=5e-4,
        warmup_steps=0.1,
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
        use_cpu=device.type == "cpu",
        bf16=best_precision(device) == "bf16",
        seed=1,
        **more,
    )


def setting(args: argparse.Namespace, config: Any = "mini") -> tuple[Any, Pretraining, Dataset]:
    """The encoder, the task and full-length features of the corpus."""
    encoder = resolve_encoder(ModelSpec(config=config, tokenizer=str(args.tokenizer), max_length=LENGTH))
    nsp = "nsp" if encoder.model_type == "bert" else "none"
    options = PretrainingOptions(name="pretraining", nsp=nsp, short_sequences=0.0)
    spec = DataSpec(source={"train": str(args.corpus)}, limit=args.documents)
    rows = sources.load(spec, Pretraining.schema).rows["train"]
    task = prepare(Pretraining, options, encoder.tokenizer(split_special_tokens=False), LENGTH, rows, [])
    features = task.encode(rows)
    full = np.flatnonzero(np.asarray(features["length"][:]) > LENGTH - 24)
    return encoder, task, features.select(full)


def ready_made(task: Pretraining, features: Dataset) -> Dataset:
    """The pairs of the first epoch without masks, which stock's collator puts in."""
    made = task.examples(features, range(len(features)), (1, 0))
    ids = [
        np.where(np.asarray(y) != -100, y, x) for x, y in zip(made["input_ids"], made["labels"], strict=True)
    ]
    columns = {"input_ids": ids, "token_type_ids": made["token_type_ids"]}
    return Dataset.from_dict({**columns, "next_sentence_label": made["next_sentence_label"]})


def stock(task: Pretraining, pairs: Dataset, ours: Any, steps: int) -> Trainer:
    model = transformers.BertForPreTraining(transformers.BertConfig(**ours.config.to_dict()))
    model.load_state_dict(ours.state_dict())
    trainer = Trainer(
        model=model,
        args=arguments(steps, train_sampling_strategy="group_by_length"),
        train_dataset=pairs,
        data_collator=DataCollatorForLanguageModeling(task.tokenizer, mlm_probability=0.15),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def bertkit(task: Pretraining, features: Dataset, model: Any, steps: int) -> engine.Trainer:
    args = arguments(steps, remove_unused_columns=False)
    runner = Runner(task, copy.deepcopy(model), args.device, "bf16", BATCH)
    return engine.Trainer(TaskData(runner, features), args, attachments=[UsedEmbeddings()])


def rate(trainer: Trainer, pieces: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Word pieces per second of a whole `train()`."""
    started = clock()
    trainer.train()
    return pieces / (clock() - started)


def operations(args: argparse.Namespace, preset: str) -> None:
    """Print tokens per second of processor time, and the shares of a step's time, as torch.profiler sees
    them.
    """
    bert = {} if "-" in preset else dict.fromkeys(DROPOUTS, 0.0)
    encoder, task, features = setting(args, {"preset": preset, **bert})
    model = task.model(encoder)
    rate(bertkit(task, features, model, 2), 1)  # warm up kernels and allocator
    pieces = float(np.mean([min(length, LENGTH) for length in features["length"]])) * BATCH * args.steps
    speeds = [
        rate(bertkit(task, features, model, args.steps), pieces, time.process_time)
        for _ in range(args.rounds)
    ]
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        bertkit(task, features, model, args.steps).train()
    times = {each.key: each.self_cpu_time_total for each in profiled.key_averages()}
    share = {name: took / sum(times.values()) for name, took in times.items()}
    products = sum(share.get(name, 0.0) for name in PRODUCTS)
    others = sorted(((part, name) for name, part in share.items() if name not in PRODUCTS), reverse=True)[:8]
    listed = ", ".join(f"{name.removeprefix('aten::')} {part:.1%}" for part, name in others)
    speed = f"{statistics.median(speeds):.0f} tokens/s of processor time"
    print(f"{preset}: {speed}; {products:.0%} in matrix products, then {listed}", flush=True)


def peak(args: argparse.Namespace, which: str, answer: Any) -> None:
    """In a process of its own: MB of its largest size over that with the model built."""
    transformers.logging.set_verbosity_error()
    encoder, task, features = setting(args)
    model = task.model(encoder)
    trainer = (
        stock(task, ready_made(task, features.select(range(256))), model, 4) if which == "stock" else None
    )
    trainer = trainer or bertkit(task, features, model, 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainer.train()
    answer.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--documents", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--curves", type=int, default=0, metavar="STEPS")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--profile", nargs="+", default=[], metavar="PRESET")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} "
        "threads"
    )
    if args.memory:
        spawn, megabytes = multiprocessing.get_context("spawn"), {}
        for which in ("stock", "bertkit"):
            answer = spawn.Queue()
            process = spawn.Process(target=peak, args=(args, which, answer))
            process.start()
            megabytes[which] = answer.get()
            process.join()
        print(f"memory of training: (a) {megabytes['stock']:.0f} MB, (b) {megabytes['bertkit']:.0f} MB")
        return
    for preset in args.profile:
        operations(args, preset)
    if args.profile:
        return
    encoder, task, features = setting(args)
    pairs = ready_made(task, features)
    set_seed(1)
    model = task.model(encoder)
    pieces = float(np.mean([len(ids) for ids in pairs["input_ids"]])) * BATCH * (args.curves or args.steps)
    if args.curves:
        told = []
        for trainer in (stock(task, pairs, model, args.curves), bertkit(task, features, model, args.curves)):
            trainer.add_callback(losses := Losses())
            speed = rate(trainer, pieces)
            told.append(losses.values)
            print(f"{type(trainer).__name__}: {speed:.0f} pieces/s", flush=True)
        for step, both in enumerate(zip(*told, strict=True), 1):
            print(f"step {step * 10}: (a) {both[0]:.3f}  (b) {both[1]:.3f}")
        return
    rate(bertkit(task, features, model, 2), 1)  # warm up kernels and allocator
    table = []
    for number in range(1, args.rounds + 1):
        a = rate(stock(task, pairs, model, args.steps), pieces)
        b = rate(bertkit(task, features, model, args.steps), pieces)
        table.append(b / a)
        print(f"round {number}: (a) {a:.0f}  (b) {b:.0f} pieces/s;  b/a {b / a:.2f}", flush=True)
    print(f"median: bertkit is {statistics.median(table):.2f} x stock Trainer")


if __name__ == "__main__":
    main()
