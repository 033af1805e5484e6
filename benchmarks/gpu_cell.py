"""One cell of gpu.py, in a process of its own: an encoder x a task, trained and asked, beside
transformers.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset, disable_progress_bars
from finetune import Setting, arguments, of_task
from gpu_rows import drawn, encoder_of, words_of
from predict import Contestant, asked, classified, sorted_by_length, tagged
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer, PrinterCallback, Trainer, TrainerCallback

from bertkit.attachments.muon import layer_matrices
from bertkit.attachments.used_rows import UsedEmbeddings
from bertkit.engine import trainer
from bertkit.engine.training_data import TaskData
from bertkit.inference.predictor import load
from bertkit.inference.runner import Runner
from bertkit.models.device import best_device, best_precision
from bertkit.models.encoder import Encoder, load_tokenizer
from bertkit.models.heads.vector_head import pool
from bertkit.tasks import get_task
from bertkit.tasks.base import Task, prepare
from bertkit.training.seed import save

MAX_LENGTH = {"text-classification": 256, "question-answering": 384}
OPTIONS = {"sentence-similarity": {"loss": "cosine-mse"}}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rows: int = 4096
    batch: int = 32
    rounds: int = 2  # of each contestant, after one that is not counted
    steps: tuple[int, int] = (16, 1024)  # of a timed training, at least and at most
    workers: tuple[int, ...] = (0, 4)  # of the loader, of which each contestant gets what is faster
    sizes: tuple[int, ...] = (32, 128)  # of a batch of predictions, likewise


TINY = Plan(rows=16, batch=8, rounds=1, steps=(2, 2), workers=(0,), sizes=(8,))


def measured(name: str, task: str, room: Path, plan: Plan, end: float, peak: float | None) -> dict[str, Any]:
    """The results of a cell. room: a folder that all cells share. end: of the monotonic clock. peak: FLOP/s
    or None.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    disable_progress_bars()
    encoder, weights = encoder_of(name, room)
    given, rows, sizes = setting(encoder, task, plan)
    cost = partial(flops, given.task.model(encoder))
    # A quarter of what is left trains what is timed, with as much for trials and for predictions.
    train = training(given, plan, sizes, (end - time.monotonic()) / 4, cost, peak)
    folder = room / "model"
    settings = {"version": version("bertkit"), "precision": "auto", "batch_size": plan.batch, "columns": {}}
    save(given.task.model(encoder), given.task, folder, settings)
    predict = predicting(given.task, folder, rows, plan, sizes, (end - time.monotonic()) / 8, cost, peak)
    return {"weights": weights, "train": train, "predict": predict}


def about() -> dict[str, Any]:
    """The machine and the libraries."""
    device = best_device()
    name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    versions = {library: version(library) for library in ("bertkit", "torch", "transformers")}
    return {"device": name, "cuda": torch.version.cuda, "precision": best_precision(device), **versions}


# --- what is measured


def setting(encoder: Encoder, name: str, plan: Plan) -> tuple[Setting, list[dict[str, Any]], np.ndarray]:
    """What both train, the rows, and their tokens `(rows, texts)`."""
    tokenizer, kind, longest = load_tokenizer(encoder.folder), get_task(name), MAX_LENGTH.get(name, 128)
    rows = drawn(name, words_of(tokenizer), plan.rows)
    table, options = (
        Dataset.from_list(rows),
        kind.Options.model_validate({"name": name, **OPTIONS.get(name, {})}),
    )
    task = prepare(kind, options, tokenizer, longest, table, [])
    if name == "sentence-similarity":
        features = task.features(table)
        plain = Dataset.from_dict({"texts": pairs(features), "labels": [row["score"] / 5 for row in rows]})
        plain = plain.add_column("length", np.asarray(features["length"]).reshape(-1, 2).max(1))
        model = partial(Compared, encoder.folder)
        given = Setting(encoder, task, features, plain, model, partial(collated, tokenizer))
    else:
        given = of_task(encoder, task, table, multiple=8)
    sizes = np.asarray(given.features["length"]).reshape(len(rows), -1)  # no text has several windows
    return given, rows, sizes


