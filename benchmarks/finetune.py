"""Fine-tuning speed beside stock Trainer, in one run: samples per second of MiniLM on SST-2.

(a) stock Trainer as transformers' run_glue.py sets it up: padded to 128, batches of 8, fp32.
(b) stock Trainer at its best: dynamic padding, group_by_length, batches of 32, bf16, fused AdamW.
(c) bertkit, batches of 32.

(b) and (c) see the same rows, one epoch; (a) sees a sample of them, since it is slow. Tokenising is not
timed. The contestants take turns; the ratio of each round is printed, and their median.

Run:  python benchmarks/finetune.py SST-2/train.tsv [--rows 1920] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, Trainer, TrainingArguments

from bertkit import data as sources
from bertkit.encoder import Encoder, find, load_tokenizer
from bertkit.inference import best_device, best_precision, predictor
from bertkit.recipe import DataSpec, ModelSpec
from bertkit.tasks.text_classification import TextClassification, TextClassificationOptions
from bertkit.training.trainer import TaskTrainer


def arguments(batch: int, fast: bool, **more: Any) -> TrainingArguments:
    device = best_device()
    return TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=batch,
        num_train_epochs=1,
        save_strategy="no",
        logging_steps=10_000,
        disable_tqdm=True,
        use_cpu=device.type == "cpu",
        bf16=fast and best_precision(device) == "bf16",
        **more,
    )


def stock(encoder: Encoder, task: TextClassification, features: Any, *, best: bool) -> Trainer:
    model = AutoModelForSequenceClassification.from_pretrained(encoder.folder, num_labels=2, dtype=torch.float32)
    if best:
        args = arguments(32, True, train_sampling_strategy="group_by_length")
        return Trainer(
            model=model,
            args=args,
            train_dataset=features,
            processing_class=task.tokenizer,
            data_collator=DataCollatorWithPadding(task.tokenizer),
        )
    return Trainer(model=model, args=arguments(8, False), train_dataset=features)


def ours(encoder: Encoder, task: TextClassification, features: Any) -> TaskTrainer:
    args = arguments(32, True, remove_unused_columns=False)
    return TaskTrainer(
        task=task,
        model=task.model(encoder),
        args=args,
        features=features,
        validation=None,
        predict=predictor(task, args.device, "bf16", 32),
        callbacks=[],
    )


def rate(trainer: Trainer, rows: int) -> float:
    """Samples per second of a whole `train()`."""
    started = time.perf_counter()
    trainer.train()
    return rows / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=1920)
    parser.add_argument("--slow-rows", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    encoder = find(ModelSpec(name="sentence-transformers/all-MiniLM-L6-v2"))
    spec = DataSpec(source=str(args.file), columns={"text": "sentence"}, limit=args.rows)
    options = TextClassificationOptions(name="text-classification")
    rows = sources.load(spec, TextClassification, options).rows["train"]
    task = TextClassification.prepare(options, load_tokenizer(encoder.folder), 128, rows, [])
    features = task.encode(rows)
    plain = task.tokenizer(list(rows["text"]), truncation=True, max_length=128)
    fast = rows.add_column("labels", features["labels"][:]).remove_columns(["text", "label"])
    for name in task.tokenizer.model_input_names:
        fast = fast.add_column(name, plain[name])
    few = list(range(0, args.rows, args.rows // args.slow_rows))[: args.slow_rows]
    padded = task.tokenizer([rows["text"][i] for i in few], truncation=True, max_length=128, padding="max_length")
    slow = fast.select(few).remove_columns(task.tokenizer.model_input_names)
    for name in task.tokenizer.model_input_names:
        slow = slow.add_column(name, padded[name])

    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")
    rate(ours(encoder, task, features.select(range(64))), 64)  # warm up kernels and allocator
    table = []
    for number in range(1, args.rounds + 1):
        a = rate(stock(encoder, task, slow, best=False), len(slow))
        b = rate(stock(encoder, task, fast, best=True), args.rows)
        c = rate(ours(encoder, task, features), args.rows)
        table.append((a, b, c))
        print(
            f"round {number}: (a) {a:.1f}  (b) {b:.1f}  (c) {c:.1f} samples/s;  c/a {c / a:.1f}  c/b {c / b:.2f}",
            flush=True,
        )
    over_a = statistics.median(c / a for a, _, c in table)
    over_b = statistics.median(c / b for _, b, c in table)
    print(f"median: bertkit is {over_a:.1f} x (a) and {over_b:.2f} x (b)")


if __name__ == "__main__":
    main()
