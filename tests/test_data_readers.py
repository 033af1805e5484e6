"""Every reader on files that are fine, and on files that are not: rows, or a DataError that says where."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import lzma
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small import message_of, raises
from test_data import SCHEMA

from bertkit.data import check, label_names, load, read_rows, read_stream
from bertkit.data.decoding import MAX_LINE, text_lines
from bertkit.data.table import Problems
from bertkit.errors import DataError
from bertkit.sections import DataSpec


def spec(**settings: Any) -> DataSpec:
    return DataSpec.model_validate({"source": "unused", **settings})


def read(tmp_path, name, content, **settings):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_rows(path, spec(**settings)))


def fails(tmp_path, name, content, **settings):
    return message_of(DataError, read, tmp_path, name, content, **settings).replace(str(tmp_path / name), name)


AB = [(2, {"text": "a", "label": "x"}), (3, {"text": "b", "label": "y"})]
FINE = [
    ("one line", "t.txt", "a\r", {"format": "lines"}, [(1, {"text": "a"})]),
    ("a carriage return in a text", "t.txt", "a\rb\n", {"format": "lines"}, [(1, {"text": "a\rb"})]),
    ("plain", "t.csv", "text,label\na,x\nb,y\n", {}, AB),
    ("no newline at the end", "t.csv", "text,label\na,x\nb,y", {}, AB),
    ("Windows lines", "t.csv", "text,label\r\na,x\r\nb,y\r\n", {}, AB),
    ("byte order mark", "t.csv", b"\xef\xbb\xbftext,label\na,x\nb,y\n", {}, AB),
    ("byte order mark inside quotes", "t.csv", b'\xef\xbb\xbf"text",label\na,x\nb,y\n', {}, AB),
    ("blanks around names", "t.csv", " text , label\na,x\nb,y\n", {}, AB),
    ("blank lines", "t.csv", "text,label\na,x\nb,y\n\n\n", {}, AB),
    ("semicolons", "t.csv", "text;label\na;x\nb;y\n", {"delimiter": ";"}, AB),
    ("cp1252", "t.csv", "text\n€ß\n".encode("cp1252"), {"encoding": "cp1252"}, [(2, {"text": "€ß"})]),
    ("latin-1", "t.tsv", "text\nß\n".encode("latin-1"), {"encoding": "latin-1"}, [(2, {"text": "ß"})]),
    ("UTF-16", "t.csv", "text,label\r\na,x\r\nb,y\r\n".encode("utf-16"), {"encoding": "utf-16"}, AB),
    ("no mark", "t.csv", "text\nĊ\n".encode("utf-16-be"), {"encoding": "utf-16-be"}, [(2, {"text": "Ċ"})]),
    ("UTF-32", "t.csv", "text,label\na,x\nb,y\n".encode("utf-32"), {"encoding": "utf-32"}, AB),
    ("shift_jis", "t.csv", "text\n表\n".encode("shift_jis"), {"encoding": "shift_jis"}, [(2, {"text": "表"})]),
    ("json in cp1252", "t.json", '[{"a": "ß"}]'.encode("cp1252"), {"encoding": "cp1252"}, [(1, {"a": "ß"})]),
    ("a comma in one column", "t.csv", "a;b\nx;y\n", {"delimiter": ","}, [(2, {"a;b": "x;y"})]),
    ("a semicolon in one column without a header", "t.csv", "x;y\n", {"header": ["a"]}, [(1, {"a": "x;y"})]),
    ("tabs", "t.tsv", "text\tlabel\na\tx\nb\ty\n", {}, AB),
    ("tabs in .csv", "t.csv", "text\tlabel\na\tx\nb\ty\n", {"format": "tsv"}, AB),
    ("no header", "t.csv", "a,x\n", {"header": ["text", "label"]}, [(1, {"text": "a", "label": "x"})]),
    ("fields beyond the names", "t.csv", "text\na,1,2\n", {"extra_fields": "ignore"}, [(2, {"text": "a"})]),
    ("too few fields", "t.csv", "a,b\nx\n1,2\ny\n", {"missing_fields": "ignore"}, [(3, {"a": "1", "b": "2"})]),
    ("one column: a blank line is a row", "t.csv", "a\nx\n\n", {}, [(2, {"a": "x"}), (3, {"a": ""})]),
    ("text stays text", "t.csv", "a,b,c,d\nNA,null,1.0,\n", {}, [(2, {"a": "NA", "b": "null", "c": "1.0", "d": ""})]),
    ("quotes", "t.csv", 'a,b\n"x, ""y""",z\n', {}, [(2, {"a": 'x, "y"', "b": "z"})]),
    ("lines inside quotes", "t.csv", 'a\n"x\ny"\nz\n', {}, [(2, {"a": "x\ny"}), (4, {"a": "z"})]),
    ("a quote inside a plain field", "t.csv", 'a,b\n5" pipe,z\n', {}, [(2, {"a": '5" pipe', "b": "z"})]),
    ("quotes are text in tsv", "t.tsv", 'a\tb\n"x\ty"\n', {}, [(2, {"a": '"x', "b": 'y"'})]),
    ("quotes between tabs", "t.tsv", 'a\tb\n"x\ty"\tz\n', {"format": "csv", "delimiter": "\t"},
     [(2, {"a": "x\ty", "b": "z"})]),
    ("quotes as text", "t.csv", 'a,b\n"x,y"\n', {"format": "tsv", "delimiter": ","}, [(2, {"a": '"x', "b": 'y"'})]),
    ("unusual line separators are text", "t.tsv", "a\nx\u2028\x85y\x0c\n", {}, [(2, {"a": "x\u2028\x85y\x0c"})]),
    ("json lines", "t.jsonl", '{"a": 1}\n\n{"a": [true, null]}\n', {}, [(1, {"a": 1}), (3, {"a": [True, None]})]),
    ("a surrogate pair", "t.jsonl", r'{"a": "\ud83d\ude00"}', {}, [(1, {"a": "😀"})]),
    ("json list", "t.json", '[{"a": 1},\n {"a": 2}]', {}, [(1, {"a": 1}), (2, {"a": 2})]),
    ("json data", "t.json", '{"version": [1], "data": [{"a": 1}]}', {}, [(1, {"a": 1})]),
    ("json, one list", "t.json", '{"version": "1", "rows": [{"a": 1}]}', {}, [(1, {"a": 1})]),
    ("json lines in .json", "t.json", '{"a": 1}\n{"a": 2}\n', {"format": "jsonl"}, [(1, {"a": 1}), (2, {"a": 2})]),
]  # fmt: skip


