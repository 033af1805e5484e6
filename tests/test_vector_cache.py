"""Vectors on disk: what decides a vector decides where it is kept; crashes, damage and full disks give no
wrong one.
"""

import hashlib
import multiprocessing
import os
import shutil
import signal
import sqlite3
import time
import warnings
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small import raised

from bertkit import cache
from bertkit.cache import fingerprint, sha256_of_json
from bertkit.vectors import cache as vector_cache
from bertkit.vectors.cache import cached

KEY = {"model": "m", "layers": [1]}


def number(text):
    """A vector of a text must be recognisable: its second number says which text it belongs to."""
    return float(sum(text.encode("utf-8", "surrogatepass")) % 1000)


class Encoder:
    """Counts what it was asked for."""

    def __init__(self):
        self.seen = []

    def __call__(self, texts):
        self.seen += texts
        return np.asarray([[len(text), number(text)] for text in texts], dtype=np.float32).reshape(-1, 2)


@pytest.fixture(autouse=True)
def _root(tmp_path, monkeypatch):
    """The folder of the cache, for child processes too."""
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path))


def through(texts, key=None):
    """The vectors, and the texts that were encoded for them."""
    encoder = Encoder()
    return cached(texts, encoder, key=key or KEY), encoder.seen


def right(texts):
    return [[float(len(text)), number(text)] for text in texts]


def database(root):
    (file,) = root.glob("*/vectors.sqlite")
    return file


def test_vectors_are_of_fp32_and_the_order_of_a_key_counts_for_nothing():
    vectors, seen = through(["a", "bb", "a"])
    assert (vectors.tolist(), seen, vectors.dtype) == (right(["a", "bb", "a"]), ["a", "bb"], np.float32)
    assert through(["a", "bb"], {"layers": [1], "model": "m"})[1] == []
    assert through([])[0].shape == (0, 2)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.lists(st.text(st.characters(codec=None), max_size=3), max_size=8), max_size=8))
def test_any_texts_in_any_order(calls):
    """Lone surrogates, NUL and texts that end in zero bytes among them."""
    key = {"example": time.perf_counter_ns()}
    known = set()
    for texts in calls:
        vectors, seen = through(texts, key)
        assert vectors.tolist() == right(texts)
        assert sorted(seen) == sorted(set(texts) - known)
        known |= set(texts)


@pytest.mark.parametrize("change", ["key", "model"])
def test_a_change_never_hits_what_was_kept_before(change):
    through(["a"])
    assert through(["a"], KEY | ({"layers": [2]} if change == "key" else {"model": "n"}))[1] == ["a"]


def test_what_is_cached_is_for_its_owner_alone(tmp_path, monkeypatch):
    """Whatever the umask: vectors and features reveal much of their texts."""
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/new")
    before = os.umask(0o022)
    try:
        through(["a"])
        folder, _ = cache.cached_folder(KEY, lambda folder: None, root=tmp_path / "features")
    finally:
        os.umask(before)
    assert [oct(path.stat().st_mode & 0o777) for path in (tmp_path / "new", folder)] == ["0o700"] * 2


# --- the model's files


def model(folder):
    for name in "config.json model.safetensors tokenizer.json modules.json 1_Pooling/config.json".split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"of {name}")
    return folder


@pytest.mark.parametrize(
    "name", "config.json model.safetensors tokenizer.json modules.json 1_Pooling/config.json".split()
)
def test_every_file_that_decides_vectors_is_in_the_fingerprint(tmp_path, name):
    folder = model(tmp_path / "model")
    before = fingerprint(folder)
    (folder / "README.md").write_text("says nothing about vectors")
    assert fingerprint(folder) == before
    assert fingerprint(shutil.copytree(folder, tmp_path / "copy")) == before
    (folder / name).write_text(f"OF {name}")  # of the same size
    assert fingerprint(folder) != before
    (folder / name).unlink()
    assert fingerprint(folder) != before


