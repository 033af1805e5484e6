"""Commands that process 0 leads, by one process and by two; a program, which test_divided.py reads after.

FOLDER/NAME, COUNT/ gets what `sharded.several` leaves of each command, and how often each process ran the model.

Run:  python divided.py ENCODER FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cases import CASES, TEXTS, encoder
from sharded import SETTINGS, several
from torch.nn.modules.module import register_module_forward_hook
from transformers import BertModel, set_seed

from bertkit.cli.main import main
from bertkit.inference import embed, features, vector_cache
from bertkit.inference.layer_reader import LayerReader
from bertkit.inference.predictor import Predictor
from bertkit.retrieval import mining, store
from bertkit.tasks import TASKS
from bertkit.training.seed import save

ROWS = [{"id": f"r{number}", "text": text} for number, text in enumerate([*TEXTS, TEXTS[0], "a dog ran", TEXTS[3]])]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def small_chunks() -> None:
    """Three texts at a time, so that a file of eleven is read in four chunks, of two batches each."""
    for kind in TASKS:
        kind.chunk_size = 3
    embed.CHUNK = features.CHUNK = vector_cache.CHUNK = store.ENCODE_BATCH = mining.DOCUMENT_BLOCK = 3
    LayerReader.batch_size = 2  # type: ignore[assignment]


def models(folder: Path, room: Path) -> None:
    """A model with vectors and a classifier, which run batches of 2, the rows, and a folder in BEIR's layout."""
    for case in CASES:
        if case.id in ("similarity-in-batch", "single-label"):
            set_seed(5)
            task = case.task(folder)
            save(task.model(encoder(folder)), task, room / case.id, SETTINGS)
    write(room / "rows.jsonl", ROWS)
    write(room / "changed.jsonl", [{"id": "r1", "text": "a cat sat"}, {"id": "new", "text": "the mat is red"}])
    write(room / "late.jsonl", [*ROWS, {"id": "bad", "text": 3}])
    write(room / "beir" / "corpus.jsonl", [{"_id": row["id"], "title": "", "text": row["text"]} for row in ROWS])
    write(room / "beir" / "queries.jsonl", [{"_id": f"q{n}", "text": text} for n, text in enumerate(TEXTS[:4])])
    judged = "".join(f"q{n}\tr{n + 1}\t1\n" for n in range(4))
    (room / "beir" / "qrels").mkdir()
    (room / "beir" / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")


def commands(room: Path, out: Path) -> None:
    vectors, rows = str(room / "similarity-in-batch"), str(room / "rows.jsonl")

    def run(name: str, count: int, line: str, before: Callable[[], None] = lambda: None) -> None:
        def one(rank: int) -> int:
            os.environ["BERTKIT_CACHE"] = str(out / f"{name}, {count}" / "cache")
            if rank == 1:
                before()
            places = {"OUT": f"{out}/{name}, {count}/written", "STORE": f"{out}/index, {count}/written/store"}
            words = line.split()
            for place, path in places.items():
                words = [word.replace(place, path) for word in words]
            ran: list[int] = []
            register_module_forward_hook(lambda module, *_: ran.append(1) if isinstance(module, BertModel) else None)
            code = main(words)
            (out / f"{name}, {count}" / f"{rank}.ran").write_text(str(len(ran)))
            return code

        several(count, out / f"{name}, {count}", one)

    def break_encode() -> None:
        def broken(*_: Any) -> None:
            raise ZeroDivisionError("broken")

        Predictor.encode = broken  # type: ignore[assignment, method-assign]

    for count in (1, 2):
        run("embed", count, f"embed {vectors} --input {rows} --output OUT/made.parquet")
        run("layers", count, f"embed {vectors} --layers 0 -1 --input {rows} --output OUT/made.npy")
        run("mine", count, f"mine {vectors} --data {room}/beir --count 2 --output OUT/made.jsonl")
        run("duplicates", count, f"duplicates {rows} --model {vectors}")
        run("index", count, f"index {vectors} --documents {rows} --store STORE")
        run("change", count, f"index {vectors} --documents {room}/changed.jsonl --store STORE --delete r2")
        run("delete", count, f"index {vectors} --store STORE --delete r3")
        run("explain", count, f"explain {room}/single-label --input {rows} --json --output OUT/page.html")
    run("a bad row", 2, f"embed {vectors} --input {room}/late.jsonl --output OUT/made.parquet")
    run("a bug", 2, f"embed {vectors} --input {rows} --output OUT/made.npy", break_encode)
    run("a bad document", 2, f"index {vectors} --documents {room}/late.jsonl --store OUT/store")


if __name__ == "__main__":
    torch.set_num_threads(1)
    small_chunks()
    models(Path(sys.argv[1]), Path(sys.argv[2]) / "models")
    commands(Path(sys.argv[2]) / "models", Path(sys.argv[2]))