def flops(model: Any, sizes: np.ndarray, *, train: bool) -> float:
    """Of the matrix products for texts of these tokens; see gpu.py."""
    config, weights = model.config, sum(matrix.numel() for matrix in layer_matrices(model))
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    lengths = sizes.astype(np.float64).flatten()
    seen = sum(np.minimum(lengths, config.local_attention if "sliding" in kind else np.inf) for kind in kinds)
    return float(
        (3 if train else 1) * (2 * weights * lengths + 4 * config.hidden_size * lengths * seen).sum()
    )


def outcome(seconds: Sequence[float], sizes: np.ndarray, work: float, peak: float | None) -> dict[str, Any]:
    """What was measured. sizes: tokens of the rows. work: FLOPs. peak: FLOP/s."""
    passed = statistics.median(seconds)
    memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    return {
        "seconds": list(seconds),
        "rows_per_second": len(sizes) / passed,
        "tokens_per_second": float(sizes.sum()) / passed,
        "mfu": peak and work / passed / peak,
        "peak_bytes": memory,
    }


def freed() -> None:
    """Let the next contestant begin with empty memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def now() -> float:
    """The clock, when the device has finished."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


# --- training


class Stopwatch(TrainerCallback):
    """Seconds from the first step to the last."""

    def on_train_begin(self, *given: Any, **more: Any) -> None:
        self.start = now()

    def on_train_end(self, *given: Any, **more: Any) -> None:
        self.seconds = now() - self.start


