"""Every reader on files that are fine, and on files that are not: rows, or a DataError that says where.

CoNLL on any bytes too; parallel texts, NAME.en and NAME.de, with their splits and locations.
"""

import csv
import gzip
import io
import itertools
import json
import lzma
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small import install, message_of, raises, write_rows
from test_data import SCHEMA

from bertkit.data import check, label_names, load, read_rows, read_stream
from bertkit.data.conll import conll_rows
from bertkit.data.decoding import MAX_LINE, text_lines
from bertkit.data.problems import Problems
from bertkit.data.sources import open_source
from bertkit.errors import DataError, RecipeError
from bertkit.recipe.json_schema import json_schema
from bertkit.recipe.recipe import load_recipe, parse_data_spec
from bertkit.sections import DataSpec
from bertkit.tasks import get_task
from bertkit.tasks.text2text_generation import Text2TextGeneration
from bertkit.text import counted


def spec(**settings):
    return DataSpec(**{"source": "unused", **settings})


def read(tmp_path, name, content, **settings):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_rows(path, spec(**settings)))


def fails(tmp_path, name, content, **settings):
    return message_of(DataError, read, tmp_path, name, content, **settings).replace(
        f"{tmp_path}/{name}", name
    )


AB = [(2, {"text": "a", "label": "x"}), (3, {"text": "b", "label": "y"})]
FINE = [  # what it is, file name, content, rows; layout
    ("one line", "t.txt", "a\r", [(1, {"text": "a"})], {"format": "lines"}),
    ("a carriage return in a text", "t.txt", "a\rb\n", [(1, {"text": "a\rb"})], {"format": "lines"}),
    ("plain", "t.csv", "text,label\na,x\nb,y\n", AB),
    ("blank lines before the header", "t.csv", "\n \ntext,label\na,x\n", [(4, {"text": "a", "label": "x"})]),
    ("Excel's sep=", "t.csv", "sep=;\r\ntext;label\r\na;x\r\n", [(3, {"text": "a", "label": "x"})],
     {"delimiter": ";"}),
    ("no newline at the end", "t.csv", "text,label\na,x\nb,y", AB),
    ("Windows lines", "t.csv", "text,label\r\na,x\r\nb,y\r\n", AB),
    ("byte order mark", "t.csv", b"\xef\xbb\xbftext,label\na,x\nb,y\n", AB),
    ("byte order mark inside quotes", "t.csv", b'\xef\xbb\xbf"text",label\na,x\nb,y\n', AB),
    ("blanks around names", "t.csv", " text , label\na,x\nb,y\n", AB),
    ("blank lines", "t.csv", "text,label\na,x\nb,y\n\n\n", AB),
    ("semicolons", "t.csv", "text;label\na;x\nb;y\n", AB, {"delimiter": ";"}),
    ("cp1252", "t.csv", "text\n€ß\n".encode("cp1252"), [(2, {"text": "€ß"})], {"encoding": "cp1252"}),
    ("latin-1", "t.tsv", "text\nß\n".encode("latin-1"), [(2, {"text": "ß"})], {"encoding": "latin-1"}),
    ("UTF-16", "t.csv", "text,label\r\na,x\r\nb,y\r\n".encode("utf-16"), AB, {"encoding": "utf-16"}),
    ("no mark", "t.csv", "text\nĊ\n".encode("utf-16-be"), [(2, {"text": "Ċ"})], {"encoding": "utf-16-be"}),
    ("UTF-32", "t.csv", "text,label\na,x\nb,y\n".encode("utf-32"), AB, {"encoding": "utf-32"}),
    ("shift_jis", "t.csv", "text\n表\n".encode("shift_jis"), [(2, {"text": "表"})], {"encoding": "shift_jis"}),
    ("json in cp1252", "t.json", '[{"a": "ß"}]'.encode("cp1252"), [(1, {"a": "ß"})], {"encoding": "cp1252"}),
    ("a comma in one column", "t.csv", "a;b\nx;y\n", [(2, {"a;b": "x;y"})], {"delimiter": ","}),
    ("a semicolon in one column without a header", "t.csv", "x;y\n", [(1, {"a": "x;y"})], {"header": ["a"]}),
    ("tabs", "t.tsv", "text\tlabel\na\tx\nb\ty\n", AB),
    ("tabs in .csv", "t.csv", "text\tlabel\na\tx\nb\ty\n", AB, {"format": "tsv"}),
    ("no header", "t.csv", "a,x\n", [(1, {"text": "a", "label": "x"})], {"header": ["text", "label"]}),
    ("fields beyond the names", "t.csv", "text\na,1,2\n", [(2, {"text": "a"})], {"extra_fields": "ignore"}),
    ("too few fields", "t.csv", "a,b\nx\n1,2\ny\n", [(3, {"a": "1", "b": "2"})], {"missing_fields": "ignore"}),
    ("one column: a blank line is a row", "t.csv", "a\nx\n\n", [(2, {"a": "x"}), (3, {"a": ""})]),
    ("text stays text", "t.csv", "a,b,c,d\nNA,null,1.0,\n", [(2, {"a": "NA", "b": "null", "c": "1.0", "d": ""})]),
    ("quotes", "t.csv", 'a,b\n"x, ""y""",z\n', [(2, {"a": 'x, "y"', "b": "z"})]),
    ("lines inside quotes", "t.csv", 'a\n"x\ny"\nz\n', [(2, {"a": "x\ny"}), (4, {"a": "z"})]),
    ("a text of lines that are no rows", "t.csv", 'a,b\n"Hi,\nx",z\nw,z\n',
     [(2, {"a": "Hi,\nx", "b": "z"}), (4, {"a": "w", "b": "z"})]),
    ("lines with other values", "t.csv", 'a,b\n"x, 1\ny, 2\nw",z\nv,z\n',
     [(2, {"a": "x, 1\ny, 2\nw", "b": "z"}), (5, {"a": "v", "b": "z"})]),
    ("a quote inside a plain field", "t.csv", 'a,b\n5" pipe,z\n', [(2, {"a": '5" pipe', "b": "z"})]),
    ("quotes are text in tsv", "t.tsv", 'a\tb\n"x\ty"\n', [(2, {"a": '"x', "b": 'y"'})]),
    ("quotes between tabs", "t.tsv", 'a\tb\n"x\ty"\tz\n', [(2, {"a": "x\ty", "b": "z"})],
     {"format": "csv", "delimiter": "\t"}),
    ("quotes as text", "t.csv", 'a,b\n"x,y"\n', [(2, {"a": '"x', "b": 'y"'})], {"format": "tsv", "delimiter": ","}),
    ("unusual line separators are text", "t.tsv", "a\nx\u2028\x85y\x0c\n", [(2, {"a": "x\u2028\x85y\x0c"})]),
    ("json lines", "t.jsonl", '{"a": 1}\n\n{"a": [true, null]}\n', [(1, {"a": 1}), (3, {"a": [True, None]})]),
    ("a surrogate pair", "t.jsonl", r'{"a": "\ud83d\ude00"}', [(1, {"a": "😀"})]),
    ("json list", "t.json", '[{"a": 1},\n {"a": 2}]', [(1, {"a": 1}), (2, {"a": 2})]),
    ("json data", "t.json", '{"version": [1], "data": [{"a": 1}]}', [(1, {"a": 1})]),
    ("json, one list", "t.json", '{"version": "1", "rows": [{"a": 1}]}', [(1, {"a": 1})]),
    ("json lines in .json", "t.json", '{"a": 1}\n{"a": 2}\n', [(1, {"a": 1}), (2, {"a": 2})], {"format": "jsonl"}),
]  # fmt: skip


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_reads_packed_files(tmp_path, suffix, pack):
    for name, content in {"t.csv": "text,label\na,x\nb,y\n", "t.tsv": "text\tlabel\na\tx\nb\ty\n"}.items():
        assert read(tmp_path, f"{name}.{suffix}", pack(content.encode())) == AB
    for name, content in {"t.jsonl": '{"a": 1}\n{"a": 2}\n', "t.json": '[{"a": 1},\n {"a": 2}]'}.items():
        assert read(tmp_path, f"{name}.{suffix}", pack(content.encode())) == [(1, {"a": 1}), (2, {"a": 2})]
    wide = pack("a,b\n\u010a,y\n".encode("utf-16-le"))
    assert read(tmp_path, f"t.csv.{suffix}", wide, encoding="utf-16-le") == [(2, {"a": "\u010a", "b": "y"})]