def test_a_big_file_is_hashed_once_and_again_when_it_changes(tmp_path, monkeypatch):
    folder = model(tmp_path / "model")
    hashed = []
    monkeypatch.setattr(
        cache, "sha256", lambda file, real=cache.sha256: hashed.append(file.name) or real(file)
    )
    monkeypatch.setattr(cache, "_BIG", 1)
    fingerprint(folder)  # of files written just now, whose next change could come within the clock's tick
    assert not (tmp_path / "digests").exists()
    hashed.clear()
    monkeypatch.setattr(cache, "_SETTLED", -1.0)
    first = fingerprint(folder)
    assert len(hashed) == 5
    assert fingerprint(folder) == first
    assert len(hashed) == 5
    for memory in (tmp_path / "digests").iterdir():
        memory.write_bytes(b"\xff\xfe")  # what is damaged is computed again
    assert fingerprint(folder) == first
    assert len(hashed) == 10
    (folder / "model.safetensors").write_text("OF model.safetensors")
    os.utime(folder / "model.safetensors", (1, 1))
    assert fingerprint(folder) != first
    assert hashed[10:] == ["model.safetensors"]


# --- several processes, crashes, damage, full disks


def write(first):
    for start in range(first, first + 60, 6):
        texts = [f"text {n}" for n in range(start, start + 12)]
        assert cached(texts, Encoder(), key=KEY).tolist() == right(texts)


