"""A GPU: rows per second of training and of predicting beside transformers, one line of a table per cell.

The cells come by value. Each is a process of its own, which prints its line after each round: the last line
of a cell counts. After 50 s it is aborted, and faulthandler writes to stderr where its threads are.

training     stock Trainer at its best (bf16, batches by length, padded to a multiple of 8, fused AdamW)
             and bertkit, in turns on the same rows, from the first step to the last.
predicting   transformers' pipeline at its best (bf16, texts sorted by length) and bertkit, in turns, from
             texts to answers; for questions, which have no pipeline, a loop over their windows.

Weights and words are random; the lengths are like those of SST-2, SQuAD and long documents. Nothing is
downloaded. A first round is not counted. Rows per second are of the median round; the first number of a
column is bertkit's.

MFU, the model's FLOPs by the device's: FLOPs of the rows / seconds / peak. A text of T tokens takes
    2 N T + 4 h T Σ min(T, window)
where N are the weights of the layers' matrices, h is the hidden size, and the sum is over layers (their
window is all of the text, but for ModernBERT's local attention); training takes three times as many
(Chowdhery et al. 2022, appendix B). Padding, embeddings and heads are not counted.

Host and kernels, of ten more steps under torch.profiler: milliseconds of a step in which the host does not
wait for the device, and the share of the time in which kernels run.

Run:  python benchmarks/gpu.py [--cells 0 4] [--seconds 50] [--peak-tflops N]
With --tiny, tiny encoders on any machine: a rehearsal, no measurement.
"""

from __future__ import annotations

import argparse
import gc
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from datasets import Dataset, disable_progress_bars
from finetune import Setting, arguments, of_task, trainer_of
from predict import Contestant, asked, classified, sorted_by_length
from transformers import AutoConfig, AutoModel, BertTokenizer, PrinterCallback, Trainer, TrainerCallback

from bertkit.attachments.muon import layer_matrices
from bertkit.inference.predictor import load
from bertkit.models.device import best_device, best_precision
from bertkit.models.encoder import Encoder, load_tokenizer
from bertkit.models.untrusted import vet
from bertkit.tasks import get_task
from bertkit.tasks.base import Task, prepare
from bertkit.training.seed import save

ROUNDS, PROFILED = 3, 10  # rounds that count, steps of a profile
COLUMNS = "cell|round|rows/s|ratio|tokens/s|MFU|peak memory, GB|host, ms|kernels".split("|")


class Cell(NamedTuple):
    """What a line measures."""

    what: str
    encoder: str
    task: str
    tokens: int  # of a text, the median
    spread: float  # the standard deviation of their logarithm
    longest: int
    batch: int = 32
    batches: int = 100


TRAINING = (
    Cell("training", "bert-base", "text-classification", 11, 0.6, 64),
    Cell("training", "bert-base", "question-answering", 160, 0.3, 384, batches=40),
    Cell("training", "minilm", "text-classification", 11, 0.6, 64),
    Cell("training", "modernbert-base", "text-classification", 512, 0.0, 512, batches=20),
)
CELLS = (
    *TRAINING,
    *(cell._replace(what="predicting", batch=128, batches=cell.batches // 4) for cell in TRAINING),
)

SIZES = {  # where they are not the config's own
    "minilm": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
}
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = [f"w{number}" for number in range(30_000)]

# Words of a device's name -> TFLOP/s of dense bf16, the first that fit, from NVIDIA's data sheets
# (nvidia.com/en-us/data-center): half of the number with sparsity, where they give no other.
PEAKS = {
    "H200 NVL": 835.5,
    "H200": 989.5,
    "H100 NVL": 835.5,
    "H100 PCIe": 756.5,
    "H100": 989.5,
    "A100": 312.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L4": 121.0,
}


# --- rows and encoder


def drawn(cell: Cell, rows: int) -> list[dict[str, Any]]:
    """Rows of random words, their lengths log-normal."""
    rng = np.random.default_rng(0)
    pair = cell.task == "question-answering"
    others = 14 if pair else 2  # the tokens of a question, and special ones
    made: list[dict[str, Any]] = []
    for number in range(rows):
        size = round(min(rng.lognormal(math.log(cell.tokens), cell.spread), cell.longest)) - others
        words = [WORDS[n] for n in rng.integers(0, len(WORDS), max(size, 2))]
        if pair:
            place = int(rng.integers(len(words)))
            answers = {"text": [words[place]], "answer_start": [len(" ".join([*words[:place], ""]))]}
            question = " ".join(WORDS[n] for n in rng.integers(0, len(WORDS), 11))
            made.append({"question": question, "context": " ".join(words), "answers": answers})
        else:
            made.append({"text": " ".join(words), "label": ("no", "yes")[number % 2]})
    return made


def encoder_of(name: str, sizes: Mapping[str, int], room: Path) -> Encoder:
    """An encoder of random weights, and a tokenizer that has each word as a token."""
    folder = room / name
    if not folder.is_dir():
        kind = "modernbert" if name.startswith("modernbert") else "bert"
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if kind == "bert" else [])]
        vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
        tokenizer: Any = BertTokenizer(vocab=vocabulary, model_max_length=512, model_input_names=inputs)
        ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "cls", "sep")}
        ids |= {"bos_token_id": ids["cls_token_id"], "eos_token_id": ids["sep_token_id"]}
        config = AutoConfig.for_model(kind, vocab_size=len(vocabulary), **ids, **sizes)
        aside = folder.with_suffix(".aside")
        tokenizer.save_pretrained(aside)
        AutoModel.from_config(config).save_pretrained(aside)
        aside.rename(folder)
    return Encoder(name, vet(folder), "folder")


