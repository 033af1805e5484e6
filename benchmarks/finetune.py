"""Fine-tuning speed beside stock Trainer, in one run: rows per second of MiniLM on SST-2, WNUT-17 or SQuAD 1.1.

(a) stock Trainer as transformers' run_glue.py sets it up: padded to 128, batches of 8, fp32. Of SST-2 only.
(b) stock Trainer at its best: dynamic padding, group_by_length, batches of 32, bf16, fused AdamW.
(c) bertkit, batches of 32.

(b) and (c) see the same rows, one epoch; (a) sees a sample of them, since it is slow. A row is a text, a sentence, or a
window of a context (up to 384 word pieces). Tokenising is not timed. The contestants take turns, in another order each
round, after one that does not count; the ratio of each round is printed, and their median.

Run:  python benchmarks/finetune.py FILE [--rows 1920] [--rounds 3]
FILE is SST-2/train.tsv, wnut17/train.conll or squad/train-v1.1.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
)

from bertkit import data as sources
from bertkit.inference.runner import Runner
from bertkit.models.device import best_device, best_precision
from bertkit.models.encoder import Encoder, load_tokenizer, resolve_encoder
from bertkit.sections import DataSpec, ModelSpec
from bertkit.tasks import get_task
from bertkit.tasks.base import Task, prepare
from bertkit.training.arguments import Arguments
from bertkit.training.trainer import TaskTrainer

TASKS = {".tsv": "text-classification", ".conll": "token-classification", ".json": "question-answering"}
READ = {".tsv": {"columns": {"text": "sentence"}}, ".conll": {"delimiter": "\t"}, ".json": {}}
LONGEST = {".json": 384}


@dataclass(frozen=True)
class Setting:
    """What all contestants train."""

    encoder: Encoder
    task: Task
    features: Dataset  # as bertkit reads them
    plain: Dataset  # the same, as stock Trainer does
    model: Callable[[], Any]  # stock Trainer's
    collator: Any


def setting(file: Path, rows: int) -> Setting:
    encoder = resolve_encoder(ModelSpec(name="sentence-transformers/all-MiniLM-L6-v2"))
    kind = get_task(TASKS[file.suffix])
    options = kind.Options.model_validate({"name": kind.name})
    read = sources.load(
        DataSpec(source=str(file), limit=rows, **READ[file.suffix]), kind.schema, partial(kind.refine, options)
    ).rows["train"]
    tokenizer = load_tokenizer(encoder.folder)
    task = prepare(kind, options, tokenizer, LONGEST.get(file.suffix, 128), read, [])
    features = task.features(read)
    inputs = features.select_columns([n for n in tokenizer.model_input_names if n in features.column_names])
    if kind.name == "text-classification":
        model, size = AutoModelForSequenceClassification, {"num_labels": 2}
        plain, collator = inputs.add_column("labels", features["labels"][:]), DataCollatorWithPadding(tokenizer)
    elif kind.name == "token-classification":
        model, size = AutoModelForTokenClassification, {"num_labels": len(task.tags)}  # type: ignore[attr-defined]
        plain = inputs.add_column("labels", [at_first_pieces(feature) for feature in features])
        collator = DataCollatorForTokenClassification(tokenizer)
    else:
        model, size = AutoModelForQuestionAnswering, {}
        starts, ends = zip(*features["labels"][:], strict=True)
        plain = inputs.add_column("start_positions", list(starts)).add_column("end_positions", list(ends))
        collator = DataCollatorWithPadding(tokenizer)
    made = partial(model.from_pretrained, encoder.folder, dtype=torch.float32, **size)
    return Setting(encoder, task, features, plain, made, collator)


def at_first_pieces(feature: dict[str, Any]) -> list[int]:
    """The tag of each word at its first piece, -100 elsewhere."""
    labels = [-100] * feature["length"]
    for place, label in zip(feature["heads"], feature["labels"], strict=True):
        labels[place] = label
    return labels


def arguments(batch: int, fast: bool, **more: Any) -> Arguments:
    device = best_device()
    return Arguments(
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


def stock(given: Setting) -> Trainer:
    return Trainer(
        model=given.model(),
        args=arguments(32, True, train_sampling_strategy="group_by_length"),
        train_dataset=given.plain,
        processing_class=given.task.tokenizer,
        data_collator=given.collator,
    )


def as_run_glue(given: Setting, rows: int) -> Trainer:
    chosen = given.plain.select(range(0, len(given.plain), len(given.plain) // rows)[:rows])
    padded = given.task.tokenizer.pad(chosen.to_dict(), padding="max_length", max_length=128)
    return Trainer(model=given.model(), args=arguments(8, False), train_dataset=Dataset.from_dict(dict(padded)))


def ours(given: Setting) -> TaskTrainer:
    args = arguments(32, True, remove_unused_columns=False)
    return TaskTrainer(
        runner=Runner(given.task, given.task.model(given.encoder), args.device, "bf16", 32),
        args=args,
        features=given.features,
        validation=None,
        callbacks=[],
    )


def rate(trainer: Trainer, rows: int) -> float:
    """Rows per second of a whole `train()`."""
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

    given = setting(args.file, args.rows)
    rows = len(given.features)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")
    print(f"{given.task.name}, {rows:,} rows", flush=True)
    for made in (ours, stock):  # kernels are made for each shape of a batch that is new
        made(given).train()
    over_a, over_b = [], []
    for number in range(1, args.rounds + 1):
        a = rate(as_run_glue(given, args.slow_rows), args.slow_rows) if args.file.suffix == ".tsv" else None
        turns = {stock: 0.0, ours: 0.0}
        for made in list(turns)[:: (-1) ** number]:
            turns[made] = rate(made(given), rows)
        b, c = turns.values()
        over_a += [] if a is None else [c / a]
        over_b.append(c / b)
        slow = "" if a is None else f"(a) {a:.1f}  "
        print(f"round {number}: {slow}(b) {b:.1f}  (c) {c:.1f} rows/s;  c/b {c / b:.2f}", flush=True)
    if over_a:
        print(f"median: bertkit is {statistics.median(over_a):.1f} x (a)")
    print(f"median: bertkit is {statistics.median(over_b):.2f} x (b)")


if __name__ == "__main__":
    main()