def test_reads(tmp_path, subtests):
    for what, name, content, layout, rows in FINE:
        with subtests.test(what):
            assert read(tmp_path, name, content, **layout) == rows


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_reads_packed_files(tmp_path, suffix, pack):
    for name, content in {"t.csv": "text,label\na,x\nb,y\n", "t.tsv": "text\tlabel\na\tx\nb\ty\n"}.items():
        assert read(tmp_path, f"{name}.{suffix}", pack(content.encode())) == AB
    for name, content in {"t.jsonl": '{"a": 1}\n{"a": 2}\n', "t.json": '[{"a": 1},\n {"a": 2}]'}.items():
        assert read(tmp_path, f"{name}.{suffix}", pack(content.encode())) == [(1, {"a": 1}), (2, {"a": 2})]
    wide = pack("a,b\n\u010a,y\n".encode("utf-16-le"))
    assert read(tmp_path, f"t.csv.{suffix}", wide, encoding="utf-16-le") == [(2, {"a": "\u010a", "b": "y"})]


CP1252, SEMICOLON = "'data.encoding=cp1252'", "'data.delimiter=\";\"'"
SAD = [
    ("bad byte", "t.csv", b"text\na\ncaf\xe9", {}, ["t.csv:3: byte 0xE9 at column 4 is not", "'café'", CP1252]),
    ("bad bytes", "t.csv", b"a\n\xe9\n\xe9\n\xe9", {}, ["t.csv:3: byte 0xE9 at column 1 is not UTF-8\nt.csv:4: byte"]),
    ("not cp1252", "t.csv", "a\nÁ\n".encode(), {"encoding": "cp1252"}, ["not CP1252", "reads 'Á'", "encoding=utf-8'"]),
    ("UTF-8 as ASCII", "t.csv", "a\né\n".encode(), {"encoding": "ascii"}, ["reads 'é'", "'data.encoding=utf-8'"]),
    ("of no encoding", "t.csv", b"a\n\x81\n", {}, ["t.csv:2: byte 0x81", "name its encoding, e.g."]),
    ("UTF-16", "t.csv", "text\na\n".encode("utf-16"), {}, ["t.csv: the file is UTF-16", "{encoding: utf-16}"]),
    ("UTF-16 LE", "t.csv", "text\na\n".encode("utf-16-le"), {}, ["t.csv:1: a NUL byte at column 2"]),
    ("UTF-16 in json", "t.json", "[]".encode("utf-16"), {}, ["the file is UTF-16", "{encoding: utf-16}"]),
    ("a mark of UTF-8", "t.csv", b"\xef\xbb\xbfa\nb\n", {"encoding": "cp1252"}, ["the file is UTF-8", ": utf-8}"]),
    ("half a UTF-16", "t.csv", b"\xff\xfea\0\n\0\0\xd8b\0", {"encoding": "utf-16"}, ["line 0 something is not UTF-16"]),
    ("half a json", "t.json", b"\xff\xfe[\0\0\xd8]\0", {"encoding": "utf-16"}, ["line 0 something is not UTF-16"]),
    ("semicolons", "t.csv", "a;b;c\nx,y;1;2\n", {}, ["t.csv:1: the first line has 1 field, but 3 where", SEMICOLON]),
    ("semicolons in quotes", "t.csv", '"a, b";"c"\n"x\n";y\n', {}, ["1 field, but 2 where ';'", SEMICOLON]),
    ("semicolons, one comma", "t.csv", "a;b, c;d\nx;y;z\n", {}, ["t.csv:2: 1 field where 2 are expected"]),
    ("semicolons and names", "t.csv", "x;y\n", {"header": ["a", "b"]}, ["1 field, but 2", SEMICOLON]),
    ("tabs in csv", "t.csv", "a\tb\nx\ty\n", {}, ["1 field, but 2", 'data.delimiter="\\t"']),
    ("commas in tsv", "t.tsv", "a,b\nx,y\n", {}, ["1 field, but 2", 'delimiter: ","']),
    ("both", "t.csv", b"a;b\nx;y\n\xfc;y\n", {}, ["t.csv:1: the first", SEMICOLON, "t.csv:3: byte 0xFC", CP1252]),
    ("too few fields", "t.csv", "a,b\nx,y\nz\n", {}, ["t.csv:3: 1 field where 2 are expected"]),
    ("too few is never fine", "t.csv", "a,b\nz\n", {"extra_fields": "ignore"}, ["t.csv:2: 1 field"]),
    ("too few of two rows", "t.tsv", "a\tb\nx\n1\t2\ny\n", {}, ["data.missing_fields=ignore", "t.tsv:4: 1 field"]),
    ("too many fields", "t.csv", "a,b\nx,y,z\n", {}, ["t.csv:2: 3 fields where 2", "extra_fields: ignore"]),
    ("too many, few are fine", "t.csv", "a\nx,y\n", {"missing_fields": "ignore"}, ["2 fields", "extra_fields=ignore"]),
    ("two bad rows", "t.csv", "a,b\nx\ny\nz,z\n", {}, ["t.csv:2:", "t.csv:3:"]),
    ("empty", "t.csv", "", {}, ["t.csv: the file is empty"]),
    ("header only", "t.csv", "a,b\n", {}, ["t.csv: holds no rows"]),
    ("header twice", "t.csv", "a,b\nx,y\n", {"header": ["a", "b"]}, ["t.csv:1: the first row repeats"]),
    ("header without names", "t.csv", "x,y\n", {"header": False}, ["needs the names of its columns", "header: ["]),
    ("same name twice", "t.csv", "a, a,b\n1,2,3\n", {}, ["t.csv:1: duplicate columns in the header: a"]),
    ("many names twice", "t.csv", ",".join(f"{n:04}" for n in range(2000)) + ",0001" * 2, {}, ["header: 0001"]),
    ("all names twice", "t.csv", ",".join(f"{n % 99:02}" for n in range(198)), {}, ["00, 01,", "19 and 79 more"]),
    ("NUL", "t.csv", "a,b\nx,\0\n", {}, ["t.csv:2: a NUL byte at column 3"]),
    ("unclosed quote", "t.csv", 'a,b\nx,y\n"z,y\nx,y\n', {}, ["t.csv:3: a quote that opens in this row is never"]),
    ("text after a quote", "t.csv", 'a,b\n"x"z,y\n', {}, ["t.csv:2: text follows a closing quote"]),
    ("old Mac lines", "t.csv", "a,b\rx,y\r", {}, ["t.csv:1: a carriage return outside quotes"]),
    ("a carriage return outside quotes", "t.csv", "a,b\nx\rz,y\n", {}, ["t.csv:2: a carriage return outside quotes"]),
    ("empty jsonl", "t.jsonl", " \n\n", {}, ["t.jsonl: holds no rows"]),
    ("cut json line", "t.jsonl", '{"a": 1}\n{"a": x\n', {}, ["t.jsonl:2: not JSON: Expecting value at column 7"]),
    ("list line", "t.jsonl", "[1]\n", {}, ["t.jsonl:1: a list, where an object"]),
    ("number line", "t.jsonl", "17\n", {}, ["t.jsonl:1: 17, where an object"]),
    ("half a surrogate", "t.jsonl", r'{"a": "\ud83d"}', {}, ["t.jsonl:1: half of a surrogate pair"]),
    ("deep", "t.jsonl", "[" * 200_000, {}, ["t.jsonl:1: not JSON that can be read"]),
    ("long number", "t.jsonl", '{"a": ' + "9" * 5000 + "}", {}, ["t.jsonl:1: not JSON that can be read"]),
    ("empty json", "t.json", "", {}, ["t.json:1: the file is empty"]),
    ("empty json list", "t.json", "[]", {}, ["t.json: holds no rows"]),
    ("json lines in .json", "t.json", '{"a": 1}\n{"a": 2}\n', {}, ["t.json:2: not JSON", "format: jsonl"]),
    ("bad byte in json", "t.json", b'[\n"caf\xe9"]', {}, ["t.json:2: byte 0xE9 at column 5"]),
    ("json item", "t.json", '[{"a": 1}, 2]', {}, ["t.json, row 2: 2, where an object"]),
    ("json of a frame", "t.json", '{"text": {"0": "a"}, "label": {"0": "x"}}', {}, ['orient="records", lines=True)']),
    ("json without a list", "t.json", '{"a": 1}', {}, ["expected a list of objects"]),
    ("json with two lists", "t.json", '{"a": [], "b": []}', {}, ["expected a list of objects"]),
    ("not parquet", "t.parquet", "PAR1 or so", {}, ["cannot be read as parquet"]),
    ("arrow", "t.arrow", "x", {}, ["a .arrow file is not read", "or .parquet"]),
    ("unknown suffix", "t.log", "x", {}, [".csv, .tsv, .xlsx, .json, .jsonl, .parquet", "format:"]),
    ("an old workbook", "t.xls", "x", {}, ["a .xls file is not read", "save it as .xlsx, .csv"]),
    ("not gzip", "t.csv.gz", "text\na\n", {}, ["archive is damaged"]),
    ("not xz", "t.csv.xz", "text\na\n", {}, ["archive is damaged"]),
]  # fmt: skip