def prepared(encoder: Encoder, cell: Cell, rows: Sequence[Any]) -> tuple[Setting, np.ndarray]:
    """What both train, and the tokens of the rows."""
    kind, table = get_task(cell.task), Dataset.from_list(list(rows))
    options = kind.Options.model_validate({"name": cell.task})
    task = prepare(kind, options, load_tokenizer(encoder.folder), cell.longest, table, [])
    given = of_task(encoder, task, table, multiple=8)
    return given, np.asarray(given.features["length"][:])


# --- what is measured


def now() -> float:
    """The clock, when the device has finished."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def freed() -> None:
    """Let the next contestant begin with empty memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def flops(model: Any, sizes: np.ndarray, *, train: bool) -> float:
    """Of the matrix products for texts of these tokens; see above."""
    config, weights = model.config, sum(matrix.numel() for matrix in layer_matrices(model))
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    lengths = sizes.astype(np.float64).flatten()
    seen = sum(np.minimum(lengths, config.local_attention if "sliding" in kind else np.inf) for kind in kinds)
    once = (2 * weights * lengths + 4 * config.hidden_size * lengths * seen).sum()
    return float((3 if train else 1) * once)


class Stopwatch(TrainerCallback):
    """Seconds from the first step to the last."""

    def on_train_begin(self, *given: Any, **more: Any) -> None:
        self.start = now()

    def on_train_end(self, *given: Any, **more: Any) -> None:
        self.seconds = now() - self.start


class Profile(TrainerCallback):
    """`host`: milliseconds of a step in which the host does not wait; `kernels`: their share of the time."""

    def __init__(self) -> None:
        self.profiler = torch.profiler.profile()

    def on_step_begin(self, args: Any, state: Any, *given: Any, **more: Any) -> None:
        if state.global_step == state.max_steps - PROFILED:
            self.start = now()
            self.profiler.start()

    def on_train_end(self, *given: Any, **more: Any) -> None:
        passed = 1e6 * (now() - self.start)
        self.profiler.stop()
        events = self.profiler.key_averages()
        waits = [each for each in events if each.key.endswith("Synchronize")]
        kernels = [e for e in events if e.device_type.name != "CPU" and not e.is_user_annotation]
        self.host = (passed - sum(each.self_cpu_time_total for each in waits)) / PROFILED / 1e3
        self.kernels = sum(each.self_device_time_total for each in kernels) / passed


def trained(make: Callable[[Setting, Cell], Trainer], given: Setting, cell: Cell, watch: Any) -> Any:
    """The callback, after a training."""
    trainer = make(given, cell)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(watch)
    trainer.train()
    return watch


def stock(given: Setting, cell: Cell) -> Trainer:
    grouped = {"train_sampling_strategy": "group_by_length"}
    return Trainer(
        model=given.model(),
        args=arguments(cell.batch, True, max_steps=cell.batches, **grouped),
        train_dataset=given.plain,
        processing_class=given.task.tokenizer,
        data_collator=given.collator,
    )


def ours(given: Setting, cell: Cell) -> Trainer:
    args = arguments(cell.batch, True, max_steps=cell.batches, remove_unused_columns=False)
    return trainer_of(given.task, given.features, given.task.model(given.encoder), args)


TRAINERS = {"bertkit": ours, "transformers": stock}


def predictors(task: Task, folder: Path, cell: Cell) -> dict[str, Contestant]:
    """Both contestants, which take rows as they are."""
    kind = torch.bfloat16 if best_precision(best_device()) == "bf16" else torch.float32
    if cell.task == "question-answering":
        inputs = ["question", "context"]
        theirs = asked(folder, cell.longest, cell.batch, task.options, dtype=kind)
    else:
        inputs = ["text"]
        theirs = classified(folder, cell.longest, cell.batch, dtype=kind, device=best_device())
    predictor = load(folder, batch_size=cell.batch)

    def answer(rows: Sequence[Any]) -> list[Any]:
        return list(predictor.stream([{name: row[name] for name in inputs} for row in rows]))

    return {"bertkit": answer, "transformers": sorted_by_length(theirs)}