def training(
    given: Setting,
    plan: Plan,
    sizes: np.ndarray,
    seconds: float,
    cost: Callable[..., float],
    peak: float | None,
) -> dict[str, Any]:
    """Both contestants, in turns, on the same rows in as many steps. seconds: for all that is timed."""
    makers: dict[str, Callable[..., Trainer]] = {"stock": stock, "bertkit": ours}
    least, most = plan.steps
    workers, times = {}, {}
    for name, make in makers.items():
        trial = partial(trained, make, first(given, least * plan.batch), plan, 1)
        trial(0)  # warms up
        tried = {count: trial(count) for count in plan.workers}
        workers[name] = min(tried, key=tried.__getitem__)
        times[name] = tried[workers[name]] / least
    steps = int(np.clip(seconds / (plan.rounds + 1) / sum(times.values()), least, most))
    rows = min(steps * plan.batch, len(sizes))
    epochs = max(steps * plan.batch // rows, 1)
    part, told = first(given, rows), dict[str, list[float]](stock=[], bertkit=[])
    found, seen = dict[str, dict[str, Any]](), np.tile(sizes[:rows], (epochs, 1))
    for number in range(plan.rounds + 1):
        for name in list(makers)[:: (-1) ** number]:
            passed = trained(makers[name], part, plan, epochs, workers[name])
            if number:  # the first round meets each shape of a batch for the first time, which takes longer
                told[name].append(passed)
                found[name] = outcome(told[name], seen, cost(seen, train=True), peak) | {
                    "workers": workers[name]
                }
    return {
        "rows": rows,
        "epochs": epochs,
        "batch": plan.batch,
        "texts": int(sizes.size / len(sizes)),
        **found,
    }


def trained(make: Callable[..., Trainer], given: Setting, plan: Plan, epochs: int, workers: int) -> float:
    """Seconds of a training."""
    freed()
    trainer = make(given, plan.batch, epochs, workers)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(watch := Stopwatch())
    trainer.train()
    return watch.seconds


def first(given: Setting, rows: int) -> Setting:
    """The setting with its first rows alone."""
    rows = min(rows, len(given.plain))
    features = given.features.select(range(rows * len(given.features) // len(given.plain)))
    return replace(given, plain=given.plain.select(range(rows)), features=features)


def stock(given: Setting, batch: int, epochs: int, workers: int) -> Trainer:
    args = arguments(
        batch,
        True,
        num_train_epochs=epochs,
        train_sampling_strategy="group_by_length",
        dataloader_num_workers=workers,
        remove_unused_columns="length" not in given.plain.column_names,  # from which the groups are made
    )
    return Trainer(
        model=given.model(),
        args=args,
        train_dataset=given.plain,
        processing_class=given.task.tokenizer,
        data_collator=given.collator,
    )


def ours(given: Setting, batch: int, epochs: int, workers: int) -> trainer.Trainer:
    args = arguments(
        batch, True, num_train_epochs=epochs, dataloader_num_workers=workers, remove_unused_columns=False
    )
    runner = Runner(
        given.task, given.task.model(given.encoder), args.device, best_precision(args.device), batch
    )
    return trainer.Trainer(
        TaskData(runner, given.features), args, attachments=[UsedEmbeddings(args.used_embeddings, None)]
    )


# --- pairs of texts, which no model of transformers compares


class Compared(torch.nn.Module):
    """Mean of the states, cosine of both texts, squared error."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.encoder: Any = AutoModel.from_pretrained(folder, dtype=torch.float32)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """`loss`, and the `cosines` of the pairs. input_ids: of all first texts, then of all second ones."""
        vectors = pool(self.encoder(input_ids, attention_mask).last_hidden_state, attention_mask, "mean")
        cosines = F.cosine_similarity(*vectors.chunk(2))
        return {"loss": F.mse_loss(cosines, labels), "cosines": cosines}


def pairs(features: Dataset) -> list[list[list[int]]]:
    """The ids of both texts of each row."""
    ids = features["input_ids"][:]
    return [[a, b] for a, b in zip(ids[::2], ids[1::2], strict=True)]


def collated(tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """All first texts, then all second ones."""
    texts = [row["texts"][side] for side in (0, 1) for row in rows]
    batch = tokenizer.pad({"input_ids": texts}, pad_to_multiple_of=8, return_tensors="pt")
    return {**batch, "labels": torch.tensor([row["labels"] for row in rows])}


def compared(folder: Path, limit: int, size: int, **how: Any) -> Contestant:
    """The cosine of each pair, `size` pairs at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, **how).to(best_device()).eval()

    def answer(rows: Sequence[Any]) -> list[Any]:
        found: list[float] = []
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            texts = [row[side] for side in ("text_a", "text_b") for row in part]
            inputs = tokenizer(texts, truncation=True, max_length=limit, padding=True, return_tensors="pt")
            inputs = inputs.to(model.device)
            with torch.inference_mode():
                vectors = pool(model(**inputs).last_hidden_state, inputs["attention_mask"], "mean")
                found += F.cosine_similarity(*vectors.chunk(2)).tolist()
        return found

    return answer


# --- predictions


def predicting(
    task: Task,
    folder: Path,
    rows: Sequence[Any],
    plan: Plan,
    sizes: np.ndarray,
    seconds: float,
    cost: Callable[..., float],
    peak: float | None,
) -> dict[str, Any]:
    """Both contestants, one after the other, on the same rows. seconds: for what is timed of each."""
    kind = torch.bfloat16 if best_precision(best_device()) == "bf16" else torch.float32
    on = {"dtype": kind, "device": best_device()}
    theirs: dict[str, Callable[[int], Contestant]] = {
        "text-classification": lambda size: classified(folder, task.max_length, size, **on),
        "token-classification": lambda size: tagged(folder, task.max_length, size, **on),
        "question-answering": lambda size: asked(folder, task.max_length, size, task.options, dtype=kind),
        "sentence-similarity": lambda size: compared(folder, task.max_length, size, dtype=kind),
    }

    def ours(size: int) -> Contestant:
        predictor = load(folder, batch_size=size)
        inputs = next(names for names in task.inputs if names <= rows[0].keys())
        return lambda part: list(predictor.stream([{name: row[name] for name in inputs} for row in part]))

    def stock(size: int) -> Contestant:
        return sorted_by_length(theirs[task.name](size))

    trial, part, found = rows[: 4 * plan.batch], list[Any](), dict[str, Any]()
    for name, make in {"stock": stock, "bertkit": ours}.items():
        tried = {}
        for size in plan.sizes:
            freed()
            contestant = make(size)
            contestant(trial)  # warms up
            tried[size] = timed(contestant, trial)
        best = min(tried, key=tried.__getitem__)
        part = part or rows[: max(int(seconds / (plan.rounds + 1) / tried[best] * len(trial)), len(trial))]
        freed()
        contestant = make(best)
        contestant(part)  # the first round meets each shape of a batch for the first time
        times, seen = [timed(contestant, part) for _ in range(plan.rounds)], sizes[: len(part)]
        found[name] = outcome(times, seen, cost(seen, train=False), peak) | {"batch": best}
        del contestant
    return {"rows": len(part), **found}


def timed(contestant: Contestant, rows: Sequence[Any]) -> float:
    start = now()
    contestant(rows)
    return now() - start
