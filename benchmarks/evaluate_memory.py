"""Peak memory of `evaluate` and `predict` at few and at many rows, for every task, with a small model.

Each figure is of a fresh process that answers generated rows from a file: `peak` is what getrusage says,
`own` is the most that was not a mapped file (sampled every 10 ms). Bytes a row are the growth from the few
rows to the many. `inspect` is what `train` does with its rows before the first step; `train` is a whole
training of two steps, scored on 200 rows.
Run:  python benchmarks/evaluate_memory.py [--rows 10000 200000] [--tasks retrieval …] [--commands evaluate
inspect]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.tasks.base import prepare

WORDS = [f"w{i}" for i in range(1000)]
COMMANDS = ("evaluate", "predict", "inspect", "train")
OPTIONS: dict[str, dict[str, Any]] = {
    "text-classification": {},
    "text-classification, several": {},
    "token-classification": {},
    "token-classification, crf": {"head": "crf"},
    "question-answering": {"null_threshold": 0.0},
    "sentence-similarity": {},
    "text-ranking": {},
    "retrieval": {},
    "pretraining": {},
}


def text(rng: random.Random, least: int, most: int) -> list[str]:
    """Some words."""
    return rng.choices(WORDS, k=rng.randint(least, most))


def row(task: str, rng: random.Random, number: int) -> dict[str, Any]:
    """A labelled row. Of ranking each query has 10 documents; of retrieval one row in 100 asks something."""
    if task == "text-classification":
        return {"text": " ".join(text(rng, 5, 15)), "label": rng.choice(("good", "bad"))}
    if task == "text-classification, several":
        return {"text": " ".join(text(rng, 5, 15)), "labels": rng.sample("abcdefgh", rng.randint(1, 3))}
    if task.startswith("token-classification"):
        tokens = text(rng, 5, 20)
        return {"tokens": tokens, "tags": [rng.choice(["O", "O", "B-PER", "B-LOC"]) for _ in tokens]}
    if task == "question-answering":
        context, place = text(rng, 30, 60), rng.randint(0, 20)
        start = len(" ".join([*context[:place], ""]))
        given = (
            {"text": [context[place]], "answer_start": [start]}
            if number % 4
            else {"text": [], "answer_start": []}
        )
        return {"question": " ".join(text(rng, 3, 8)), "context": " ".join(context), "answers": given}
    if task == "sentence-similarity":
        sides = {"text_a": " ".join(text(rng, 5, 15)), "text_b": " ".join(text(rng, 5, 15))}
        return {**sides, "score": rng.random()}
    if task == "text-ranking":
        query = " ".join(text(random.Random(number // 10), 3, 8))
        return {"query": query, "document": " ".join(text(rng, 10, 30)), "label": float(number % 10 == 3)}
    if task == "retrieval":
        asks = number % 100 == 0
        query = {"query_id": f"q{number}" if asks else "", "query": " ".join(text(rng, 3, 8)) if asks else ""}
        return {
            **query,
            "document_id": f"d{number}",
            "document": " ".join(text(rng, 10, 30)),
            "grade": int(asks),
        }
    return {"text": " ".join(w + (" ." if i % 10 == 9 else "") for i, w in enumerate(text(rng, 30, 60)))}


def rows(task: str, count: int) -> Iterator[dict[str, Any]]:
    """So many rows, the same each time."""
    rng = random.Random(0)
    return (row(task, rng, number) for number in range(count))


def make_model(task: str, folder: Path) -> None:
    """A model for this task as `train` saves one, its weights as they were drawn."""
    import torch
    from datasets import Dataset
    from transformers import BertConfig, BertModel, BertTokenizer

    from bertkit.models.encoder import Encoder, load_tokenizer
    from bertkit.models.untrusted import vet
    from bertkit.tasks import get_task
    from bertkit.training.seed import save

    torch.manual_seed(0)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
    encoder = folder / "encoder"
    BertTokenizer(vocab={word: i for i, word in enumerate(vocabulary)}, model_max_length=128).save_pretrained(
        encoder
    )
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=128, **sizes)).save_pretrained(
        encoder
    )
    kind = get_task(task.partition(",")[0])
    options = kind.Options.model_validate({"name": kind.name, **OPTIONS[task]})
    vetted = vet(encoder)
    made = prepare(kind, options, load_tokenizer(vetted), 128, Dataset.from_list(list(rows(task, 200))), [])
    model = made.model(Encoder(str(encoder), vetted, "folder"))
    settings = {"version": "0", "precision": "fp32", "batch_size": 32, "columns": {}}
    save(model, made, folder / "model", settings)


def own_memory() -> float:
    """MB of this process that are not mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def measured(command: str, folder: Path, file: Path) -> dict[str, float]:
    """In this process: run the command, and say what it took."""
    most, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            most[0] = max(most[0], own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    if command == "evaluate":
        from bertkit.inference.evaluate import evaluate

        evaluate(folder, data=file)
    elif command == "predict":
        from bertkit.inference.predict_file import predict
        from bertkit.inference.predictor import load

        predict(folder, file, file.with_suffix(".answers.jsonl"))
    elif command == "train":
        from bertkit.recipe.recipe import load_recipe
        from bertkit.training.train import train

        train(load_recipe(recipe(folder, file)), file.with_suffix(".run"))
    else:
        from bertkit import data
        from bertkit.inference.predictor import load
        from bertkit.sections import DataSpec
        from bertkit.training.job import inspect

        task = load(folder).task
        inspect(
            task,
            data.load(DataSpec(source={"train": str(file)}), task.schema, task.rules(task.options)),
            task.metrics[0],
            str(folder),
        )
    done.set()
    watcher.join()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"peak": peak, "own": most[0], "seconds": time.perf_counter() - started}


