"""Queries, documents and judgements in the layout of BEIR (Thakur et al. 2021).

A folder with `corpus.jsonl` ({"_id", "title", "text"}), `queries.jsonl` ({"_id", "text"}) and, per split,
`qrels/SPLIT.tsv` with the header `query-id`, `corpus-id`, `score`; each plain or behind .gz or .xz.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from bertkit.data.problems import FirstSeen, Problems
from bertkit.data.reader import packed
from bertkit.data.readers import rows_or_problems
from bertkit.data.schema import Finding, leak, warn
from bertkit.data.splits import match_splits
from bertkit.data.table import Row, Table
from bertkit.data.values import read_name
from bertkit.sections import DataSpec, Split
from bertkit.text import counted, short_repr

Texts = dict[str, str]  # id -> text
Judged = dict[str, dict[str, int]]  # query id -> document id -> grade

COLUMNS = ("query_id", "query", "document_id", "document", "grade")  # of a judged pair
HEADER = ("query-id", "corpus-id", "score")
OWN_ID = "give each text an id of its own"
GRADES = "write 0 for not relevant, 1 for relevant, 2 and up for better"
_ADD = "add its text, or remove the judgement"
_GRADE = re.compile(r"[0-9]{1,9}")


class Beir(NamedTuple):
    """What a BEIR folder holds, in the order of its files."""

    corpus: Texts  # title and text with a space between, as BEIR and sentence-transformers join them
    queries: Texts
    qrels: dict[str, Judged]  # split -> query id -> document id -> grade, 0 where it is not relevant
    findings: list[Finding]


def read_beir(folder: Path, encoding: str = "utf-8", splits: dict[Split, str] | None = None) -> Beir:
    """All of a BEIR folder in this encoding, read line by line; `dev`, `val` and `valid` become `validation`.

    Findings: empty documents, queries without a relevant document, and queries of validation or test that are
    in train too. Raises DataError with everything that is wrong with the texts, or else with the judgements,
    by file and line.
    """
    spec = DataSpec(source=str(folder), encoding=encoding, splits=splits)
    problems = Problems()
    corpus = _texts(packed(folder / "corpus.jsonl"), spec, problems, titled=True)
    queries = _texts(packed(folder / "queries.jsonl"), spec, problems)
    for query in (query for query, text in queries.items() if not text.strip()):
        fix = "give it a text, or remove its judgements too"
        problems.add(str(folder), f"the query {short_repr(query)} is empty", fix)
    names = sorted({path.name.partition(".tsv")[0] for path in folder.glob("qrels/*.tsv*")})
    matched = match_splits(names, spec)
    if not matched:
        what = (
            f"no judgements of a split, such as test.tsv; the folder holds: {', '.join(names) or 'nothing'}"
        )
        problems.add(
            str(folder / "qrels"), what, "Name a file of judgements test.tsv, or name it in data.splits."
        )
    problems.raise_if_any()
    files = {split: packed(folder / f"qrels/{name}.tsv") for split, name in matched.items()}
    qrels = {split: _judgements(file, spec, problems, corpus, queries) for split, file in files.items()}
    problems.raise_if_any()
    return Beir(corpus, queries, qrels, list(_findings(corpus, qrels)))


def pairs(beir: Beir, split: str) -> list[Row]:
    """The judgements of a split as rows with these COLUMNS."""
    values = (
        (query, beir.queries[query], document, beir.corpus[document], grade)
        for query, grades in beir.qrels[split].items()
        for document, grade in grades.items()
    )
    return [dict(zip(COLUMNS, pair, strict=True)) for pair in values]


def check_pairs(table: Table) -> None:
    """Raises DataError, with the rows: an id has one text, a pair one grade, and grades are whole numbers
    from 0.
    """
    problems = Problems()
    texts = FirstSeen()
    grades = FirstSeen()
    columns = [table.values.get(name, repeat(None)) for name in COLUMNS]
    for row, (query_id, query, document_id, document, grade) in enumerate(zip(*columns, strict=False)):
        where = table.origin[row]
        for side, text, name in (("query", query, query_id), ("document", document, document_id)):
            _, other = texts.add((side, name), hash(text), row) if name else (False, None)
            if other is not None:
                what = f"the {side} {short_repr(name)} has another text at {table.origin[other]}"
                problems.add(where, what, OWN_ID)
        if grade is None or not query:  # a document without a query can only be retrieved
            continue
        if grade < 0 or grade != int(grade):
            problems.add(where, f"`grade` holds {grade:g}, where a whole number from 0 is expected", GRADES)
        _, other = grades.add((query_id or query, document_id or document), grade, row)
        if other is not None:
            problems.add(
                where, f"the pair has another grade at {table.origin[other]}", "keep one of the two rows"
            )
    problems.raise_if_any()


def _texts(file: Path, spec: DataSpec, problems: Problems, titled: bool = False) -> Texts:
    """The ids of a file -> their texts, with the title before it where they are titled."""
    texts = Texts()
    for number, row in rows_or_problems(file, spec, problems):
        key = row.get("_id")
        try:
            key = read_name(key) if isinstance(key, float) or type(key) is int else key
        except ValueError as error:
            problems.add(f"{file}:{number}", f"`_id` {error}", "Write ids as text.")
            continue
        title = row.get("title") if titled else ""
        text = row.get("text")
        title = "" if title is None else title
        if not (isinstance(key, str) and isinstance(title, str) and isinstance(text, str)):
            what = f"holds {short_repr(row)}, where texts in `_id` and `text` are expected"
            problems.add(f"{file}:{number}", what, 'Write {"_id": "1", "text": "…"}.')
            continue
        text = f"{title} {text}".strip() if titled else text
        if texts.setdefault(key, text) != text:
            problems.add(
                f"{file}:{number}", f"the id {short_repr(key)} has another text on an earlier line", OWN_ID
            )
    return texts


def _judgements(file: Path, spec: DataSpec, problems: Problems, corpus: Texts, queries: Texts) -> Judged:
    """The judgements of a file, whose ids must be those of texts."""
    judged = Judged()
    for number, row in rows_or_problems(file, spec, problems):
        if not row.keys() >= set(HEADER):
            what = f"no header with {', '.join(HEADER)}; found: {', '.join(row)}"
            problems.add(f"{file}:1", what, "begin the file with the line  query-id<TAB>corpus-id<TAB>score")
            break
        where = f"{file}:{number}"
        query = row["query-id"]
        document = row["corpus-id"]
        if query not in queries:
            problems.add(where, f"the query {short_repr(query)} is not in queries.jsonl", _ADD)
        if document not in corpus:
            problems.add(where, f"the document {short_repr(document)} is not in corpus.jsonl", _ADD)
        whole = _GRADE.fullmatch(row["score"])
        grade = int(row["score"]) if whole else 0
        if not whole:
            problems.add(where, f"the grade {short_repr(row['score'])} is not a whole number from 0", GRADES)
        if judged.setdefault(query, {}).setdefault(document, grade) != grade:
            what = f"{short_repr(query)} and {short_repr(document)} have another grade on an earlier line"
            problems.add(where, what, "keep one of the two lines")
    return judged


def _findings(corpus: Texts, qrels: dict[str, Judged]) -> Iterator[Finding]:
    empty = [name for name, text in corpus.items() if not text]
    if empty:
        what = f"{counted(len(empty), 'empty document')}, e.g. {short_repr(empty[0])}"
        yield warn(what, "Fill them in, or remove them with their judgements.")
    for split, judged in qrels.items():
        without = sum(not any(grades.values()) for grades in judged.values())
        if without:
            what = f"{split}: {without:,} of {len(judged):,} queries have no relevant document"
            yield warn(what, "They score 0, whatever is retrieved.")
        shared = 0 if split == "train" else len(judged.keys() & qrels.get("train", {}).keys())
        if shared:
            yield leak(split, shared, len(judged), f"{shared:,} of {len(judged):,} queries are in train too")
