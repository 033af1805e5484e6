"""The programs of recipes/cluster on a cluster of this machine: a killed worker loses no row, and writes none
twice.
"""

import contextlib
import os
import runpy
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small
from cases import BY_ID
from finished import finished

import bertkit
from bertkit.inference.display import flat

PROGRAMS = Path(__file__).resolve().parent.parent / "recipes/cluster"
ROWS = [{"id": number, "review": small.text(number, number % 2)} for number in range(36)]
pytestmark = pytest.mark.filterwarnings("default")  # Ray Data and Spark use deprecated settings of their own


@pytest.fixture(scope="module")
def cluster():
    """Two workers and a core to read with, without a dashboard, telemetry and the workers' output."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'bertkit[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
        yield
        ray.shutdown()


@pytest.fixture
def spark(monkeypatch):
    """Two tasks at a time, each of which is tried twice."""
    sql = pytest.importorskip("pyspark.sql", reason="Spark is not installed: pip install pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    options = {"spark.ui.enabled": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "3"}
    session = sql.SparkSession.builder.master("local[2, 2]").config(map=options).getOrCreate()
    yield session
    session.stop()


def written(folder):
    """The rows in four files."""
    folder.mkdir()
    for number in range(4):
        pq.write_table(pa.Table.from_pylist(ROWS[number::4]), folder / f"{number}.parquet")
    return sorted(folder.iterdir())


def killed_once(monkeypatch, folder):
    """The first worker that has answered a batch dies within its second; returns what tells the ids of all
    batches.
    """
    folder.mkdir()
    here = os.getpid()

    class Killed(bertkit.batch):
        def __call__(self, rows):
            ids = rows.column("id").to_pylist() if isinstance(rows, pa.Table) else list(rows["id"])
            answers = super().__call__(rows)
            calls = vars(self)["calls"] = vars(self).get("calls", 0) + 1
            if calls > 1 and os.getpid() != here:
                with contextlib.suppress(FileExistsError):
                    (folder / "killed").touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)
            with (folder / f"{os.getpid()}").open("a") as log:
                log.write(" ".join(map(str, ids)) + "\n")
            return answers

    monkeypatch.setattr(bertkit, "batch", Killed)

    def batches():
        assert (folder / "killed").exists()
        logs = [each for each in folder.iterdir() if each.name not in ("killed", str(here))]
        assert len(logs) >= 2, "several workers have answered"
        return [
            [int(word) for word in line.split()] for each in logs for line in each.read_text().splitlines()
        ]

    return batches


def run(monkeypatch, program, *words):
    monkeypatch.setattr(sys, "argv", [program, *map(str, words)])
    runpy.run_path(f"{PROGRAMS}/{program}", run_name="__main__")


def require_answers(folder, model):
    """Each row is there once, with its answer."""
    rows = pd.read_parquet(folder).sort_values("id", ignore_index=True)
    assert rows[["id", "review"]].to_dict("records") == ROWS
    told = [dict(flat(answer, "answer.")) for answer in bertkit.load(model)([row["review"] for row in ROWS])]
    assert list(rows) == ["id", "review", *told[0]]
    for name in told[0]:
        expected = [answer[name] for answer in told]
        assert rows[name].tolist() == (pytest.approx(expected, abs=1e-6) if "score" in name else expected)


@pytest.fixture(scope="module")
def model(tiny_encoder, tmp_path_factory):
    return finished(BY_ID["single-label"], tiny_encoder, tmp_path_factory.mktemp("cluster") / "run").model


@pytest.mark.rare
@pytest.mark.usefixtures("cluster")
def test_predict_on_ray(model, tmp_path, monkeypatch):
    written(tmp_path / "in")
    batches = killed_once(monkeypatch, tmp_path / "log")
    words = (model, tmp_path / "in", tmp_path / "out")
    run(monkeypatch, "predict_ray.py", *words, "--column", "text=review", "--batch-size", 3)
    assert {number for batch in batches() for number in batch} == set(range(36))
    require_answers(tmp_path / "out", model)
    with pytest.raises(ValueError, match="exists"):  # a second time, and each row would be there twice
        run(monkeypatch, "predict_ray.py", *words, "--column", "text=review")


@pytest.mark.rare
@pytest.mark.usefixtures("cluster")
def test_embed_on_ray(tiny_encoder, tmp_path, monkeypatch):
    model = finished(BY_ID["similarity-mse"], tiny_encoder, tmp_path / "run").model
    for file in written(tmp_path / "in"):
        pd.read_parquet(file).to_json(file.with_suffix(".jsonl"), orient="records", lines=True)
        file.unlink()
    batches = killed_once(monkeypatch, tmp_path / "log")
    words = (
        model,
        tmp_path / "in",
        tmp_path / "out",
        "--format",
        "json",
        "--text",
        "review",
        "--side",
        "query",
    )
    run(monkeypatch, "embed_ray.py", *words, "--batch-size", 3)
    assert {number for batch in batches() for number in batch} == set(range(36))
    rows = pd.read_parquet(tmp_path / "out").sort_values("id", ignore_index=True)
    assert rows[["id", "review"]].to_dict("records") == ROWS
    vectors = bertkit.load(model).encode([row["review"] for row in ROWS], "query")
    np.testing.assert_allclose(np.stack(list(rows["vector"])), vectors, atol=1e-5)


@pytest.mark.usefixtures("spark")
def test_predict_on_spark(model, tmp_path, monkeypatch):
    written(tmp_path / "in")
    batches = killed_once(monkeypatch, tmp_path / "log")
    words = (model, tmp_path / "in", tmp_path / "out", "--column", "text=review", "--tasks", 4)
    run(monkeypatch, "predict_spark.py", *words)
    assert {number for batch in batches() for number in batch} == set(range(36))
    require_answers(tmp_path / "out", model)