def swallowed(lines, sep, labels=("good", "bad")):
    """A table in which a quote opens in the third row, and closes so many lines later."""
    rows = [f"film {n} was{sep}{labels[n % len(labels)]}" for n in range(lines + 9)]
    rows[2] = f'"{rows[2]}'
    rows[2 + lines] = rows[2 + lines].replace("was", 'was"')
    return "\n".join([f"text{sep}label", *rows])


SCRIPTS = {
    "gb18030": "这家餐厅很好吃,好",
    "cp932": "この店はとても美味しい",
    "cp949": "이 식당은 아주 맛있어요",
    "big5": "這家餐廳很好吃",
    "cp1251": "Очень вкусно",
    "cp1252": "Déjà vu à Besançon",
}
PAGES = {
    "csv": 'text\n"{}"\n',
    "tsv": "text\n{}\n", "jsonl": '{{"text": "{}"}}\n', "json": '[{{"text": "{}"}}]', "txt": "{}\n",
    "conll": "{}\tO\n",
}  # fmt: skip


CP1252 = "'data.encoding=cp1252'"
SEMICOLON = "'data.delimiter=\";\"'"
SAD = [  # what is wrong, file name, content, what the message says; layout
    ("quoted lines", "t.tsv", 'a\tb\n"x\ny"\tz\n', ["t.tsv:2: expected 2 fields, found 1", "data.format=csv"]),
    ("bad byte", "t.csv", b"text\na\ncaf\xe9", ["t.csv:3: byte 0xE9 at column 4 is not", "'café'", CP1252]),
    ("bad bytes", "t.csv", b"a\n\xe9\n\xe9\n\xe9", [("t.csv:3: byte 0xE9 at column 1 is not " "UTF-8\nt.csv:4: " "byte")]),
    ("not cp1252", "t.csv", "a\nÁ\n".encode(), ["not CP1252", "reads 'Á'", "encoding=utf-8'"], {"encoding": "cp1252"}),
    ("UTF-8 as ASCII", "t.csv", "a\né\n".encode(), ["reads 'é'", "'data.encoding=utf-8'"], {"encoding": "ascii"}),
    ("of no encoding", "t.csv", b"a\n\x81\n", ["t.csv:2: byte 0x81", "name its encoding, e.g."]),
    *((name, f"t.{suffix}", page.format(text).encode(name), ["not UTF-8", f"\n    in {name} it reads", text])
      for name, text in SCRIPTS.items() for suffix, page in PAGES.items()),
    ("UTF-16", "t.csv", "text\na\n".encode("utf-16"), ["t.csv: the file is UTF-16", "{encoding: utf-16}"]),
    ("UTF-16 LE", "t.csv", "text\na\n".encode("utf-16-le"), ["t.csv:1: a NUL byte at column 2", "utf-16-le"]),
    ("UTF-16 BE", "t.jsonl", '{"a": 1}\n'.encode("utf-16-be"), ["t.jsonl:1: a NUL byte at column 1", "utf-16-be"]),
    ("UTF-16 in json", "t.json", "[]".encode("utf-16"), ["the file is UTF-16", "{encoding: utf-16}"]),
    ("a mark of UTF-8", "t.csv", b"\xef\xbb\xbfa\nb\n", ["the file is UTF-8", ": utf-8}"], {"encoding": "cp1252"}),
    ("half a UTF-16", "t.csv", b"\xff\xfea\0\n\0\0\xd8b\0", ["invalid UTF-16 after line 0"], {"encoding": "utf-16"}),
    ("half a json", "t.json", b"\xff\xfe[\0\0\xd8]\0", ["invalid UTF-16 after line 0"], {"encoding": "utf-16"}),
    ("semicolons", "t.csv", "a;b;c\nx,y;1;2\n", ["t.csv:1: the first line has 1 column; with ';'", SEMICOLON]),
    ("semicolons in quotes", "t.csv", '"a, b";"c"\n"x\n";y\n', ["with ';' as delimiter it would have 2", SEMICOLON]),
    ("semicolons, one comma", "t.csv", "a;b, c;d\nx;y;z\n", ["t.csv:2: expected 2 fields, found 1"]),
    ("semicolons and names", "t.csv", "x;y\n", ["as delimiter it would have 2", SEMICOLON], {"header": ["a", "b"]}),
    ("tabs in csv", "t.csv", "a\tb\nx\ty\n", ["as delimiter it would have 2", 'data.delimiter="\\t"']),
    ("commas in tsv", "t.tsv", "a,b\nx,y\n", ["as delimiter it would have 2", 'delimiter: ","']),
    ("both", "t.csv", b"a;b\nx;y\n\xfc;y\n", ["t.csv:1: the first", SEMICOLON, "t.csv:3: byte 0xFC", CP1252]),
    ("too few fields", "t.csv", "a,b\nx,y\nz\n", ["t.csv:3: expected 2 fields, found 1"]),
    ("too few is never fine", "t.csv", "a,b\nz\n", ["t.csv:2: expected 2 fields"], {"extra_fields": "ignore"}),
    ("too few of two rows", "t.tsv", "a\tb\nx\n1\t2\ny\n", ["data.missing_fields=ignore", "t.tsv:4: expected 2 fields"]),
    ("a field more on two lines", "t.csv", 'a,b\nx,y\n"x,y,z\nx",y,z\n', ["t.csv:3: expected 2 fields, found 3"]),
    ("too many fields", "t.csv", "a,b\nx,y,z\n", ["t.csv:2: expected 2 fields, found 3", "extra_fields: ignore"]),
    ("too many, few are fine", "t.csv", "a\nx,y\n", ["found 2", "extra_fields=ignore"], {"missing_fields": "ignore"}),
    ("two bad rows", "t.csv", "a,b\nx\ny\nz,z\n", ["t.csv:2:", "t.csv:3:"]),
    ("empty", "t.csv", "", ["t.csv: the file is empty"]),
    ("header only", "t.csv", "a,b\n", ["t.csv: is empty: no rows after the header"]),
    ("header twice", "t.csv", "a,b\nx,y\n", ["t.csv:1: the first row repeats"], {"header": ["a", "b"]}),
    ("header without names", "t.csv", "x,y\n", ["needs the names of its columns", "header: ["], {"header": False}),
    ("same name twice", "t.csv", "a, a,b\n1,2,3\n", ["t.csv:1: duplicate columns in the header: a"]),
    ("many names twice", "t.csv", ",".join(f"{n:04}" for n in range(2000)) + ",0001" * 2, ["header: 0001"]),
    ("all names twice", "t.csv", ",".join(f"{n % 99:02}" for n in range(198)), ["00, 01,", "19 and 79 more"]),
    ("NUL", "t.csv", "a,b\nx,\0\n", ["t.csv:2: a NUL byte at column 3"]),
    ("unclosed quote", "t.csv", 'a,b\nx,y\n"z,y\nx,y\n', ["t.csv:3: a quote that opens in this row is never"]),
    ("text after a quote", "t.csv", 'a,b\n"x"z,y\n', ["t.csv:2: text follows a closing quote"]),
    *((f"a quote that closes {lines} lines later, between {sep!r}", "t.csv", swallowed(lines, sep),
       [f"t.csv:4: a quote that opens in this row closes {counted(lines, 'line')} later, and each", "format: tsv"],
       {"delimiter": sep, "format": "csv"})
      for lines in (1, 2, 300) for sep in ",\t"),
    ("old Mac lines", "t.csv", "a,b\rx,y\r", ["t.csv:1: a carriage return outside quotes", "Windows line endings"]),
    ("a name twice in header:", "t.csv", "x,y\n", ["data.header: names a column twice: a"], {"header": ["a", "a"]}),
    ("a carriage return outside quotes", "t.csv", "a,b\nx\rz,y\n", ["t.csv:2: a carriage return outside quotes"]),
    ("empty jsonl", "t.jsonl", " \n\n", ["t.jsonl: is empty: no rows"]),
    ("cut json line", "t.jsonl", '{"a": 1}\n{"a": x\n', ["t.jsonl:2: not JSON: Expecting value at column 7"]),
    ("list line", "t.jsonl", "[1]\n", ["t.jsonl:1: expected an object, found a list"]),
    ("number line", "t.jsonl", "17\n", ["t.jsonl:1: expected an object, found 17"]),
    ("half a surrogate", "t.jsonl", r'{"a": "\ud83d"}', ["t.jsonl:1: half of a surrogate pair"]),
    ("deep", "t.jsonl", "[" * 200_000, ["t.jsonl:1: not JSON that can be read"]),
    ("long number", "t.jsonl", '{"a": ' + "9" * 5000 + "}", ["t.jsonl:1: not JSON that can be read"]),
    ("empty json", "t.json", "", ["t.json:1: the file is empty"]),
    ("empty json list", "t.json", "[]", ["t.json: is empty: no rows"]),
    ("json lines in .json", "t.json", '{"a": 1}\n{"a": 2}\n', ["t.json:2: not JSON", "format: jsonl"]),
    ("bad byte in json", "t.json", b'[\n"caf\xe9"]', ["t.json:2: byte 0xE9 at column 5"]),
    ("json item", "t.json", '[{"a": 1}, 2]', ["t.json, row 2: expected an object, found 2"]),
    ("json of a frame", "t.json", '{"text": {"0": "a"}, "label": {"0": "x"}}', [('orient="records", ' 'lines=True)')]),
    ("json without a list", "t.json", '{"a": 1}', ["expected a list of objects"]),
    ("json with two lists", "t.json", '{"a": [], "b": []}', ["expected a list of objects"]),
    ("not parquet", "t.parquet", "PAR1 or so", ["cannot be read as parquet"]),
    ("arrow", "t.arrow", "x", [".arrow is not supported", "or .parquet"]),
    ("unknown suffix", "t.log", "x", [".csv, .tsv, .xlsx, .json, .jsonl, .parquet", "format:"]),
    ("an old workbook", "t.xls", "x", [".xls is not supported", "Save or unpack it as .xlsx, .csv"]),
    ("a zip", "t.zip", "PK", [".zip is not supported", "unpack it"]),
    ("not gzip", "t.csv.gz", "text\na\n", ["archive is damaged"]),
    ("not xz", "t.csv.xz", "text\na\n", ["archive is damaged"]),
]  # fmt: skip


