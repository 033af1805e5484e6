"""Queries, documents and judgements in the layout of BEIR (Thakur et al. 2021).

A folder with `corpus.jsonl` ({"_id", "title", "text"}), `queries.jsonl` ({"_id", "text"}) and, per split,
`qrels/SPLIT.tsv` with the header `query-id`, `corpus-id`, `score`; each plain or behind .gz or .xz.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, TypeAlias

from bertkit.data.readers import COMPRESSIONS, read_rows
from bertkit.data.schema import Finding, leak, warn
from bertkit.data.splits import match_splits
from bertkit.data.table import FirstSeen, Problems, Row, Table
from bertkit.errors import DataError
from bertkit.sections import DataSpec
from bertkit.text import counted, short_repr

Texts: TypeAlias = dict[str, str]  # id -> text
Judged: TypeAlias = dict[str, dict[str, int]]  # query id -> document id -> grade

HEADER = ("query-id", "corpus-id", "score")
OWN_ID = "give each text an id of its own"
GRADES = "write 0 for not relevant, 1 for relevant, 2 and up for better"
_GRADE = re.compile(r"[0-9]{1,9}")


class Beir(NamedTuple):
    """What a BEIR folder holds, in the order of its files."""

    corpus: Texts  # title and text with a space between, as BEIR and sentence-transformers join them
    queries: Texts
    qrels: dict[str, Judged]  # split -> query id -> document id -> grade, 0 where it is not relevant
    findings: list[Finding]


def read_beir(folder: Path) -> Beir:
    """All of a BEIR folder, read line by line; `dev`, `val` and `valid` become `validation`.

    Findings: repeated rows, empty documents, queries without a relevant document, and queries of validation or test
    that are in train too. Raises DataError with everything that is wrong, by file and line.
    """
    reader = _Reader(folder, DataSpec(source=str(folder)))
    corpus = reader.texts("corpus.jsonl", "_id", "title", "text")
    queries = reader.texts("queries.jsonl", "_id", "text")
    qrels = {split: reader.judgements(path, corpus, queries) for split, path in reader.splits().items()}
    reader.problems.raise_if_any()
    return Beir(corpus or {}, queries or {}, qrels, [*reader.problems.findings, *_findings(corpus or {}, qrels)])


def pairs(beir: Beir, split: str) -> list[Row]:
    """The judgements of a split as rows `query_id`, `query`, `document_id`, `document`, `grade`."""
    return [
        {
            "query_id": query,
            "query": beir.queries[query],
            "document_id": document,
            "document": beir.corpus[document],
            "grade": grade,
        }
        for query, grades in beir.qrels[split].items()
        for document, grade in grades.items()
    ]


def check_pairs(table: Table) -> None:
    """Raises DataError, with the rows: an id has one text, a pair one grade, and grades are whole numbers from 0."""
    problems, texts, grades = Problems(), FirstSeen(), FirstSeen()
    names = ("query", "query_id", "document", "document_id", "grade")
    columns = [table.values.get(name, repeat(None)) for name in names]
    for row, (query, query_id, document, document_id, grade) in enumerate(zip(*columns, strict=False)):
        where = table.origin[row]
        for side, text, name in (("query", query, query_id), ("document", document, document_id)):
            _, other = (False, None) if name is None else texts.add((side, name), hash(text), row)
            if other is not None:
                what = f"the {side} {short_repr(name)} has another text at {table.origin[other]}"
                problems.add(where, what, OWN_ID)
        if grade is None or not query:  # a document without a query can only be retrieved
            continue
        if grade < 0 or grade != int(grade):
            problems.add(where, f"`grade` holds {grade:g}, where a whole number from 0 is expected", GRADES)
        pair = query if query_id is None else query_id, document if document_id is None else document_id
        _, other = grades.add(pair, grade, row)
        if other is not None:
            problems.add(where, f"the pair has another grade at {table.origin[other]}", "keep one of the two rows")
    problems.raise_if_any()


@dataclass(frozen=True)
class _Reader:
    """Reads the files of one folder; errors and warnings go to `problems`."""

    folder: Path
    spec: DataSpec
    problems: Problems = field(default_factory=Problems)
    unread: set[Path] = field(default_factory=set)  # files that were not read in full

    def splits(self) -> dict[str, Path]:
        """Split -> its file of judgements."""
        names = sorted({path.name.partition(".tsv")[0] for path in self.folder.glob("qrels/*.tsv*")})
        try:
            splits = match_splits(names, self.spec)
        except DataError as error:
            self.problems.take(error)
            return {}
        if not splits:
            what = f"no judgements of a split, such as test.tsv; the folder holds: {', '.join(names) or 'nothing'}"
            self.problems.add(str(self.folder / "qrels"), what)
        files = {split: self._find(f"qrels/{name}.tsv") for split, name in splits.items()}
        return {split: path for split, path in files.items() if path is not None}

    def texts(self, name: str, *columns: str) -> Texts | None:
        """The ids of a file, in the first of these columns -> its text: the other columns, joined by spaces.

        None if the file cannot be read in full: no id is then reported as missing from it.
        """
        path = self._find(name)
        if path is None:
            return None
        texts, seen = Texts(), FirstSeen()
        for number, row in self._rows(path):
            where = f"{path}:{number}"
            values = [value for column in columns if (value := self._text(row, column, where)) is not None]
            if len(values) < len(columns):
                continue
            key, *cells = values
            if not key.strip():
                self.problems.add(where, "the `_id` is empty")
                continue
            if columns == ("_id", "text") and not cells[0].strip():
                fix = "give it a text, or remove its judgements too"
                self.problems.add(where, f"the query {short_repr(key)} is empty", fix)
            texts.setdefault(key, " ".join(cells).strip() if len(cells) > 1 else cells[0])
            _, other = seen.add(key, hash(tuple(cells)), number)
            if other is not None:
                self.problems.add(where, f"the id {short_repr(key)} has another text on line {other}", OWN_ID)
        self._note(path, seen)
        return None if path in self.unread else texts

    def judgements(self, path: Path, corpus: Texts | None, queries: Texts | None) -> Judged:
        """The judgements of a file; their ids are looked up in the corpus and the queries, where these were read."""
        judged, seen = Judged(), FirstSeen()
        for number, row in self._rows(path):
            if not row.keys() >= set(HEADER):
                what = f"no header with {', '.join(HEADER)}; found: {', '.join(row)}"
                self.problems.add(f"{path}:1", what, "begin the file with the line  query-id<TAB>corpus-id<TAB>score")
                break
            where = f"{path}:{number}"
            query, document, score = (row[name] for name in HEADER)
            if queries is not None and query not in queries:
                self.problems.add(where, f"the query {short_repr(query)} is not in queries.jsonl")
            if corpus is not None and document not in corpus:
                self.problems.add(where, f"the document {short_repr(document)} is not in corpus.jsonl")
            grade = int(score) if _GRADE.fullmatch(score) else 0
            if not _GRADE.fullmatch(score):
                self.problems.add(where, f"the grade {short_repr(score)} is not a whole number from 0", GRADES)
            if grade and (corpus or {}).get(document) == "":
                what = f"the document {short_repr(document)} is judged relevant, and is empty"
                self.problems.add(where, what, "give it a text, or remove the judgement")
            judged.setdefault(query, {}).setdefault(document, grade)
            _, other = seen.add((query, document), grade, number)
            if other is not None:
                what = f"{short_repr(query)} and {short_repr(document)} have another grade on line {other}"
                self.problems.add(where, what, "keep one of the two lines")
        self._note(path, seen)
        return judged

    def _rows(self, path: Path) -> Iterator[tuple[int, Row]]:
        """The rows of a file with their lines; one that cannot be read goes to `problems` and to `unread`."""
        try:
            yield from read_rows(path, self.spec)
        except DataError as error:
            self.unread.add(path)
            self.problems.take(error)

    def _find(self, name: str) -> Path | None:
        """The file of this name, plain or compressed; None, and a problem, unless there is exactly one."""
        plain = self.folder / name
        files = [path for end in ("", *COMPRESSIONS) if (path := plain.with_name(plain.name + end)).is_file()]
        if not files:
            fix = "a BEIR folder holds corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, each also with .gz or .xz"
            self.problems.add(str(plain), f"no such file (looked from {Path.cwd()})", fix)
        elif len(files) > 1:
            names = " and ".join(path.name for path in files)
            self.problems.add(str(plain.parent), f"{names}: only one of these can be used", "remove the others")
        return files[0] if len(files) == 1 else None

    def _text(self, row: Row, name: str, where: str) -> str | None:
        """One value of a row; None, and a problem, if it is not text."""
        value = row.get(name)
        if value is None and name == "title":
            return ""
        if type(value) is int and name == "_id":
            return str(value)
        if isinstance(value, str):
            return value
        have = f"`{name}` holds {short_repr(value)}" if name in row else f"no `{name}`"
        self.problems.add(where, f"{have}, where text is expected; found: {', '.join(row) or 'nothing'}")
        return None

    def _note(self, path: Path, seen: FirstSeen) -> None:
        if seen.repeats:
            what = f"{counted(seen.repeats, 'row', 'repeat')} an earlier row; e.g. {path}:{seen.first_repeat}"
            self.problems.findings.append(warn(what, "Nothing is lost: the first of each is read."))


def _findings(corpus: Texts, qrels: dict[str, Judged]) -> Iterator[Finding]:
    empty = [name for name, text in corpus.items() if not text]
    if empty:
        what = f"{counted(len(empty), 'empty document')}, e.g. {short_repr(empty[0])}; none is judged relevant"
        yield warn(what, "Fill them in, or remove them with their judgements.")
    for split, judged in qrels.items():
        without = sum(not any(grades.values()) for grades in judged.values())
        if without:
            what = f"{split}: {without:,} of {len(judged):,} queries have no relevant document"
            yield warn(what, "They score 0, whatever is retrieved.")
        shared = 0 if split == "train" else len(judged.keys() & qrels.get("train", {}).keys())
        if shared:
            yield leak(split, shared, len(judged), f"{shared:,} of {len(judged):,} queries are in train too")
