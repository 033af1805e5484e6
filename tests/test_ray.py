"""The engine on a Ray cluster: files as the same command writes them without Ray, also where a worker is killed."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small
from cases import CASES
from finished import finished

import bertkit
from bertkit.cache import fingerprint
from bertkit.cli.main import main
from bertkit.cli.models import file_predictor
from bertkit.cli.shared import cluster as cluster_options
from bertkit.errors import DataError, ModelError, Problem, UserError
from bertkit.inference.display import flat
from bertkit.inference.ray_engine import Planned, connected, plan_files, write_files
from bertkit.inference.ray_vectors import encoders
from bertkit.retrieval.models import document_encoder
from bertkit.retrieval.store import Store
from bertkit.tasks.text_classification import TextClassification

BY_ID = {case.id: case for case in CASES}
ANSWERS = (".jsonl", ".csv")
pytestmark = [  # Ray Data sets its own deprecated settings when it is first used
    pytest.mark.filterwarnings(f"ignore::{kind}:ray.data.context") for kind in ("DeprecationWarning", "UserWarning")
]
SCALING = Path(__file__).resolve().parent.parent / "docs" / "scaling.md"
Writing = Callable[[Path, Path], int]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two workers on this machine, without a dashboard, telemetry and the workers' output."""
    import ray

    this = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(this)  # workers cannot import it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
        yield
        ray.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(this)