@pytest.mark.parametrize(("more", "named"), [("", True), ("괓\n", False)])
def test_an_encoding_is_named_if_it_decodes_all_that_follows(more, named, tmp_path):
    message = fails(tmp_path, "t.csv", f"a\n가\n{more}".encode("cp949"))
    assert "in cp949 it reads" in message
    assert ("in cp932 it reads" in message) == named


@pytest.mark.parametrize("suffix", PAGES)
def test_every_format_is_read_in_every_encoding(suffix, tmp_path):
    wide = {f"utf-16{order}": "Ċ 这 ё" for order in ("", "-le", "-be")}
    for encoding, text in {
        **SCRIPTS,
        **wide,
        "shift_jis": SCRIPTS["cp932"],
        "euc-kr": SCRIPTS["cp949"],
    }.items():
        text = text.replace(" ", "_")
        ((_, row),) = read(
            tmp_path, f"t.{suffix}", PAGES[suffix].format(text).encode(encoding), encoding=encoding
        )
        assert row[next(iter(row))] == ([text] if suffix == "conll" else text)


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_a_cut_archive_is_an_error_and_not_fewer_rows(tmp_path, suffix, pack):
    whole = pack("".join(f'{{"text": "row {i * 7919}"}}\n' for i in range(5000)).encode())
    assert "damaged or incomplete" in fails(tmp_path, f"t.jsonl.{suffix}", whole[: len(whole) // 2])


@pytest.mark.parametrize("size", [1, 60])  # also where no column has short values
@pytest.mark.parametrize(("lines", "found"), [(8, 0), (9, 1)])
def test_many_lines_that_look_like_rows_are_severe_whatever_they_hold(lines, found, size, tmp_path):
    problems = Problems("t.csv")
    path = tmp_path / "t.csv"
    path.write_text(
        swallowed(lines, ",", [f"{n:0{size}}" for n in range(100)]).replace("film", "film" * size)
    )
    assert len(list(read_rows(path, spec(), problems))) == 9
    what = (
        f"t.csv:4: a quote that opens in this row closes {lines} lines later, and each line looks like a row"
    )
    assert [(finding.level, finding.what) for finding in problems.findings] == [("severe", what)] * found


def test_a_folder_and_a_missing_file(tmp_path):
    (tmp_path / "d.csv").mkdir()
    raises(DataError, "cannot be read: Is a directory", next, read_rows(tmp_path / "d.csv", spec()))
    raises(DataError, "No such file", next, read_rows(tmp_path / "none.csv", spec()))


def test_problems_end_at_twenty_and_an_unclosed_quote_does_not_swallow_a_large_file(tmp_path):
    message = fails(tmp_path, "t.csv", "a,b\n" + "x\n" * 50)
    assert message.count("expected 2 fields") == 20
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
    # exactly the longest line
    ((_, row),) = read(tmp_path, "t.jsonl", '{"a": "' + "x" * (MAX_LINE - 9) + '"}')
    assert len(row["a"]) == MAX_LINE - 9


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.parquet.xz"])
def test_what_is_held_whole_has_a_limit(name, tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.data.arrow.MAX_WHOLE", 1000)
    path = tmp_path / name
    packed = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with packed(path, "wb") as file:
        file.write(b"[" + b" " * 1000)
    reading = read_rows(path, DataSpec(source=str(path)))
    assert raises(DataError, rf"{name}: holds more than 1,000 bytes", list, reading).problems[0].fix


@pytest.mark.parametrize(
    ("name", "before", "after"), [("t.csv", "text\n", "\n"), ("t.json", '[{"text": "', '"}]')]
)
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
def test_utf8_read_in_another_encoding_is_noticed(
    name, before, after, text, written, encoding, noticed, tmp_path
):
    path = tmp_path / name
    problems = Problems(name)
    path.write_bytes(f"{before}{text}{after}".encode(written))
    list(read_rows(path, DataSpec(source=str(path), encoding=encoding), problems))
    found = [each.what for each in problems.findings if each.level == "warn"]
    assert len(found) == noticed
    assert all("read as CP1252, but it is UTF-8" in each and "größer" in each for each in found)


def test_one_line_that_is_no_utf8_says_that_the_file_is_not(tmp_path):
    path = tmp_path / "t.csv"
    problems = Problems("t.csv")
    path.write_bytes(b"text\n" + "größer\n".encode() + "größer\n".encode("cp1252"))
    list(read_rows(path, DataSpec(source=str(path), encoding="cp1252"), problems))
    assert not problems.findings


class Blocks(io.RawIOBase):
    """A stream of so many equal blocks."""

    def __init__(self, block, left):
        self.block = block
        self.left = left

    def readable(self):
        return True

    def readinto(self, buffer):
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
    # before the next line is read
    assert len(raises(DataError, r"^stdin:6: not JSON", next, read).problems) == 1
    blank = read_stream(io.BytesIO(b"\na\n\n"), "stdin", spec())
    assert list(blank) == [(2, {"text": "a"}), (3, {"text": ""})]
    raises(DataError, "^stdin: is empty: no rows", list, read_stream(io.BytesIO(b""), "stdin", spec()))
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
    assert "is empty: no rows" in fails(tmp_path, f"u.parquet{suffix}", pack(buffer.getvalue()))


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


def read_any(path, content, **recipe):
    path.write_bytes(content)
    try:
        for number, row in read_rows(path, DataSpec(source="unused", **recipe)):
            assert number > 0
            json.dumps(row, ensure_ascii=False).encode()
    except DataError:
        pass


@pytest.mark.parametrize("name", "t.csv t.tsv t.json t.jsonl t.parquet t.conll".split())
@given(
    content=some_bytes,
    extra=st.sampled_from(["error", "ignore"]),
    mark=st.none() | st.characters(exclude_categories=["Cs"], exclude_characters='"\r\n'),
    encoding=st.sampled_from("utf-8 utf-8-sig cp1252 utf-16 utf-16-be utf-32 shift_jis cp500".split()),
)
@QUICK
def test_any_bytes(tmp_path, name, content, extra, mark, encoding):
    read_any(tmp_path / name, content, extra_fields=extra, delimiter=mark, encoding=encoding)


@given(
    rows=st.lists(
        st.fixed_dictionaries({}, optional=dict.fromkeys("text label labels score".split(), some_json)),
        max_size=5,
    ),
    validation=st.none() | st.floats(0.01, 0.99),
)
@QUICK
def test_any_values(tmp_path, rows, validation):
    path = write_rows(tmp_path / "t.jsonl", rows)
    try:
        data = load(DataSpec(source=str(path), validation=validation), SCHEMA)
    except DataError:
        return
    assert sum(map(len, data.rows.values())) == len(rows)
    assert check(data)
    if data.target == "label":
        names = label_names(data.rows["train"]["label"])
        assert sorted(names) == sorted(set(data.rows["train"]["label"]))


EU = (1, {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]})
CONLL = [
    ("tabs", "EU\tB-ORG\nrejects\tO\n\n", [EU]),
    ("one blank", "EU B-ORG\nrejects O\n\n", [EU]),
    ("runs of blanks", "  EU    B-ORG \nrejects O\n", [EU]),
    ("blanks around tabs", "EU \t B-ORG\nrejects\tO \n", [EU]),
    ("tabs in one line, blanks in the next", "EU\tB-ORG\nrejects O\n", [EU]),
    ("Windows lines", "EU\tB-ORG\r\nrejects\tO\r\n\r\n", [EU]),
    ("no newline at the end", "EU\tB-ORG\nrejects\tO", [EU]),
    ("byte order mark", b"\xef\xbb\xbfEU\tB-ORG\nrejects\tO\n", [EU]),
    ("header: true goes by position", "EU\tB-ORG\nrejects\tO\n", [EU], {"header": True}),
    ("header: false goes by position", "EU\tB-ORG\nrejects\tO\n", [EU], {"header": False}),
    ("a delimiter", "EU,B-ORG\nrejects,O\n", [EU], {"delimiter": ","}),
    ("blank lines, some of blanks", "\n \t \na O\n\n  \n\nb O\n\n\n",
     [(3, {"tokens": ["a"], "tags": ["O"]}), (7, {"tokens": ["b"], "tags": ["O"]})]),
    ("one column", "a\nb\n\nc\n", [(1, {"tokens": ["a", "b"]}), (4, {"tokens": ["c"]})]),
    ("four columns", "EU NNP B-NP B-ORG\n",
     [(1, {"tokens": ["EU"], "column2": ["NNP"], "column3": ["B-NP"], "tags": ["B-ORG"]})]),
    ("named columns", "1 EU B-ORG\n", [(1, {"id": ["1"], "tokens": ["EU"], "ner": ["B-ORG"]})],
     {"header": ["id", "tokens", "ner"]}),
    ("blanks inside, where tabs are the delimiter", "New York\tB-LOC\n",
     [(1, {"tokens": ["New York"], "tags": ["B-LOC"]})], {"delimiter": "\t"}),
    ("documents", "-DOCSTART- -X- -X- O\n\na O\n\nb O\n-DOCSTART-\nc O\n-DOCSTART- (3)\n\n-DOCSTART-\n\nd O\n",
     [(line, {"tokens": [word], "tags": ["O"], "document": document})
      for line, word, document in ((3, "a", "1"), (5, "b", "1"), (7, "c", "2"), (12, "d", "4"))]),
    ("a hash is a word", "# O\n1 O\n", [(1, {"tokens": ["#", "1"], "tags": ["O", "O"]})]),
    ("unusual blanks are text", "a\u00a0b\u2028c\u3000 O\n\u200b O\n",
     [(1, {"tokens": ["a\u00a0b\u2028c\u3000", "\u200b"], "tags": ["O", "O"]})]),
    ("unusual blanks beside tabs are text too", "\u3000\tO\n\u200b\x85\t O\n",
     [(1, {"tokens": ["\u3000", "\u200b\x85"], "tags": ["O", "O"]})]),
    ("quotes are text", "\" O\n'' O\n", [(1, {"tokens": ['"', "''"], "tags": ["O", "O"]})]),
]  # fmt: skip


def test_reads(tmp_path, subtests):
    for what, name, content, rows, *layout in [*FINE, *((what, "t.conll", *rest) for what, *rest in CONLL)]:
        with subtests.test(what):
            assert read(tmp_path, name, content, **dict(*layout)) == rows


def test_suffixes_and_other_names_with_the_format(tmp_path):
    content = b"EU\tB-ORG\nrejects\tO\n"
    for packed, pack in {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}.items():
        for suffix in "conll bio iob iob2 bioes".split():
            (folder := tmp_path / f"{suffix}{packed}").mkdir()
            assert read(folder, f"dev.{suffix}{packed}", pack(content)) == [EU]
            assert [*open_source(spec(source=str(folder)), None, ())] == ["validation"]
    assert read(tmp_path, "train.txt", content, format="conll") == [EU]


def test_places_columns_and_words_before_the_first_document(tmp_path):
    path = tmp_path / "t.conll"
    path.write_text("a O\n\n-DOCSTART- -X- O\n\nb O\n")
    data = load(spec(source=str(path)), get_task("token-classification").schema)
    assert data.rows["train"]["tokens"][:] == [["a"], ["b"]]
    assert "document" not in data.rows["train"].column_names
    path = tmp_path / "t.conll"
    path.write_text("-DOCSTART- O\n\nEU NNP B-ORG\n")
    (part,) = open_source(spec(source=str(path)), None, ())["train"]
    assert part.prefix == f"{path}:"
    assert part.columns == "tokens column2 tags document".split()


TABS = 'set  data: {delimiter: "\\t"}'
CONLL_ERRORS = [
    ("a field missing", "a O\n\nb\n", ["t.conll:3: expected 2 fields, found 1"]),
    ("a field too many", "a O\nb X O\n", ["t.conll:2: expected 2 fields, found 3"]),
    ("not what the header says", "a O\n", ["t.conll:1: expected 3 fields, found 2"], {"header": ["a", "b", "c"]}),
    ("two bad lines", "a O\nb\nc O\n\nd O O\n", ["t.conll:2: expected 2 fields", "t.conll:5: expected 2 fields"]),
    ("a blank in a word", "New York\tB-LOC\n", ["t.conll:1: a field of this tab", "'New York'", TABS]),
    ("a blank in a later word", "a\tO\nNew York\tB-LOC\n", ["t.conll:2: a field of this tab", TABS]),
    ("an empty word", "a\tO\n\tO\n", ["t.conll:2: field 1 is empty", TABS]),
    ("an empty tag", "a\tO\nb\t\n", ["t.conll:2: field 2 is empty", TABS]),
    ("two tabs", "a\tO\nb\t\tO\n", ["t.conll:2: expected 2 fields, found 3", TABS]),
    ("an empty field with a delimiter", "a\tO\n\tO\n", ["t.conll:2: field 1 is empty"], {"delimiter": "\t"}),
    ("a carriage return", "a O\rb O\n", ["t.conll:1: a carriage return", "line endings"]),
    ("a column twice", "a O\n", ["data.header: names a column twice: x"], {"header": ["x", "x"]}),
    ("empty", "", ["t.conll: is empty: no rows"]),
    ("only blank lines", "\n \n\t\n", ["t.conll: is empty: no rows"]),
    ("only documents", "-DOCSTART- O\n\n-DOCSTART- O\n", ["t.conll: is empty: no rows"]),
    ("bad byte", "a O\ncafé O\n".encode("latin-1"), ["t.conll:2: byte 0xE9 at column 4 is not UTF-8"]),
    ("UTF-16", "a O\n".encode("utf-16"), ["UTF-16"]),
    ("NUL", "a O\n\0 O\n", ["t.conll:2: a NUL byte at column 1"]),
]  # fmt: skip


def test_says_what_is_wrong_and_a_fix_where_it_helps(tmp_path, subtests):
    for what, name, content, parts, *layout in [
        *SAD,
        *((what, "t.conll", *rest) for what, *rest in CONLL_ERRORS),
    ]:
        with subtests.test(what):
            message = fails(tmp_path, name, content, **dict(*layout))
            assert all(part in message for part in parts), message
    assert TABS not in fails(tmp_path, "t.conll", "a O\nb\n")
    assert TABS not in fails(tmp_path, "t.conll", "a\tO\nb\n", delimiter="\t")


def test_nothing_is_yielded_after_a_bad_line(tmp_path):
    path = tmp_path / "t.conll"
    path.write_text("a O\n\nb\n\nc O\n")
    rows = read_rows(path, spec())
    assert next(rows) == (1, {"tokens": ["a"], "tags": ["O"]})
    raises(DataError, ":3: expected 2 fields", next, rows)


def test_memory_is_that_of_a_sentence():
    lines = ((number, "word\tO\n" if number % 10 else "\n") for number in range(50_000))
    tracemalloc.start()
    count = sum(1 for _ in conll_rows(lines, spec(), Problems("t.conll")))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 5000
    assert most < 100_000  # bytes; all of the rows take some 7 million


field = st.text(st.characters(exclude_categories="Cs Cc Zs Zl Zp".split()), min_size=1, max_size=6).filter(
    lambda text: not text.startswith("-DOCSTART-") and text.strip() and "\ufeff" not in text
)


@given(
    documents=st.lists(
        st.lists(st.lists(st.tuples(field, field), min_size=1, max_size=4), min_size=1, max_size=3),
        max_size=3,
    ).filter(bool),
    delimiter=st.sampled_from(["\t", " ", "  ", " \t"]),
    end=st.sampled_from(["\n", "\r\n"]),
    numbered=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sentences_come_back_as_they_were_written(tmp_path, documents, delimiter, end, numbered):
    text = ""
    expected = []
    for document, sentences in enumerate(documents, 1):
        text += f"-DOCSTART-{delimiter}O{end}{end}" if numbered else ""
        for sentence in sentences:
            text += "".join(f"{word}{delimiter}{tag}{end}" for word, tag in sentence) + end
            row = {"tokens": [word for word, _ in sentence], "tags": [tag for _, tag in sentence]}
            expected.append({**row, "document": str(document)} if numbered else row)
    assert [row for _, row in read(tmp_path, "t.conll", text)] == expected


COLUMNS = {"text": "en", "target": "de"}
PAIRS = [("A dog.", "Ein Hund."), ("A cat\u2028sleeps.", "Eine Katze schläft."), ("Tea", "Tee")]


def write(folder, name, pairs=PAIRS, ends="\n"):
    folder.mkdir(exist_ok=True)
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_bytes("".join(pair[side] + ends for pair in pairs).encode())
    return folder / name


def read_parallel(source, **settings):
    spec = DataSpec(**{"source": source, "columns": COLUMNS, **settings})
    return load(spec, Text2TextGeneration.schema)


def pairs(data, split):
    return list(zip(data.rows[split]["text"][:], data.rows[split]["target"][:], strict=True))


def refused(source, **settings):
    return message_of(
        DataError, read_parallel, str(source) if isinstance(source, Path) else source, **settings
    )


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_folder_has_a_pair_of_files_per_split(ends, tmp_path):
    write(tmp_path, "train", ends=ends)
    write(tmp_path, "val", PAIRS[:1], ends)
    (tmp_path / "train.fr").write_text("of another pair\n")
    data = read_parallel(str(tmp_path))
    assert pairs(data, "train") == PAIRS
    assert pairs(data, "validation") == PAIRS[:1]
    assert data.origins["train"][2] == f"{tmp_path}/train.{{de,en}}:3"


def test_files_may_be_compressed_and_named_otherwise(tmp_path):
    stem = write(tmp_path, "corpus.tok")
    packed = stem.with_name("corpus.tok.de")
    packed.with_name("corpus.tok.de.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    assert pairs(read_parallel(str(stem)), "train") == PAIRS
    assert pairs(read_parallel({"train": str(stem), "test": [str(stem), str(stem)]}), "test") == PAIRS * 2
    assert pairs(read_parallel(str(tmp_path), splits={"train": "corpus.tok"}), "train") == PAIRS


def test_a_recipe_names_them_relative_to_its_folder(tmp_path):
    write(tmp_path / "data", "train")
    write(tmp_path / "data", "dev")
    recipe = tmp_path / "recipe.yaml"
    for source in ("data", "{train: data/train, validation: data/dev}"):
        given = f"{{source: {source}, columns: {{text: en, target: de}}}}"
        recipe.write_text(f"task: {{name: text2text-generation}}\nmodel: {{name: x/y}}\ndata: {given}\n")
        data = load(load_recipe(recipe).data, Text2TextGeneration.schema)
        assert [*data.rows] == ["train", "validation"]
        assert pairs(data, "validation") == PAIRS


def test_what_is_wrong_names_file_and_line(tmp_path):
    stem = write(tmp_path, "train")
    assert "train.de, train.en" in refused(tmp_path, columns={})
    german = tmp_path / "train.de"
    german.write_text("Ein Hund.\nEine Katze.\n")
    assert refused(stem).startswith(f"{german}:2: the file ends here, but another one has 3 lines")
    german.write_bytes(b"Ein Hund.\nM\xe4use\nTee\n")
    assert f"{german}:2: byte 0xE4" in refused(stem)
    english = tmp_path / "train.en"
    text = english.read_bytes()
    english.write_bytes(b"A dog.\n\xffA cat sleeps.\nT\xffea\n")
    told = refused(stem)
    assert all(f"{place}: byte 0x" in told for place in (f"{german}:2", f"{english}:2", f"{english}:3"))
    english.write_bytes(text)
    german.unlink()
    assert f"{tmp_path}/train.en: no {german}" in refused(stem)
    assert "is a folder" in refused({"train": "."}, columns={"text": "a/b", "target": "de"})


# Readers of other packages

PIPES = """
from bertkit.data import Reader

def rows(file):
    side = file.beside("side").strip() if file.spec.sheet else ""
    for number, line in file.lines():
        label, bar, text = line.rstrip().partition("|")
        if not bar:
            file.problems.add(number, "no |", "write LABEL|TEXT")
        yield number, {"text": text + side, **({"label": label} if label else {})}

READER = Reader("", rows, ["pipes", "bars"], beside=["txt"])
BARS = Reader("", rows, ["bars"], columns="header")
GREEDY = Reader("", rows, ["csv", "mine"])
"""
ANNOUNCED = {
    "toy": {"pipes": "READER", "csv": "GREEDY", "greedy": "GREEDY", "function": "rows", "bars": "BARS"},
    "one": {"gone": "NONE", "twice": "READER"},
    "two": {"lost": "READER", "twice": "READER"},
}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """The folder of packages that announce readers."""
    (tmp_path / "pipes_reader.py").write_text(PIPES)
    for package, points in ANNOUNCED.items():
        modules = {name: "no_module" if name == "lost" else "pipes_reader" for name in points}
        readers = {name: f"{modules[name]}:{value}" for name, value in points.items()}
        install(
            tmp_path,
            {"project": {"name": package, "version": "1.0", "entry-points": {"bertkit.readers": readers}}},
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("pipes_reader", None)


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_files_of_another_packages_format(packages, suffix, pack):
    rows = [(1, {"text": "a", "label": "x"}), (2, {"text": "b"})]
    assert read(packages, f"t.pipes{suffix}", pack(b"x|a\n|b\n")) == rows
    assert read(packages, f"t.dat{suffix}", pack(b"x|a\n|b\n"), format="pipes") == rows
    expected = f"t.pipes{suffix}:2: no |\n    write LABEL|TEXT\nt.pipes{suffix}:3: no |"
    assert expected in fails(packages, f"t.pipes{suffix}", pack(b"x|a\nb\nc\n"))
    (packages / f"t.side{suffix}").write_bytes(pack("ß".encode("cp1252")))
    assert read(packages, "t.pipes", "x|a\n", sheet="x", encoding="cp1252") == [
        (1, {"text": "aß", "label": "x"})
    ]
    assert f"t.side{suffix}:1: byte 0xDF" in fails(packages, "t.pipes", "x|a\n", sheet="x")
    (packages / f"t.side{suffix}").unlink()
    assert "t.side: cannot be read: No such file" in fails(packages, "t.pipes", "x|a\n", sheet="x")
    for name, content in (("train", b"|a\nx|b\n"), ("dev", b"x|a\n")):  # the first row has no label
        (packages / f"{name}.pipes{suffix}").write_bytes(pack(content))
        (packages / f"{name}.txt").write_text("goes with it")
    files = {
        "train": f"{packages}/train.pipes{suffix}",
        "validation": [f"{packages}/dev.pipes{suffix}"],
    }
    for source in (str(packages), files):
        data = load(DataSpec(source=source, missing_labels="ignore"), SCHEMA)
        assert {split: rows["text"][:] for split, rows in data.rows.items()} == {
            "train": ["b"],
            "validation": ["a"],
        }


def test_a_reader_that_cannot_be_used_says_why_and_harms_no_other(packages):
    for name, what in {
        "lost": (
            "the reader 'lost' of two 1.0 cannot be used: ModuleNotFoundError: No module named 'no_module'"
        ),
        "gone": "the reader 'gone' of one 1.0 cannot be used: AttributeError: module 'pipes_reader' has"
        " no attribute 'NONE'",
        "greedy": "the reader 'greedy' of toy 1.0 cannot be used: bertkit reads .csv itself",
        "function": "the reader 'function' of toy 1.0 cannot be used: "
        "an object of type function is not a bertkit.data.Reader",
        "twice": "the reader 'twice' of one 1.0 and two 1.0 cannot be used: "
        "several packages have a reader of this name",
        "pipe": "no format 'pipe'; did you mean 'pipes'?",
    }.items():
        known = "csv, tsv, xlsx, json, jsonl, parquet, conll, conllu, txt, lines, bars, pipes"
        assert fails(packages, "t.mine", "x|a", format=name) == f"data.format: {what}\n    Known: {known}."
        where = f"{packages}/t.mine"
        raises(RecipeError, what, parse_data_spec, {"source": where}, [f"data.format={name}"])
    message = fails(packages, "t.mine", "x|a")
    assert (
        ".conllu, .txt, .bars, .pipes, .bars, each also with .gz or .xz; the reader 'function' of" in message
    )
    assert "; the reader 'lost' of two 1.0 cannot be used: Module" in message
    assert "several formats have this suffix: bars, pipes\n    set  data: {format: bars}" in fails(
        packages, "t.bars", "x"
    )
    assert read(packages, "t.csv", "text,label\na,x\nb,y\n") == AB
    assert {"csv", "lines", "pipes"} <= {
        *json_schema()["$defs"]["DataSpec"]["properties"]["format"]["anyOf"][0]["enum"]
    }


def test_the_formats_of_other_packages_are_known_where_ours_are(packages):
    (packages / "t.pipes").write_text("x|a\n")
    recipe = packages / "recipe.yaml"
    text = "task: {name: text-classification}\nmodel: {name: ./t}\ndata: {source: SOURCE, header: [a]}\n"
    for source, what in {
        "t.pipes": "pipes files name their own columns",
        "gone.pipes": "no file or folder",
        "t.pipes, format: pipe": "no format 'pipe'; did you mean",
    }.items():
        recipe.write_text(text.replace("SOURCE", source))
        raises(RecipeError, what, load_recipe, recipe)
    recipe.write_text(text.replace("SOURCE", "t.pipes, format: bars"))
    assert "own columns" not in message_of(RecipeError, load_recipe, recipe)