def test_concurrent_writers_give_a_whole_store(tmp_path):
    """Two at once, who write the same texts in part, and merge each other's segments."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write, args=(first,)) for first in (0, 30)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 2
    texts = [f"text {n}" for n in range(96)]
    vectors, seen = through(texts)
    assert vectors.tolist() == right(texts)
    assert seen == []


def die():
    """Be killed before the vectors that are written are committed."""
    real = sqlite3.connect

    class Connection(sqlite3.Connection):
        def executemany(self, *args):
            super().executemany(*args)
            os.kill(os.getpid(), signal.SIGKILL)

    sqlite3.connect = lambda *args, **options: real(*args, factory=Connection, **options)
    cached(["b", "c"], Encoder(), key=KEY)


def test_a_killed_writer_leaves_nothing_half_read():
    through(["a"])
    worker = multiprocessing.get_context("spawn").Process(target=die)
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    vectors, seen = through(["a", "b", "c"])
    assert (vectors.tolist(), seen) == (right(["a", "b", "c"]), ["b", "c"])


def change(file, statement):
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-20_000]),
        lambda file: file.write_bytes(b"xyz" * 999),
        lambda file: change(file, "UPDATE vectors SET vector = x'0000803f0000803f' WHERE length(vector) = 8"),
        lambda file: change(file, "UPDATE vectors SET vector = 'eight ch'"),
        lambda file: change(file, "UPDATE vectors SET vector = NULL"),
        lambda file: change(file, "UPDATE vectors SET vector = x''"),
        lambda file: change(file, "UPDATE vectors SET checksum = checksum + 1"),
        lambda file: change(file, "ALTER TABLE vectors RENAME vector TO other"),
    ],
)
def test_a_damaged_file_is_removed_and_its_texts_are_encoded_again(tmp_path, spoil):
    through(["a", "bb"])
    spoil(database(tmp_path))
    with pytest.warns(UserWarning, match=r"vectors\.sqlite is damaged"):
        vectors, seen = through(["a", "bb", "ccc"])
    assert (vectors.tolist(), seen) == (right(["a", "bb", "ccc"]), ["a", "bb", "ccc"])
    assert through(["a", "bb", "ccc"])[1] == []  # and without a warning


def test_a_vector_of_another_text_is_noticed(tmp_path):
    """As a damaged index would return it."""
    through(["a", "bb"])
    one, other = (hashlib.sha256(text.encode()).hexdigest() for text in ("a", "bb"))
    change(database(tmp_path), f"UPDATE vectors SET text = x'00' WHERE text = x'{one}'")
    change(database(tmp_path), f"UPDATE vectors SET text = x'{one}' WHERE text = x'{other}'")
    with pytest.warns(UserWarning, match="the checksum of a vector differs"):
        assert through(["a"])[0].tolist() == right(["a"])


@pytest.mark.parametrize("part", ["whole", "rows"])
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_gives_no_wrong_vector(tmp_path, part, place, bit):
    key = {"example": time.perf_counter_ns()}
    through(["a", "bb"], key)
    file = tmp_path / sha256_of_json(key)[:32] / "vectors.sqlite"
    content = file.read_bytes()
    used = [n for n, byte in enumerate(content) if byte] if part == "rows" else range(len(content))
    spoilt = bytearray(content)
    spoilt[used[int(place * len(used))]] ^= 1 << bit
    file.write_bytes(spoilt)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is damaged, where the text is not merely unknown now
        assert through(["bb", "a"], key)[0].tolist() == right(["bb", "a"])
        assert through(["bb", "a", "c"], key)[0].tolist() == right(["bb", "a", "c"])


def test_a_full_disk_costs_nothing_but_one_warning(monkeypatch):
    real = sqlite3.connect

    def small(*args, **options):
        connection = real(*args, **options)
        connection.execute("PRAGMA max_page_count = 4")  # SQLite reports a file of this size as a full disk
        return connection

    texts = [f"text {n}" for n in range(2000)]
    through(texts[:1])
    with monkeypatch.context() as patch:
        patch.setattr(vector_cache, "CHUNK", 500)
        patch.setattr(sqlite3, "connect", small)
        with pytest.warns(UserWarning, match="is full") as messages:
            vectors, _ = through(texts)
    assert len(messages) == 1
    assert vectors.tolist() == right(texts)
    vectors, seen = through(texts)
    assert vectors.tolist() == right(texts)
    assert seen == texts[-len(seen) :] != texts


def test_a_cache_that_cannot_be_written_is_still_read_and_a_root_may_be_no_folder(tmp_path, monkeypatch):
    through(["a"])
    change(database(tmp_path), "PRAGMA user_version = 1")
    content = bytearray(database(tmp_path).read_bytes())
    content[18] = 3  # a file format that this SQLite reads, but does not write
    database(tmp_path).write_bytes(content)
    with pytest.warns(UserWarning, match="computed without the cache"):
        vectors, seen = through(["a", "b"])
    assert (vectors.tolist(), seen) == (right(["a", "b"]), ["b"])
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/file")
    with pytest.warns(UserWarning, match="BERTKIT_CACHE"):
        assert through(["a"])[0].tolist() == right(["a"])


def test_another_process_that_writes_is_waited_for(tmp_path, monkeypatch):
    """But not for ever."""
    through(["a"])
    monkeypatch.setattr(vector_cache, "_WAIT", 0.01)
    with closing(sqlite3.connect(database(tmp_path), isolation_level="EXCLUSIVE")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.warns(UserWarning, match=r"database is locked.* If this happens again, free some space"):
            assert through(["a"])[0].tolist() == right(["a"])
    assert through(["a"])[1] == []


def test_what_was_encoded_is_kept_after_every_chunk(monkeypatch):
    monkeypatch.setattr(vector_cache, "CHUNK", 2)

    def fail(texts):
        if "e" in texts:
            raise RuntimeError("the lights went out")
        return Encoder()(texts)

    raised(RuntimeError, cached, list("abcdef"), fail, key=KEY)
    assert through(list("abcdef"))[1] == ["e", "f"]


def test_a_graph_of_another_program_is_not_in_the_fingerprint(tmp_path):
    folder = model(tmp_path / "model")
    before = fingerprint(folder)
    (folder / "onnx").mkdir()
    (folder / "onnx/model.onnx").write_text("of another program")
    assert fingerprint(folder) == before
    (folder / "model.onnx").write_text("ours")
    assert fingerprint(folder) != before


def test_a_file_replaced_with_its_old_time_is_hashed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_BIG", 1)
    monkeypatch.setattr(cache, "_SETTLED", -1.0)
    folder = model(tmp_path / "model")
    first = fingerprint(folder)
    file = folder / "model.safetensors"
    before = file.stat()
    time.sleep(0.05)  # more than a tick of the file system's clock
    file.write_text("OF model.safetensors")  # of the same size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fingerprint(folder) != first
