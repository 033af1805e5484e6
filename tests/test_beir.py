"""Folders in the layout of BEIR, read; and everything that is wrong with one, said at once with its place."""

import gzip
import lzma

from small import problems_of, write_rows

from bertkit.data.beir import pairs, read_beir
from bertkit.data.sources import open_source
from bertkit.errors import DataError
from bertkit.sections import DataSpec

CORPUS = [
    {"_id": "d1", "title": "Locks", "text": "A lock lifts boats."},
    {"_id": "d2", "title": "", "text": "Bread rises."},
    {"_id": "d3", "title": "Tides", "text": ""},
]
QUERIES = [
    {"_id": "q1", "text": "how do boats climb", "metadata": {}},
    {"_id": "q2", "text": "the moon and water"},
]
HEADER = "query-id\tcorpus-id\tscore\n"
TEST = f"{HEADER}q1\td1\t2\nq1\td2\t0\nq2\td3\t1\n"


def folder(path, corpus=CORPUS, queries=QUERIES, **qrels):
    write_rows(path / "corpus.jsonl", corpus)
    write_rows(path / "queries.jsonl", queries)
    for split, text in (qrels or {"test": TEST}).items():
        write_rows(path / "qrels" / f"{split}.tsv", text)
    return path


def wrong(path):
    """Each problem as `file:line: what`, the folder's name left out."""
    return [
        f"{p.where}: {p.what}".replace(f"{path}/", "").replace(str(path), ".")
        for p in problems_of(DataError, read_beir, path)
    ]


def test_a_folder_is_read(tmp_path):
    beir = read_beir(folder(tmp_path))
    assert beir.corpus == {"d1": "Locks A lock lifts boats.", "d2": "Bread rises.", "d3": "Tides"}
    assert beir.queries == {"q1": "how do boats climb", "q2": "the moon and water"}
    assert beir.qrels == {"test": {"q1": {"d1": 2, "d2": 0}, "q2": {"d3": 1}}}
    assert beir.findings == []
    assert [tuple(pair.values()) for pair in pairs(beir, "test")] == [
        ("q1", "how do boats climb", "d1", "Locks A lock lifts boats.", 2),
        ("q1", "how do boats climb", "d2", "Bread rises.", 0),
        ("q2", "the moon and water", "d3", "Tides", 1),
    ]
    assert [*pairs(beir, "test")[0]] == "query_id query document_id document grade".split()


def test_splits_come_in_order_ids_may_be_whole_numbers_and_titles_may_be_missing(tmp_path):
    beir = read_beir(folder(tmp_path, test=TEST, dev=f"{HEADER}q2\td1\t1\n", train=f"{HEADER}q2\td2\t1\n"))
    assert list(beir.qrels) == ["train", "validation", "test"]
    assert beir.qrels["validation"] == {"q2": {"d1": 1}}
    source = str(folder(tmp_path / "named", dev=TEST, dev2=f"{HEADER}q2\td1\t1\n"))
    spec = DataSpec(source=source, splits={"validation": "dev2"})
    [(_, [part])] = open_source(spec, None, ()).items()
    assert [(row["query_id"], row["grade"]) for _, row in part.rows if row["query_id"]] == [("q2", 1)]
    corpus = [{"_id": 7, "text": "x"}, {"_id": 8, "title": None, "text": "y"}]
    beir = read_beir(
        folder(tmp_path / "numbers", corpus, [{"_id": 1, "text": "q"}], test=f"{HEADER}1\t7\t1\n")
    )
    assert beir.corpus == {"7": "x", "8": "y"}
    assert beir.qrels == {"test": {"1": {"7": 1}}}


def test_files_that_are_compressed_or_in_another_encoding_are_the_same(tmp_path):
    plain = folder(tmp_path / "plain")
    expected = read_beir(plain)
    for name, compress, end in (
        ("corpus.jsonl", gzip.compress, ".gz"),
        ("queries.jsonl", lzma.compress, ".xz"),
        ("qrels/test.tsv", gzip.compress, ".gz"),
    ):
        (plain / f"{name}{end}").write_bytes(compress((plain / name).read_text().encode("utf-16")))
        (plain / name).unlink()
    assert read_beir(plain, "utf-16") == expected
    (part,) = open_source(DataSpec(source=str(plain), encoding="utf-16"), None, ())["test"]
    assert [row for _, row in part.rows][:3] == pairs(expected, "test")


