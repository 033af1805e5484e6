"""Commands that process 0 leads write the bytes of one process, once, and fail in all processes with one message."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import divided
import numpy as np
import pytest
from test_sharding import codes, left_by, said

from bertkit.retrieval.store import Store


@pytest.fixture(scope="module")
def done(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return left_by(divided, tiny_encoder, tmp_path_factory.mktemp("divided"))


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("embed", ["made.parquet"]),
        ("layers", ["made.npy"]),
        ("mine", ["made.jsonl"]),
        ("duplicates", []),
        ("index", ["store"]),
        ("change", []),
        ("delete", []),
        ("explain", ["page.html"]),
    ],
)
def test_two_processes_write_the_bytes_of_one(name: str, files: list[str], done: Path) -> None:
    alone, both = done / f"{name}, 1", done / f"{name}, 2"
    assert codes(alone) == [0], said(alone, "0.err")
    assert codes(both) == [0, 0], said(both, "0.err") + said(both, "1.err")
    for stream in ("0.out", "0.err"):
        assert said(both, stream).replace(", 2/", ", 1/") == said(alone, stream)
    assert said(both, "1.out") + said(both, "1.err") == ""
    for folder in (alone, both):
        assert sorted(path.name for path in (folder / "written").iterdir()) == files
    if name not in ("change", "delete"):  # which have a batch or none
        shares = [int(said(both, f"{rank}.ran")) for rank in (0, 1)]
        assert 0 < min(shares) <= max(shares) < int(said(alone, "0.ran"))
    for file in files:
        if file == "store":
            assert stored(both / "written" / file) == stored(alone / "written" / file)
        else:
            assert (both / "written" / file).read_bytes() == (alone / "written" / file).read_bytes()


def stored(folder: Path) -> Any:
    table = Store.open(folder).table.search().to_arrow().sort_by([("id", "ascending"), ("passage", "ascending")])
    return table.to_pydict()


def test_all_is_there(done: Path) -> None:
    assert np.load(done / "layers, 2" / "written" / "made.npy").shape == (11, 32)
    assert said(done / "explain, 2", "0.out").count("\n") == 11
    assert said(done / "mine, 2", "written/made.jsonl").count("\n") == 8
    ids = stored(done / "index, 2" / "written" / "store")["id"]
    assert ids == sorted(row["id"] for row in [*divided.ROWS, {"id": "new"}] if row["id"] not in ("r2", "r3"))
    # Texts that are repeated in a later chunk are encoded once, and each vector is stored once.
    files = [file for count in (1, 2) for file in done.glob(f"embed, {count}/cache/*/vectors.sqlite")]
    counts = []
    for file in files:
        with closing(sqlite3.connect(file)) as connection:
            counts.append(connection.execute("SELECT count(*) FROM vectors").fetchone()[0])
    assert len(files) == 2
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize(
    ("name", "message", "second"),
    [
        ("a bad row", "late.jsonl:12: 'text' holds 3", 2),
        ("a bug", "process 1: ZeroDivisionError: broken", 1),
        ("a bad document", "late.jsonl:12", 2),
    ],
)
def test_an_error_ends_all_with_one_message(name: str, message: str, second: int, done: Path) -> None:
    ended = done / f"{name}, 2"
    assert codes(ended) == [2, second]
    problem = said(ended, "0.err")
    assert problem.count("error: ") == 1
    assert message in problem
    assert ("ZeroDivisionError" in said(ended, "1.err")) == (name == "a bug")
    if name != "a bad document":  # the batches before it are in the store, as with one process
        assert not list((ended / "written").iterdir())
