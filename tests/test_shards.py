"""--shard: jobs that know nothing of each other write parts that are the whole output, one after the
other.
"""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import CASES, TEXTS, encoder
from sharded import SETTINGS
from small import refused, said, write_rows
from transformers import set_seed

from bertkit.processes import Shard
from bertkit.tasks import OURS
from bertkit.training.seed import save
from bertkit.vectors import cache, embed, features

# 11, in chunks of 3, of which some texts are repeated
ROWS = [
    {"id": f"r{number}", "text": text}
    for number, text in enumerate([*TEXTS, TEXTS[0], "a dog ran", TEXTS[3]])
]


@pytest.fixture(scope="module")
def models(tiny_encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for case in CASES:
        if case.id in "single-label similarity-in-batch retrieval ner-document".split():
            set_seed(5)
            task = case.task(tiny_encoder)
            save(task.model(encoder(tiny_encoder)), task, folder / case.id, SETTINGS)
    return folder


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    for kind in OURS.values():
        monkeypatch.setattr(kind, "chunk_size", 3)
    for module in (embed, features, cache):
        monkeypatch.setattr(module, "CHUNK", 3)


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", ROWS)


@pytest.mark.parametrize("chunk", [1, 3, 4096])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_parts_are_contiguous_whole_chunks_and_even(chunk, count):
    for total in (count * chunk, 7 * chunk + 1, 100 * chunk - 1):
        if -(-total // chunk) < count:
            continue
        parts = [Shard(number, count).rows("x", total, chunk) for number in range(1, count + 1)]
        assert [row for part in parts for row in part] == list(range(total))
        assert all(part.start % chunk == 0 and len(part) for part in parts)
        chunks = [-(-len(part) // chunk) for part in parts]
        assert max(chunks) - min(chunks) <= 1


@pytest.mark.parametrize(("case", "count"), [("single-label", 1), ("ner-document", 4)])
def test_answers_of_parts_are_those_of_the_whole(case, count, models, tmp_path, capsys):
    """Also for a task that reads sentences with their neighbours."""
    texts = [{**row, "document": "one"} for row in ROWS] if case == "ner-document" else ROWS
    file = write_rows(tmp_path / "in.jsonl", texts)
    made = tmp_path / "made.jsonl"
    command = ("predict", models / case, "--input", file, "--output", made)
    said(capsys, *command)
    whole = made.read_bytes()
    parts = b""
    for number in range(1, count + 1):
        said(capsys, *command, "--shard", f"{number}/{count}")
        parts += made.read_bytes()
    assert parts == whole
    assert whole.count(b"\n") == len(ROWS)


def test_vectors_of_parts_are_those_of_the_whole(models, rows, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/cache")
    command = ("embed", models / "similarity-in-batch", "--input", rows, "--output")
    shards = [["--shard", f"{number}/3"] for number in (1, 2, 3)]
    for number, shard in enumerate([[], *shards]):
        said(capsys, *command, tmp_path / f"{number}.npy", *shard)
        said(capsys, *command, tmp_path / f"{number}.parquet", *shard)
    arrays = [np.load(tmp_path / f"{number}.npy") for number in range(4)]
    assert np.array_equal(np.concatenate(arrays[1:]), arrays[0])
    tables = [pq.read_table(tmp_path / f"{number}.parquet") for number in range(4)]
    assert pa.concat_tables(tables[1:]).equals(tables[0])
    assert tables[0]["id"].to_pylist() == [row["id"] for row in ROWS]


def test_shards_that_are_none_or_more_than_chunks_are_refused(models, rows, tmp_path, capsys):
    out = tmp_path / "out"
    for command in (
        ["predict", f"{models}/single-label", "--input", rows, "--output", f"{out}/made.jsonl"],
        ["embed", f"{models}/similarity-in-batch", "--input", rows, "--output", f"{out}/made.npy"],
    ):
        for shard in ("0/4", "5/4", "a/b", "1/0", "1", "1/2/3", "-1/4", "1.5/4", "", f"1/1{0:05000}"):
            assert f"error: shard {shard}: not a part: i/n is expected" in refused(
                capsys, *command, f"--shard={shard}"
            )
        told = refused(capsys, *command, "--shard", "1/12")
        assert f"error: shard 1/12: {rows} has 11 rows" in told
        assert "4 chunks of up to 3" in told
        assert "at most 4 shards" in told
    assert not out.exists()


def test_a_row_has_its_number_in_the_file(models, tmp_path, capsys):
    file = write_rows(tmp_path / "in.jsonl", [*ROWS[:10], {"id": "bad"}])
    command = ("predict", models / "single-label", "--input", file, "--output", tmp_path / "out.jsonl")
    said(capsys, *command, "--shard", "1/2")
    (tmp_path / "out.jsonl").unlink()
    assert "row 11" in refused(capsys, *command, "--shard", "2/2")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--input", "-"], "it reads the input twice"),
        (["a text"], "work only with --input FILE"),
        ("--input ROWS --output made.csv".split(), "files that can be concatenated"),
        ("--input ROWS --output made.conll --format conll".split(), "files that can be concatenated"),
    ],
)
def test_what_has_no_parts_is_refused(more, message, models, rows, capsys):
    words = [word.replace("ROWS", str(rows)) for word in more]
    assert message in refused(capsys, "predict", models / "single-label", *words, "--shard", "1/2")
    told = refused(capsys, "predict", models / "retrieval", "--input", rows, "--shard", "1/2")
    assert "ranked together" in told


@pytest.mark.parametrize("rank", [0, 1])
def test_under_torchrun_each_process_writes_its_part(rank, models, rows, tmp_path, monkeypatch, capsys):
    """As in `--shard $((RANK + 1))/$WORLD_SIZE`."""
    words = ("predict", models / "single-label", "--input", rows, "--output")
    said(capsys, *words, tmp_path / "alone.jsonl", "--shard", f"{rank + 1}/2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", str(rank))
    said(capsys, *words, tmp_path / "part.jsonl", "--shard", f"{rank + 1}/2")
    assert (tmp_path / "part.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()


@pytest.mark.parametrize("command", "predict embed explain evaluate calibrate index mine serve".split())
def test_several_processes_without_a_part_are_refused(command, monkeypatch, capsys):
    needed = {
        "embed": "--input x.csv --output x.npy".split(),
        "index": ["--store", "x"],
        "mine": "--data x --output x.jsonl".split(),
    }
    monkeypatch.setenv("WORLD_SIZE", "2")
    told = refused(capsys, command, "nowhere", *needed.get(command, []))
    assert (
        "WORLD_SIZE: all 2 processes would do the same work\n    Start one process, without torchrun" in told
    )
    assert ("--shard $((RANK + 1))/$WORLD_SIZE" in told) == (command in ("predict", "embed"))
