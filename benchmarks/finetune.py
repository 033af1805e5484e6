"""Fine-tuning speed beside stock Trainer, in one run: rows per second of MiniLM on SST-2, WNUT-17 or SQuAD
1.1.

(a) stock Trainer as transformers' run_glue.py sets it up: padded to 128, batches of 8, fp32. Of SST-2 only.
(b) stock Trainer at its best: dynamic padding, group_by_length, batches of 32, bf16, fused AdamW.
(c) bertkit, batches of 32.

(b) and (c) see the same rows, one epoch; (a) sees a sample of them, since it is slow. A row is a text, a
sentence, or a window of a context (up to 384 word pieces). Tokenising is not timed. The contestants take
turns, in another order each round, after one that does not count; the ratio of each round is printed, and
their median.

With --embeddings, bertkit takes turns with itself: it trains the whole word embedding, or only the used rows
of it. With --compile likewise, without and with training.torch_compile. The first training of each, in which
the second compiles, is timed too; set TORCHINDUCTOR_CACHE_DIR to an empty folder to compile everything.
With --memory, which needs no FILE, the same two train an XLM-R base of random weights, with its 250,002
tokens, for four steps, each in its own process, whose peak memory is printed; words are drawn for five
languages, by Zipf's law.

Run:  python benchmarks/finetune.py FILE [--rows 1920] [--rounds 3] [--embeddings | --compile]
      python benchmarks/finetune.py --memory
FILE is SST-2/train.tsv, wnut17/train.conll or squad/train-v1.1.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from bertkit import data as sources
from bertkit.attachments.used_rows import UsedEmbeddings, token_ids
from bertkit.engine import trainer
from bertkit.engine.arguments import Arguments
from bertkit.engine.training_data import TaskData
from bertkit.inference.runner import Runner
from bertkit.models.device import best_device, best_precision
from bertkit.models.encoder import Encoder, load_tokenizer, resolve_encoder
from bertkit.sections import DataSpec, ModelSpec
from bertkit.tasks import get_task
from bertkit.tasks.base import Task, prepare

TASKS = {".tsv": "text-classification", ".conll": "token-classification", ".json": "question-answering"}
READ = {".tsv": {"columns": {"text": "sentence"}}, ".conll": {"delimiter": "\t"}, ".json": {}}
LONGEST = {".json": 384}
XLM_R = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
TOKENS, LANGUAGES = 250_002, 5
SPECIAL = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]


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
        DataSpec(source=str(file), limit=rows, **READ[file.suffix]), kind.schema, kind.rules(options)
    ).rows["train"]
    task = prepare(kind, options, load_tokenizer(encoder.folder), LONGEST.get(file.suffix, 128), read, [])
    return of_task(encoder, task, read)


def of_task(encoder: Encoder, task: Any, rows: Dataset, multiple: int | None = None) -> Setting:
    """multiple: of tokens, to which stock Trainer's batches are padded."""
    tokenizer, features = task.tokenizer, task.features(rows)
    inputs = features.select_columns([n for n in tokenizer.model_input_names if n in features.column_names])
    collator: Any = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple)
    if task.name == "text-classification":
        model, size = AutoModelForSequenceClassification, {"num_labels": len(task.names) or 1}
        plain = inputs.add_column("labels", features["labels"][:])
    elif task.name == "token-classification":
        model, size = AutoModelForTokenClassification, {"num_labels": len(task.tags)}
        plain = inputs.add_column("labels", [at_first_pieces(feature) for feature in features])
        collator = DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=multiple)
    else:
        model, size = AutoModelForQuestionAnswering, {}
        starts, ends = zip(*features["labels"][:], strict=True)
        plain = inputs.add_column("start_positions", list(starts)).add_column("end_positions", list(ends))
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
        save_strategy="no",
        logging_steps=10_000,
        disable_tqdm=True,
        use_cpu=device.type == "cpu",
        bf16=fast and best_precision(device) == "bf16",
        **{"num_train_epochs": 1, **more},
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
    return Trainer(
        model=given.model(), args=arguments(8, False), train_dataset=Dataset.from_dict(dict(padded))
    )


def ours(given: Setting, **more: Any) -> trainer.Trainer:
    args = arguments(32, True, remove_unused_columns=False, **more)
    return trainer_of(given.task, given.features, given.task.model(given.encoder), args)