def recipe(folder: Path, file: Path) -> Path:
    """A recipe of two steps, and its 200 rows of validation."""
    task = json.loads((folder / "config.json").read_text())["bertkit"]["task"]
    held_out, path = file.with_suffix(".validation.jsonl"), file.with_suffix(".yaml")
    with file.open() as rows, held_out.open("w") as some:
        some.writelines(islice(rows, 200))
    spec = {
        "task": {"name": task["name"], **({"head": task["head"]} if "head" in task else {})},
        "model": {"name": str(folder.parent / "encoder"), "max_length": 128},
        "data": {"source": {"train": str(file), "validation": str(held_out)}},
        "training": {"max_steps": 2, "use_cpu": True},
        "verify": False,
        "explain": False,
    }
    path.write_text(json.dumps(spec))
    return path


def in_fresh_process(command: str, folder: Path, file: Path) -> dict[str, float]:
    """The same in a process of its own."""
    call = [sys.executable, __file__, "--measure", command, str(folder), str(file)]
    told = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(told.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs=2, default=(10_000, 200_000))
    parser.add_argument("--tasks", nargs="+", default=list(OPTIONS), choices=list(OPTIONS))
    parser.add_argument("--commands", nargs="+", default=COMMANDS[:2], choices=COMMANDS)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        command, folder, file = args.measure
        print(json.dumps(measured(command, Path(folder), Path(file))))
        return
    few, many = args.rows
    print(
        f"| task | command | MB at {few:,} rows: peak (own) | MB at {many:,} | bytes a row: peak (own) | "
        "seconds |"
    )
    print("|---|---|---|---|---|---|")
    for task in args.tasks:
        with tempfile.TemporaryDirectory() as room:
            os.environ["BERTKIT_CACHE"] = f"{room}/cache"
            make_model(task, Path(room))
            for count in (few, many):
                with Path(room, f"{count}.jsonl").open("w") as file:
                    file.writelines(json.dumps(each) + "\n" for each in rows(task, count))
            for command in args.commands:
                a, b = (
                    in_fresh_process(command, Path(room, "model"), Path(room, f"{n}.jsonl"))
                    for n in (few, many)
                )
                peak, own = (2**20 * (b[name] - a[name]) / (many - few) for name in ("peak", "own"))
                sizes = " | ".join(f"{each['peak']:.0f} ({each['own']:.0f})" for each in (a, b))
                print(
                    f"| {task} | {command} | {sizes} | {peak:.0f} ({own:.0f}) | {b['seconds']:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