@pytest.fixture(scope="module")
def model(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that answers in batches of 4."""
    return finished(BY_ID["single-label"], tiny_encoder, tmp_path_factory.mktemp("ray") / "run").model


def rows(start: int) -> list[dict[str, Any]]:
    return [{"id": n, "text": small.text(n, n % 2)} for n in range(start, start + 9)]


def make_inputs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Files of nine rows in several formats; returns their rows."""
    made = {name: rows(9 * n) for n, name in enumerate(("a.jsonl", "b.csv", "c.parquet", "more/d.jsonl"))}
    for name, own in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(own), folder / name)
        elif name.endswith(".csv"):
            (folder / name).write_text("id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in own))
        else:
            small.write_rows(folder / name, own)
    return made


def lines(file: Path) -> Iterator[Any]:
    return map(json.loads, file.read_text(encoding="utf-8").splitlines())


# --- a real model


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_loses_nothing_and_the_command_continues(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inputs, output, marker = tmp_path / "in", tmp_path / "out", tmp_path / "killed"
    written = make_inputs(inputs)

    def open_model(source: str, **options: Any) -> Writing:
        write, reduce = file_predictor(source, **options), TextClassification.reduce

        def killed_in_the_second_batch(file: Path, out: Path) -> int:
            batches = count()

            def dying(self: Any, outputs: Any, batch: Any) -> Any:
                if file.stem == "b" and next(batches) == 1 and not marker.exists():
                    marker.write_text(json.dumps([aside.name for aside in out.parent.glob(".b.*.writing")]))
                    os.kill(os.getpid(), signal.SIGKILL)
                return reduce(self, outputs, batch)

            TextClassification.reduce = dying  # type: ignore[method-assign]
            return write(file, out)

        return killed_in_the_second_batch

    loading = {"task": None, "revision": None, "decisions": {}}
    loading["decisions"] = {"threshold": None, "coverage": None, "class_conditional": False, "top_k": None}
    options = {"columns": {}, "overrides": [], "format": None, **loading}
    told = write_files(open_model, str(model), options, str(inputs), output, ANSWERS)
    assert told == f"36 rows of 4 files in {output}"
    assert len(json.loads(marker.read_text())) == 1  # it was killed while it wrote
    made = sorted(file.relative_to(output).as_posix() for file in output.rglob("*") if file.is_file())
    assert made == [".bertkit.json", "a.jsonl", "b.jsonl", "c.jsonl", "more/d.jsonl"]
    for name, own in written.items():
        alone, out = tmp_path / "alone.jsonl", (output / name).with_suffix(".jsonl")
        assert main(["predict", str(model), "--input", str(inputs / name), "--output", str(alone)]) == 0
        assert out.read_bytes() == alone.read_bytes()
        assert [int(row["id"]) for row in lines(out)] == [row["id"] for row in own]

    # the command itself continues: one output is gone, one input has changed, and two are kept
    (output / "c.jsonl").unlink()
    small.write_rows(inputs / "a.jsonl", rows(90)[:2])
    kept = {name: (output / name).stat() for name in ("b.jsonl", "more/d.jsonl")}
    capfd.readouterr()
    command = ["predict", str(model), "--input", str(inputs), "--output", str(output), "--engine", "ray"]
    assert main([*command, "--workers", "1"]) == 0
    assert f"11 rows of 2 files in {output}; 2 others finished before" in capfd.readouterr().err
    assert [row["id"] for row in lines(output / "a.jsonl")] == [90, 91]
    assert len(list(lines(output / "c.jsonl"))) == 9
    assert {name: (output / name).stat() for name in kept} == kept

    # with nothing left, no model is loaded and no cluster needed
    assert main([*command, "--address", "127.0.0.1:1"]) == 0
    assert f"0 rows of 0 files in {output}; 4 others finished before" in capfd.readouterr().err


@pytest.mark.usefixtures("cluster")
def test_vectors_are_those_of_the_command_without_ray(tiny_encoder: Path, tmp_path: Path) -> None:
    model = str(finished(BY_ID["similarity-mse"], tiny_encoder, tmp_path / "run").model)
    make_inputs(tmp_path / "in")
    words = ["embed", model, "--side", "query", "--input"]
    output = f"{tmp_path}/out/*.npy"
    assert main([*words, f"{tmp_path}/in/*.jsonl", "--output", output, "--engine", "ray", "--workers", "1"]) == 0
    assert main([*words, f"{tmp_path}/in/a.jsonl", "--output", f"{tmp_path}/alone.npy"]) == 0
    assert [file.name for file in (tmp_path / "out").glob("[!.]*")] == ["a.npy"]
    assert (tmp_path / "out" / "a.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()


@pytest.mark.usefixtures("cluster")
def test_a_store_has_the_documents_of_the_command_without_ray(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(finished(BY_ID["similarity-mse"], tiny_encoder, tmp_path / "run").model)
    texts = [f"{small.text(n, n % 2)} {'and the dog ' * (n % 7)}" for n in range(700)]
    documents = small.write_rows(tmp_path / "corpus.jsonl", [{"id": str(n), "text": t} for n, t in enumerate(texts)])
    words = ["index", model, "--documents", str(documents), "--store"]
    assert main([*words, str(tmp_path / "alone")]) == 0
    monkeypatch.setattr("bertkit.retrieval.models._unit_vectors", lambda *_: pytest.fail("it was encoded here"))
    assert main([*words, str(tmp_path / "by-ray"), "--engine", "ray"]) == 0
    alone, by_ray = (Store.open(tmp_path / name).table.to_arrow().sort_by("id") for name in ("alone", "by-ray"))
    assert by_ray.drop(["vector"]).equals(alone.drop(["vector"]))
    vectors = [np.stack(table["vector"].to_numpy()) for table in (alone, by_ray)]
    np.testing.assert_allclose(*vectors, atol=1e-6)
    assert main(["index", model, "--store", str(tmp_path / "alone"), "--delete", "7", "--engine", "ray"]) == 0


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_is_started_again_with_its_texts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    marker = tmp_path / "killed"

    def open_model() -> Callable[[Any], Any]:
        def lengths(texts: Any) -> Any:
            if "text 300" in texts and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return np.array([[float(text.split()[1]), os.getpid()] for text in texts])

        return lengths

    with encoders(open_model, workers=9) as ours:
        found = ours.encode([f"text {n}" for n in range(1000)])
    assert found[:, 0].tolist() == list(range(1000))
    assert ours.workers == 2 <= len(set(found[:, 1]))
    assert "the cluster has room for 2 of 9 workers" in caplog.text
    assert marker.exists()


@pytest.mark.usefixtures("cluster")
def test_what_is_wrong_in_a_worker_reaches_the_caller(tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"

    def no_model() -> Callable[[Any], Any]:
        raise ModelError(Problem("here", "there is no model", "Name one."))

    def no_disk() -> Callable[[Any], Any]:
        raise OSError(errno.ENOSPC, "No space left on device", "there")

    def deadly() -> Callable[[Any], Any]:
        with deaths.open("a") as file:
            file.write(".")
        os.kill(os.getpid(), signal.SIGKILL)
        return list

    for broken, error, message in (
        (no_model, ModelError, "here: there is no model\n    Name one"),
        (no_disk, OSError, "No space left on device: 'there'"),
        (deadly, UserError, "--engine ray: a worker failed: "),
    ):
        with encoders(broken, workers=1) as ours, pytest.raises(error, match=message) as raised:
            ours.encode(["some text"])
        assert type(raised.value) is error
    assert deaths.read_text() == "..."


def test_a_worker_with_other_files_of_the_model_is_refused(tiny_encoder: Path) -> None:
    files = fingerprint(tiny_encoder)
    assert document_encoder(str(tiny_encoder), files)(["some text"]).shape[0] == 1
    with pytest.raises(ModelError, match="has other files on a worker's machine"):
        document_encoder(str(tiny_encoder), "another")


@pytest.mark.usefixtures("cluster")
def test_the_lines_for_ray_data(model: Path, tmp_path: Path) -> None:
    """The page's code on a table of which Ray makes batches of four rows; a second core is needed to read it."""
    given = rows(0)[:8]
    pq.write_table(pa.Table.from_pylist(given), tmp_path / "reviews.parquet")
    code = re.search(r"^## On a Ray cluster.*?^```python\n(.*?)^```$", SCALING.read_text(), re.M | re.S)
    assert code
    text = code[1].replace("runs/sst2", str(model)).replace("batch_size=4096", "batch_size=4")
    text = text.replace("size=2", "size=1")
    text = text.replace('"reviews/"', repr(str(tmp_path))).replace('"answers/"', repr(str(tmp_path / "answers")))
    exec(text, {})
    made = sorted(pq.read_table(tmp_path / "answers").to_pylist(), key=lambda row: row["id"])
    predictor = bertkit.load(model)
    told = [a for start in (0, 4) for a in predictor([row["text"] for row in given[start : start + 4]])]
    assert made == [{**row, **dict(flat(answer, "answer."))} for row, answer in zip(given, told, strict=True)]


# --- workers without a model


def copying(source: str, **options: Any) -> Writing:
    """Writes what it reads, in capital letters; some texts are problems."""

    def write(file: Path, output: Path) -> int:
        text = file.read_text(encoding="utf-8")
        if "bad" in text:
            logging.getLogger("bertkit.worker").warning("this is bad")
            raise DataError([Problem(f"{file.name}:{line}", "holds `bad`", "Correct it.") for line in (1, 2)])
        if "full" in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(output))
        if "deadly" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text.upper())
        return text.count("\n")

    return write


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a model of no weights, and files of two rows each."""
    for name in ("in", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for name in "abc":
        (tmp_path / "in" / f"{name}.txt").write_text(f"{name}\n{name}\n")
    return tmp_path


def write_copies(place: Path, **options: Any) -> str:
    return write_files(copying, str(place / "model"), options, str(place / "in"), place / "out", (".txt",))


@pytest.mark.usefixtures("cluster")
def test_the_problems_of_all_files_are_reported_and_the_other_files_written(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (place / "in" / "a.txt").write_text("bad\n")
    (place / "in" / "c.txt").write_text("full\n")

    level = logging.getLogger("ray.data").level
    with pytest.raises(DataError) as caught:
        write_copies(place)
    assert logging.getLogger("ray.data").level == level != logging.ERROR
    out = place / "out"
    assert set(caught.value.problems) == {
        Problem("a.txt:1", "holds `bad`", "Correct it."),
        Problem("a.txt:2", "holds `bad`"),
        Problem(f"{out}/c.txt", os.strerror(errno.ENOSPC)),
    }
    assert f"{place}/in/a.txt: this is bad" in caplog.messages
    assert sorted(file.name for file in out.iterdir()) == [".bertkit.json", "b.txt"]
    (place / "in" / "a.txt").write_text("a\n")
    (place / "in" / "c.txt").write_text("c\n")
    assert write_copies(place) == f"2 rows of 2 files in {out}; 1 other finished before"


@pytest.mark.usefixtures("cluster")
def test_a_file_that_kills_each_worker_is_given_up_and_the_others_written(place: Path) -> None:
    (place / "in" / "b.txt").write_text("deadly\n")
    with pytest.raises(DataError, match=r"in/b\.txt: 3 workers died of it\n    If there was too little memory"):
        write_copies(place)
    assert sorted(file.name for file in (place / "out").iterdir()) == [".bertkit.json", "a.txt", "c.txt"]


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("failing", [None, "the block", "the connection"])
def test_the_levels_of_rays_loggers_are_as_before(
    running: bool, failing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray.data

    def init(address: str | None, *, logging_level: int, **_: Any) -> None:
        logging.getLogger("ray").setLevel(logging_level)  # as Ray does
        if failing == "the connection":
            raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "is_initialized", lambda: running)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    loggers = [logging.getLogger(name) for name in ("ray", "ray.data")]
    before, inside = [each.level for each in loggers], list[int]()
    try:
        for number, each in enumerate(loggers, 11):
            each.setLevel(number)
        with suppress(UserError), connected(None):
            inside = [each.level for each in loggers]
            if failing == "the block":
                raise UserError("a file cannot be read")
        assert [each.level for each in loggers] == [11, 12]
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)
    if running or failing != "the connection":
        assert inside == [11 if running else logging.WARNING, logging.ERROR]


def test_no_cluster_at_the_address(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def unreachable(address: str, **_: Any) -> None:
        raise ConnectionError(f"nobody at {address}\nmore")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", unreachable)
    with pytest.raises(UserError, match="no Ray cluster: nobody at there:6379\n    Name"):
        write_files(
            copying, str(place / "model"), {}, str(place / "in"), place / "out", (".txt",), address="there:6379"
        )
    assert not (place / "out").exists()


def test_without_a_cluster_there_is_no_store(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    documents = small.write_rows(tmp_path / "corpus.jsonl", [{"id": "1", "text": "some text"}])
    command = ["index", str(tiny_encoder), "--store", str(tmp_path / "store"), "--engine", "ray", "--documents"]
    assert main([*command, str(documents)]) == 2
    assert 'needs ray, which is not installed\n    pip install "bertkit[ray]"' in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_without_ray_the_command_says_how_to_install_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["predict", str(place / "model"), "--input", f"{place}/in", "--output", f"{place}/out", "--engine", "ray"]
    assert main(command) == 2
    assert 'needs ray, which is not installed\n    pip install "bertkit[ray]"' in capsys.readouterr().err
    assert not (place / "out").exists()


# --- which files


def names(found: tuple[Path, list[Planned]], root: Path) -> list[tuple[str, str]]:
    return [(str(each.file.relative_to(root)), str(each.output.relative_to(root))) for each in found[1]]


def test_files_of_a_folder_and_of_a_glob(tmp_path: Path) -> None:
    for name in (
        "in/a.jsonl",
        "in/b.csv.gz",
        "in/x/a.parquet",
        "in/_SUCCESS",
        "in/.c.csv",
        "in/_log/d.json",
        "in/n.md",
    ):
        small.write_rows(tmp_path / name, [])
    out, every = tmp_path / "in" / "x" / "out", str(tmp_path / "in")
    small.write_rows(out / "a.jsonl", [])  # what was written into a folder of the input is not read
    wanted = [("in/a.jsonl", "a"), ("in/b.csv.gz", "b"), ("in/x/a.parquet", "x/a")]
    assert names(plan_files(every, out, ANSWERS), tmp_path) == [(f, f"in/x/out/{o}.jsonl") for f, o in wanted]
    some = plan_files(f"{every}/**/?.*[lt]", tmp_path / "out" / "*.csv", ANSWERS)
    below = [("in/x/a.parquet", "out/x/a.csv"), ("in/x/out/a.jsonl", "out/x/out/a.csv")]
    assert names(some, tmp_path) == [("in/a.jsonl", "out/a.csv"), *below]
    assert names(plan_files(f"{every}/n.md", tmp_path / "out", ANSWERS), tmp_path) == [("in/n.md", "out/n.jsonl")]


@pytest.mark.parametrize(
    ("files", "output", "message"),
    [
        ("in/*.json", "out", "no such file"),
        ("in", "in", "is the folder of the input"),
        ("in/a.csv", "in", "is the folder of the input"),
        ("in", "out.csv", "each input file has an output of its own"),
        ("in", "out/*.parquet", "cannot write .parquet"),
        ("in", "out", r"a\.jsonl: would be the output of several files: .*a\.csv, .*a\.jsonl"),
    ],
)
def test_inputs_and_outputs_that_are_refused(files: str, output: str, message: str, tmp_path: Path) -> None:
    for name in ("a.csv", "a.jsonl"):
        small.write_rows(tmp_path / "in" / name, [])
    with pytest.raises(DataError, match=message):
        plan_files(str(tmp_path / files), tmp_path / output, ANSWERS)


def test_a_folder_with_other_outputs_is_refused(place: Path) -> None:
    small.write_rows(place / "out" / "mine.txt", [])
    with pytest.raises(DataError, match="files which were not written with --engine ray"):
        write_copies(place)
    (place / "out" / "mine.txt").unlink()
    made = {"model": fingerprint(place / "model"), "side": "query", "column": "text"}
    (place / "out" / ".bertkit.json").write_text(json.dumps(made))
    with pytest.raises(DataError, match="made with another side"):
        write_copies(place, side="text", column="text")
    (place / "model" / "config.json").write_text('{"another": 1}')
    with pytest.raises(DataError, match="made with another model"):
        write_copies(place, side="query", column="text")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--input", "x.csv", "--workers", "2"], "--workers works only with --engine ray"),
        (["--input", "x.csv", "--output", "o", "--engine", "ray", "--workers", "0"], "--workers: 0, where"),
        (["some text", "--engine", "ray"], "needs --input with files"),
        (["--input", "-", "--output", "o", "--engine", "ray"], "needs --input with files"),
        (["--input", "x.csv", "--output", "o", "--engine", "ray", "--shard", "1/2"], "divides by files"),
        (["--input", "x.csv", "--engine", "ray"], "needs --input with files, and --output with a folder"),
        (["--input", "x.csv", "--output", "o", "--engine", "ray", "--format", "glue"], "writes one file"),
    ],
)
def test_options_that_are_refused(
    words: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(place / "model"), *words]) == 2
    assert message in capsys.readouterr().err


def test_several_processes_have_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_options("ray", "there", 2, None) == {"address": "there", "workers": 2}
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="without torchrun"):
        cluster_options("ray", None, None, None)
