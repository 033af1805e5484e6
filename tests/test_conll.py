"""CoNLL files that are fine, files that are not, and files of any bytes: sentences, or a DataError that says where."""

from __future__ import annotations

import gzip
import lzma
import tracemalloc

import test_data_readers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small import raises
from test_data_readers import fails, spec

from bertkit.data import load, read_rows
from bertkit.data.conll import conll_rows
from bertkit.data.sources import open_source
from bertkit.data.table import Problems
from bertkit.errors import DataError
from bertkit.tasks import get_task


def read(tmp_path, content, name="t.conll", **settings):
    return test_data_readers.read(tmp_path, name, content, **settings)


EU = (1, {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]})
FINE = [
    ("tabs", "EU\tB-ORG\nrejects\tO\n\n", {}, [EU]),
    ("one blank", "EU B-ORG\nrejects O\n\n", {}, [EU]),
    ("runs of blanks", "  EU    B-ORG \nrejects O\n", {}, [EU]),
    ("blanks around tabs", "EU \t B-ORG\nrejects\tO \n", {}, [EU]),
    ("tabs in one line, blanks in the next", "EU\tB-ORG\nrejects O\n", {}, [EU]),
    ("Windows lines", "EU\tB-ORG\r\nrejects\tO\r\n\r\n", {}, [EU]),
    ("no newline at the end", "EU\tB-ORG\nrejects\tO", {}, [EU]),
    ("byte order mark", b"\xef\xbb\xbfEU\tB-ORG\nrejects\tO\n", {}, [EU]),
    ("header: true goes by position", "EU\tB-ORG\nrejects\tO\n", {"header": True}, [EU]),
    ("header: false goes by position", "EU\tB-ORG\nrejects\tO\n", {"header": False}, [EU]),
    ("a delimiter", "EU,B-ORG\nrejects,O\n", {"delimiter": ","}, [EU]),
    ("blank lines, some of blanks", "\n \t \na O\n\n  \n\nb O\n\n\n", {},
     [(3, {"tokens": ["a"], "tags": ["O"]}), (7, {"tokens": ["b"], "tags": ["O"]})]),
    ("one column", "a\nb\n\nc\n", {}, [(1, {"tokens": ["a", "b"]}), (4, {"tokens": ["c"]})]),
    ("four columns", "EU NNP B-NP B-ORG\n", {},
     [(1, {"tokens": ["EU"], "column2": ["NNP"], "column3": ["B-NP"], "tags": ["B-ORG"]})]),
    ("named columns", "1 EU B-ORG\n", {"header": ["id", "tokens", "ner"]},
     [(1, {"id": ["1"], "tokens": ["EU"], "ner": ["B-ORG"]})]),
    ("blanks inside, where tabs are the delimiter", "New York\tB-LOC\n", {"delimiter": "\t"},
     [(1, {"tokens": ["New York"], "tags": ["B-LOC"]})]),
    ("documents", "-DOCSTART- -X- -X- O\n\na O\n\nb O\n-DOCSTART-\nc O\n-DOCSTART- (3)\n\n-DOCSTART-\n\nd O\n", {},
     [(line, {"tokens": [word], "tags": ["O"], "document": document})
      for line, word, document in ((3, "a", "1"), (5, "b", "1"), (7, "c", "2"), (12, "d", "4"))]),
    ("a hash is a word", "# O\n1 O\n", {}, [(1, {"tokens": ["#", "1"], "tags": ["O", "O"]})]),
    ("unusual blanks are text", "a\u00a0b\u2028c\u3000 O\n\u200b O\n", {},
     [(1, {"tokens": ["a\u00a0b\u2028c\u3000", "\u200b"], "tags": ["O", "O"]})]),
    ("unusual blanks beside tabs are text too", "\u3000\tO\n\u200b\x85\t O\n", {},
     [(1, {"tokens": ["\u3000", "\u200b\x85"], "tags": ["O", "O"]})]),
    ("quotes are text", "\" O\n'' O\n", {}, [(1, {"tokens": ['"', "''"], "tags": ["O", "O"]})]),
]  # fmt: skip


def test_reads(tmp_path, subtests):
    for what, content, layout, rows in FINE:
        with subtests.test(what):
            assert read(tmp_path, content, **layout) == rows


def test_suffixes_and_other_names_with_the_format(tmp_path):
    content = b"EU\tB-ORG\nrejects\tO\n"
    for packed, pack in {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}.items():
        for suffix in ("conll", "bio", "iob", "iob2", "bioes"):
            (folder := tmp_path / f"{suffix}{packed}").mkdir()
            assert read(folder, pack(content), name=f"dev.{suffix}{packed}") == [EU]
            assert [*open_source(spec(source=str(folder)), None, ())] == ["validation"]
    assert read(tmp_path, content, name="train.txt", format="conll") == [EU]


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
    assert part.columns == ["tokens", "column2", "tags", "document"]