def test_everything_wrong_with_the_texts_is_said_at_once(tmp_path):
    corpus = [*CORPUS, {"_id": "d1", "title": "Locks", "text": "Another text."}, {"title": "x", "text": "y"},
              {"_id": "d5", "title": 3, "text": None}, []]  # fmt: skip
    queries = [*QUERIES, {"_id": "q3", "text": "  "}, {"_id": True, "text": "z"}]
    assert wrong(folder(tmp_path, corpus, queries)) == [
        "corpus.jsonl:4: the id 'd1' has another text on an earlier line",
        "corpus.jsonl:5: holds {'title': 'x', 'text': 'y'}, where texts in `_id` and `text` are expected",
        (
            "corpus.jsonl:6: holds {'_id': 'd5', 'title': 3, 'text': None}, where texts in `_id` and `text` "
            "are expected"
        ),
        "corpus.jsonl:7: expected an object, found a list",
        "queries.jsonl:4: holds {'_id': True, 'text': 'z'}, where texts in `_id` and `text` are expected",
        ".: the query 'q3' is empty",
    ]


def test_everything_wrong_with_the_judgements_is_said_at_once(tmp_path):
    test = f"{HEADER}q1\td9\t1\nq9\td1\t1\nq1\td1\t-1\nq1\td2\t1.0\nq2\td1\t1\nq2\td1\t2\n"
    assert wrong(folder(tmp_path, test=test)) == [
        "qrels/test.tsv:2: the document 'd9' is not in corpus.jsonl",
        "qrels/test.tsv:3: the query 'q9' is not in queries.jsonl",
        "qrels/test.tsv:4: the grade '-1' is not a whole number from 0",
        "qrels/test.tsv:5: the grade '1.0' is not a whole number from 0",
        "qrels/test.tsv:7: 'q2' and 'd1' have another grade on an earlier line",
    ]


def test_missing_files_and_judgements_of_no_split_or_of_two_names_are_named(tmp_path):
    here = "cannot be read: No such file or directory"
    assert wrong(tmp_path) == [
        f"corpus.jsonl: {here}",
        f"queries.jsonl: {here}",
        "qrels: no judgements of a split, such as test.tsv; the folder holds: nothing",
    ]
    found = wrong(folder(tmp_path / "none", all=TEST))
    assert found == ["qrels: no judgements of a split, such as test.tsv; the folder holds: all"]
    found = wrong(folder(tmp_path / "names", dev=TEST, validation=TEST))
    assert found == [".: two names for validation: validation, dev"]


def test_judgements_in_another_layout_and_a_broken_archive(tmp_path):
    for text, problem in (
        ("q1\td1\t1\nq1\td2\t1\n", "test.tsv:1: no header with query-id, corpus-id, score; found: q1, d1, 1"),
        ("q1 0 d1 1\nq1 0 d2 1\n", "test.tsv:1: no header with query-id, corpus-id, score; found: q1 0 d1 1"),
        (f"{HEADER}q1\td1\n", "test.tsv:2: expected 3 fields, found 2"),
        (HEADER, "test.tsv: is empty: no rows after the header"),
        ("", "test.tsv: the file is empty"),
    ):
        assert wrong(folder(tmp_path, test=text)) == [f"qrels/{problem}"]
    path = folder(tmp_path)
    plain = path / "corpus.jsonl"
    (path / "corpus.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes())[:-12])
    plain.unlink()
    (problem,) = wrong(path)
    assert problem.startswith("corpus.jsonl.gz: the archive is damaged or incomplete")


def test_what_is_odd_but_harmless_is_counted(tmp_path):
    empty = {"_id": "d4", "title": " ", "text": ""}
    train = f"{HEADER}q1\td1\t1\nq1\td1\t1\n"
    test = f"{HEADER}q1\td2\t1\nq2\td4\t0\n"
    corpus = [*CORPUS, CORPUS[1], CORPUS[0], empty]
    queries = [*QUERIES, QUERIES[1]]
    beir = read_beir(folder(tmp_path, corpus, queries, train=train, test=test))
    assert all(finding.level == ("severe" if finding.inflates else "warn") for finding in beir.findings)
    assert all(finding.fix for finding in beir.findings)
    assert [finding.what for finding in beir.findings] == [
        "1 empty document, e.g. 'd4'",
        "test: 1 of 2 queries have no relevant document",
        "test: 1 of 2 queries are in train too",
    ]
    assert len(beir.corpus) == 4
    assert beir.qrels["train"] == {"q1": {"d1": 1}}