def trainer_of(task: Task, features: Dataset, model: Any, args: Arguments) -> trainer.Trainer:
    runner = Runner(task, model, args.device, "bf16", 32)
    return trainer.Trainer(TaskData(runner, features), args, attachments=[UsedEmbeddings()])


def embeddings(given: Setting, rounds: int) -> None:
    """Print the rows per second with all rows of the word embedding trained, and with the used ones."""
    table = given.task.model(given.encoder).get_input_embeddings().weight
    print(f"{len(token_ids([(given.task, given.features)], len(table))):,} of {len(table):,} tokens are used")
    without_and_with(given, "used_embeddings", rounds)


def without_and_with(given: Setting, key: str, rounds: int) -> None:
    """Print rows per second without and with this key of `training:`, after a training of each that is not
    counted.
    """
    rows, ratios = len(given.features), []
    first = [rows / rate(ours(given, **{key: on}), rows) for on in (False, True)]
    print(f"the first training: {first[0]:.0f} s without {key}, {first[1]:.0f} s with it", flush=True)
    for number in range(1, rounds + 1):
        turns = {False: 0.0, True: 0.0}
        for on in list(turns)[:: (-1) ** number]:
            turns[on] = rate(ours(given, **{key: on}), rows)
        ratios.append(turns[True] / turns[False])
        print(
            f"round {number}: {turns[False]:.1f} without, {turns[True]:.1f} rows/s with it; {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"median: {statistics.median(ratios):.2f} x")


def multilingual(rows: int = 256, words: int = 40) -> tuple[Task, Dataset]:
    """Text classification, and the features of rows whose words are tokens of one language each."""
    each, rng = (TOKENS - len(SPECIAL)) // LANGUAGES, np.random.default_rng(0)
    vocab = {token: number for number, token in enumerate(SPECIAL)}
    vocab |= {f"w{number}": number for number in range(len(SPECIAL), TOKENS)}
    inputs = ["input_ids", "attention_mask"]
    tokenizer = transformers.BertTokenizer(vocab=vocab, model_max_length=512, model_input_names=inputs)
    drawn = np.minimum(rng.zipf(1.2, (rows, words)), each) + len(SPECIAL) - 1
    drawn += each * np.arange(rows)[:, None] % (each * LANGUAGES)
    texts = [" ".join(f"w{number}" for number in row) for row in drawn]
    given = Dataset.from_dict({"text": texts, "label": ["no", "yes"] * (rows // 2)})
    kind = get_task("text-classification")
    task = prepare(kind, kind.Options.model_validate({"name": kind.name}), tokenizer, 128, given, [])
    return task, task.features(given)


def peak(used: bool, answer: Any) -> None:
    """Put the tokens used, the peak memory in MB before training and after it, and the seconds of a step."""
    task, features = multilingual()
    model = XLMRobertaForSequenceClassification(XLMRobertaConfig(**XLM_R, vocab_size=TOKENS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    args = arguments(8, False, remove_unused_columns=False, max_steps=4, used_embeddings=used)
    steps = rate(trainer_of(task, features, model, args), 4)  # per second
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer.put((len(token_ids([(task, features)], TOKENS)), before / 1024, after / 1024, 1 / steps))


def memory() -> None:
    spawn = multiprocessing.get_context("spawn")
    for used in (False, True):
        answer = spawn.Queue()
        process = spawn.Process(target=peak, args=(used, answer))
        process.start()
        tokens, before, after, seconds = answer.get()
        process.join()
        what = f"{tokens:,} of {TOKENS:,} tokens" if used else "all rows of the word embedding"
        print(
            f"{what}: peak {before:,.0f} MB before training, {after:,.0f} MB in it; {seconds:.1f} s per step",
            flush=True,
        )


def rate(trainer: Trainer, rows: int) -> float:
    """Rows per second of a whole `train()`."""
    started = time.perf_counter()
    trainer.train()
    return rows / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, default=1920)
    parser.add_argument("--slow-rows", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--embeddings", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--memory", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} "
        "threads"
    )
    if args.memory:
        memory()
        return
    given = setting(args.file, args.rows)
    rows = len(given.features)
    print(f"{given.task.name}, {rows:,} rows", flush=True)
    if args.embeddings:
        embeddings(given, args.rounds)
        return
    if args.compile:
        without_and_with(given, "torch_compile", args.rounds)
        return
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