def timed(contestant: Contestant, rows: Sequence[Any]) -> float:
    start = now()
    contestant(rows)
    return now() - start


def measure(cell: Cell, room: Path, tiny: bool, peak: float | None) -> None:
    """Print the line of a cell after each round. peak: FLOP/s."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    disable_progress_bars()
    if tiny:
        cell = cell._replace(encoder=f"{cell.encoder}-tiny", batch=2, batches=2 * PROFILED)
    encoder = encoder_of(cell.encoder, TINY if tiny else SIZES.get(cell.encoder, {}), room)
    rows = drawn(cell, cell.batch * cell.batches)
    given, sizes = prepared(encoder, cell, rows)
    model = given.task.model(encoder)
    work = flops(model, sizes, train=cell.what == "training")
    profiles: dict[str, Profile] = {}
    if cell.what == "training":
        turns = {
            name: lambda make=make: trained(make, given, cell, Stopwatch()).seconds
            for name, make in TRAINERS.items()
        }
    else:
        settings = {
            "version": version("bertkit"),
            "precision": "auto",
            "batch_size": cell.batch,
            "columns": {},
        }
        save(model, given.task, room / "model", settings)
        turns = {
            name: partial(timed, answer, rows)
            for name, answer in predictors(given.task, room / "model", cell).items()
        }
    del model
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    memory: dict[str, int] = {}
    for number in range(ROUNDS + 1):
        for name in list(turns)[:: (-1) ** number]:
            freed()
            passed = turns[name]()
            seconds[name] += [passed] if number else []
            memory[name] = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        if number == ROUNDS and cell.what == "training":
            short = cell._replace(batches=2 * PROFILED)
            profiles = {name: trained(make, given, short, Profile()) for name, make in TRAINERS.items()}
        if number:
            print(line(cell, number, seconds, sizes, work, peak, memory, profiles), flush=True)


def line(
    cell: Cell,
    number: int,
    seconds: Mapping[str, Sequence[float]],
    sizes: np.ndarray,
    work: float,
    peak: float | None,
    memory: Mapping[str, int],
    profiles: Mapping[str, Profile],
) -> str:
    """A row of the table: of both contestants what was measured until now."""
    names = ("bertkit", "transformers")
    passed = {name: statistics.median(seconds[name]) for name in names}
    cells = (
        f"{cell.what} {cell.encoder}, {cell.task}, {sizes.mean():.0f} tokens",
        f"{number}",
        " / ".join(f"{len(sizes) / passed[name]:,.0f}" for name in names),
        f"{passed['transformers'] / passed['bertkit']:.2f}",
        " / ".join(f"{sizes.sum() / passed[name]:,.0f}" for name in names),
        " / ".join(f"{work / passed[name] / peak:.1%}" for name in names) if peak else "–",
        " / ".join(f"{memory[name] / 1e9:.2f}" for name in names),
        " / ".join(f"{profile.host:.1f}" for profile in profiles.values()),
        " / ".join(f"{profile.kernels:.0%}" for profile in profiles.values()),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, nargs="+", default=range(len(CELLS)), help="numbers, from 0")
    parser.add_argument("--seconds", type=float, default=50.0, help="for each cell")
    parser.add_argument(
        "--peak-tflops", type=float, help="dense bf16, of a device that the table does not have"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny encoders, on any machine")
    parser.add_argument("--room", type=Path, help=argparse.SUPPRESS)  # of the process of one cell
    args = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else best_device().type
    peak = args.peak_tflops or next((PEAKS[name] for name in PEAKS if name in device), None)
    if args.room:
        measure(CELLS[args.cells[0]], args.room, args.tiny, peak and peak * 1e12)
        return
    told = ", ".join(f"{name} {version(name)}" for name in ("bertkit", "torch", "transformers"))
    print(f"{device}, peak {peak} TFLOP/s, {best_precision(best_device())}, {told}, {date.today()}")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    with tempfile.TemporaryDirectory() as room:
        for number in args.cells:
            command = [sys.executable, "-X", "faulthandler", *sys.argv, "--room", room]
            if status := ended([*command, "--cells", str(number)], args.seconds):
                print(f"cell {number}: exit status {status}", flush=True)


def ended(command: Sequence[str], seconds: float) -> int:
    """The exit status of a process, which is aborted after so many seconds, and killed ten seconds later."""
    with subprocess.Popen(command) as process:
        for end in (signal.SIGABRT, signal.SIGKILL):
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(end)
                seconds = 10.0
    return process.returncode


if __name__ == "__main__":
    main()