def test_says_what_is_wrong(tmp_path, subtests):
    for what, name, content, layout, parts in SAD:
        with subtests.test(what):
            message = fails(tmp_path, name, content, **layout)
            assert all(part in message for part in parts), message


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_a_cut_archive_is_an_error_and_not_fewer_rows(tmp_path, suffix, pack):
    whole = pack("".join(f'{{"text": "row {i * 7919}"}}\n' for i in range(5000)).encode())
    assert "damaged or incomplete" in fails(tmp_path, f"t.jsonl.{suffix}", whole[: len(whole) // 2])


def test_a_folder_and_a_missing_file(tmp_path):
    (tmp_path / "d.csv").mkdir()
    raises(DataError, "cannot be read: Is a directory", next, read_rows(tmp_path / "d.csv", spec()))
    raises(DataError, "No such file", next, read_rows(tmp_path / "none.csv", spec()))


def test_problems_end_at_twenty_and_an_unclosed_quote_does_not_swallow_a_large_file(tmp_path):
    message = fails(tmp_path, "t.csv", "a,b\n" + "x\n" * 50)
    assert message.count("where 2 are expected") == 20
    assert "t.csv:21:" in message
    assert "and perhaps more" in message
    text = 'a,b\n"x,y\n' + f"{'x' * 1000},y\n" * (MAX_LINE // 500)
    before = csv.field_size_limit()
    message = fails(tmp_path, "t.csv", text)
    assert message.startswith("t.csv:2: a quote that opens in this row is not closed within")
    assert csv.field_size_limit() == before


def test_a_long_quoted_text_is_read_and_an_endless_line_is_not(tmp_path):
    long = "word " * 100_000
    assert read(tmp_path, "t.csv", f'a,b\n"{long}",y\n') == [(2, {"a": long, "b": "y"})]
    assert "t.jsonl:1: the line is longer than" in fails(tmp_path, "t.jsonl", "x" * (MAX_LINE + 1))
    ((_, row),) = read(tmp_path, "t.jsonl", '{"a": "' + "x" * (MAX_LINE - 9) + '"}')  # exactly the longest line
    assert len(row["a"]) == MAX_LINE - 9


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.parquet.xz"])
def test_what_is_held_whole_has_a_limit(name, tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.data.arrow.MAX_WHOLE", 1000)
    path = tmp_path / name
    packed = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with packed(path, "wb") as file:
        file.write(b"[" + b" " * 1000)
    with pytest.raises(DataError, match=rf"{name}: holds more than 1,000 bytes") as caught:
        list(read_rows(path, DataSpec(source=str(path))))
    assert caught.value.problems[0].fix


@pytest.mark.parametrize(("name", "before", "after"), [("t.csv", "text\n", "\n"), ("t.json", '[{"text": "', '"}]')])
@pytest.mark.parametrize(
    ("text", "written", "encoding", "noticed"),
    [
        ("größer", "utf-8", "cp1252", True),
        ("größer", "utf-8", "utf-8", False),
        ("größer", "cp1252", "cp1252", False),
        ("größer", "utf-16", "utf-16", False),
        ("plain", "utf-8", "cp1252", False),
    ],
)
def test_utf8_read_in_another_encoding_is_noticed(name, before, after, text, written, encoding, noticed, tmp_path):
    path, problems = tmp_path / name, Problems(name)
    path.write_bytes(f"{before}{text}{after}".encode(written))
    list(read_rows(path, DataSpec(source=str(path), encoding=encoding), problems))
    found = [each.what for each in problems.findings if each.level == "warn"]
    assert len(found) == noticed
    assert all("read as CP1252, but it is UTF-8" in each and "größer" in each for each in found)


def test_one_line_that_is_no_utf8_says_that_the_file_is_not(tmp_path):
    path, problems = tmp_path / "t.csv", Problems("t.csv")
    path.write_bytes(b"text\n" + "größer\n".encode() + "größer\n".encode("cp1252"))
    list(read_rows(path, DataSpec(source=str(path), encoding="cp1252"), problems))
    assert not problems.findings


class Blocks(io.RawIOBase):
    """A stream of so many equal blocks."""

    def __init__(self, block: bytes, left: int) -> None:
        self.block, self.left = block, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = len(self.block) if self.left else 0
        buffer[:size] = self.block[:size]
        self.left -= 1
        return size


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16-le"])
def test_memory_does_not_grow_with_the_file_in_any_encoding(encoding):
    blocks = Blocks(("größer, " * 20 + "\n").encode(encoding) * 10, 299)
    tracemalloc.start()
    rows = text_lines(io.BufferedReader(blocks, 10_000), encoding, Problems("t.txt"))
    count = sum(1 for _ in rows)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 299 * 10
    assert most < 200_000  # bytes; the file has half a million or more


@pytest.mark.parametrize("encoding", ["utf-9", "rot13", "hex", "undefined", ""])
def test_an_encoding_that_python_does_not_know_for_text(encoding):
    raises(ValidationError, "expected a text encoding that Python knows", spec, encoding=encoding)


def test_a_stream_is_read_as_it_comes_and_its_lines_are_objects_or_texts():
    endless = Blocks(b'{"text": "a"}\n', 1_000_000)
    rows = list(itertools.islice(read_stream(io.BufferedReader(endless), "stdin", spec()), 10))
    assert rows[-1] == (10, {"text": "a"})
    assert endless.left > 1_000_000 - 2000
    content = b'{"a": "x"}\n\nhello  \r\n {"a": "y"}\n[1]\n{hello\n\xff\n'
    read = read_stream(io.BytesIO(content), "stdin", spec())
    expected = [(1, {"a": "x"}), (3, {"text": "hello  "}), (4, {"a": "y"}), (5, {"text": "[1]"})]
    assert list(itertools.islice(read, 4)) == expected
    with pytest.raises(DataError, match=r"^stdin:6: not JSON") as error:  # before the next line is read
        next(read)
    assert len(error.value.problems) == 1
    raises(DataError, r"stdin:1: .*not UTF-8", list, read_stream(io.BytesIO(b"the \xff\n"), "stdin", spec()))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_parquet(tmp_path, suffix):
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": ["a", None], "n": [1, 2]}), buffer)
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    rows = read(tmp_path, f"t.parquet{suffix}", pack(buffer.getvalue()))
    assert rows == [(1, {"text": "a", "n": 1}), (2, {"text": None, "n": 2})]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), buffer)
    assert "holds no rows" in fails(tmp_path, f"u.parquet{suffix}", pack(buffer.getvalue()))


def test_parquet_with_class_names(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    label = {"names": ["neg", "pos"], "_type": "ClassLabel"}
    info = {"info": {"features": {"label": label, "all": {"feature": label, "_type": "List"}}}}
    table = pa.table({"label": [1, -1, None], "all": [[0, 1], [], None]})
    path = tmp_path / "t.parquet"
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), path)
    assert [row for _, row in read_rows(path, spec())] == [
        {"label": "pos", "all": ["neg", "pos"]},
        {"label": None, "all": []},
        {"label": None, "all": None},
    ]
    table = pa.table({"label": [1, 7], "all": [[], []]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), path)
    raises(DataError, r"row 2: `label` holds 7, but has only 2 names", list, read_rows(path, spec()))


# --- whatever bytes stand in a file: rows or a DataError, nothing else

QUICK = settings(max_examples=75, suppress_health_check=[HealthCheck.function_scoped_fixture])

tricky = st.sampled_from(
    [b'"', b",", b"\t", b"\n", b"\r", b"\r\n", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\xe9", b"text", b"label", b"a|b",
     b"1.5", b"NaN", b"{", b"}", b"[", b"]", b":", b'{"text": "a", "label": 1}', b'"\\ud83d"', b"null", b"\xc2\x85",
     b" O\n", b"-DOCSTART-", b"# "]
)  # fmt: skip
some_bytes = st.one_of(st.binary(max_size=200), st.lists(tricky, max_size=40).map(b"".join))
some_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def read_any(path: Path, content: bytes, **recipe: Any) -> None:
    path.write_bytes(content)
    try:
        for number, row in read_rows(path, DataSpec.model_validate({"source": "unused", **recipe})):
            assert number > 0
            json.dumps(row, ensure_ascii=False).encode()
    except DataError:
        pass


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.json", "t.jsonl", "t.parquet", "t.conll"])
@given(
    content=some_bytes,
    extra=st.sampled_from(["error", "ignore"]),
    mark=st.none() | st.characters(exclude_categories=["Cs"], exclude_characters='"\r\n'),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-be", "utf-32", "shift_jis", "cp500"]),
)
@QUICK
def test_any_bytes(tmp_path, name, content, extra, mark, encoding):
    read_any(tmp_path / name, content, extra_fields=extra, delimiter=mark, encoding=encoding)


@given(
    rows=st.lists(
        st.fixed_dictionaries({}, optional=dict.fromkeys(("text", "label", "labels", "score"), some_json)), max_size=5
    ),
    validation=st.none() | st.floats(0.01, 0.99),
)
@QUICK
def test_any_values(tmp_path, rows, validation):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        data = load(DataSpec.model_validate({"source": str(path), "validation": validation}), SCHEMA)
    except DataError:
        return
    assert sum(map(len, data.rows.values())) == len(rows)
    assert check(data)
    if data.target == "label":
        names = label_names(data.rows["train"]["label"])
        assert sorted(names) == sorted(set(data.rows["train"]["label"]))