TABS = 'set  data: {delimiter: "\\t"}'
SAD = [
    ("a field missing", "a O\n\nb\n", {}, ["t.conll:3: 1 field where 2 are expected"]),
    ("a field too many", "a O\nb X O\n", {}, ["t.conll:2: 3 fields where 2 are expected"]),
    ("not what the header says", "a O\n", {"header": ["a", "b", "c"]}, ["t.conll:1: 2 fields where 3 are expected"]),
    ("two bad lines", "a O\nb\nc O\n\nd O O\n", {}, ["t.conll:2: 1 field", "t.conll:5: 3 fields"]),
    ("a blank in a word", "New York\tB-LOC\n", {}, ["t.conll:1: a field of this tab", "'New York'", TABS]),
    ("a blank in a later word", "a\tO\nNew York\tB-LOC\n", {}, ["t.conll:2: a field of this tab", TABS]),
    ("an empty word", "a\tO\n\tO\n", {}, ["t.conll:2: field 1 is empty", TABS]),
    ("an empty tag", "a\tO\nb\t\n", {}, ["t.conll:2: field 2 is empty", TABS]),
    ("two tabs", "a\tO\nb\t\tO\n", {}, ["t.conll:2: 3 fields where 2 are expected", TABS]),
    ("an empty field with a delimiter", "a\tO\n \tO\n", {"delimiter": "\t"}, ["t.conll:2: field 1 is empty"]),
    ("a comment", "# sent_id = 1\na O\n", {}, ["t.conll:2: 2 fields where 4 are expected"]),
    ("a carriage return", "a O\rb O\n", {}, ["t.conll:1: a carriage return", "line endings"]),
    ("a column twice", "a O\n", {"header": ["x", "x"]}, ["data.header: names a column twice: x"]),
    ("empty", "", {}, ["t.conll: holds no rows"]),
    ("only blank lines", "\n \n\t\n", {}, ["t.conll: holds no rows"]),
    ("only documents", "-DOCSTART- O\n\n-DOCSTART- O\n", {}, ["t.conll: holds no rows"]),
    ("bad byte", "a O\ncafé O\n".encode("latin-1"), {}, ["t.conll:2: byte 0xE9 at column 4 is not UTF-8"]),
    ("UTF-16", "a O\n".encode("utf-16"), {}, ["UTF-16"]),
    ("NUL", "a O\n\0 O\n", {}, ["t.conll:2: a NUL byte at column 1"]),
]  # fmt: skip


def test_says_what_is_wrong_and_a_fix_where_it_helps(tmp_path, subtests):
    for what, content, layout, parts in SAD:
        with subtests.test(what):
            message = fails(tmp_path, "t.conll", content, **layout)
            assert all(part in message for part in parts), message
    assert TABS not in fails(tmp_path, "t.conll", "a O\nb\n")
    assert TABS not in fails(tmp_path, "t.conll", "a\tO\nb\n", delimiter="\t")


def test_nothing_is_yielded_after_a_bad_line(tmp_path):
    path = tmp_path / "t.conll"
    path.write_text("a O\n\nb\n\nc O\n")
    rows = read_rows(path, spec())
    assert next(rows) == (1, {"tokens": ["a"], "tags": ["O"]})
    raises(DataError, ":3: 1 field", next, rows)


def test_memory_is_that_of_a_sentence():
    lines = ((number, "word\tO\n" if number % 10 else "\n") for number in range(50_000))
    tracemalloc.start()
    count = sum(1 for _ in conll_rows(lines, spec(), Problems("t.conll")))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 5000
    assert most < 100_000  # bytes; all of the rows take some 7 million


field = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=6).filter(
    lambda text: not text.startswith("-DOCSTART-") and text.strip() and "\ufeff" not in text
)


@given(
    documents=st.lists(
        st.lists(st.lists(st.tuples(field, field), min_size=1, max_size=4), min_size=1, max_size=3), max_size=3
    ).filter(bool),
    delimiter=st.sampled_from(["\t", " ", "  ", " \t"]),
    end=st.sampled_from(["\n", "\r\n"]),
    numbered=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sentences_come_back_as_they_were_written(tmp_path, documents, delimiter, end, numbered):
    text, expected = "", []
    for document, sentences in enumerate(documents, 1):
        text += f"-DOCSTART-{delimiter}O{end}{end}" if numbered else ""
        for sentence in sentences:
            text += "".join(f"{word}{delimiter}{tag}{end}" for word, tag in sentence) + end
            row = {"tokens": [word for word, _ in sentence], "tags": [tag for _, tag in sentence]}
            expected.append({**row, "document": str(document)} if numbered else row)
    assert [row for _, row in read(tmp_path, text)] == expected
