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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from bertkit.data.readers import COMPRESSIONS, read_rows
from bertkit.data.splits import match_splits
from bertkit.data.table import Problems, Row, Table
from bertkit.errors import DataError
from bertkit.text import counted, short_repr

if TYPE_CHECKING:
    from bertkit.data.schema import Finding
    from bertkit.sections import DataSpec

Texts: TypeAlias = dict[str, tuple[str, ...]]  # id -> (title, text) of a document, (text,) of a query
Judged: TypeAlias = dict[str, dict[str, int]]  # query id -> document id -> grade

HEADER = ("query-id", "corpus-id", "score")
_GRADE = re.compile(r"[0-9]{1,9}")


class Beir(NamedTuple):
    """What a BEIR folder holds, in the order of its files."""

    corpus: dict[str, tuple[str, str]]  # document id -> (title or "", text)
    queries: dict[str, str]  # query id -> text
    qrels: dict[str, Judged]  # split -> query id -> document id -> grade, 0 where it is not relevant
    findings: list[Finding]

    def document(self, name: str) -> str:
        """Title and text with a blank between, as BEIR and sentence-transformers join them."""
        return " ".join(self.corpus[name]).strip()


def read_beir(folder: Path, problems: Problems) -> Beir:
    """All of a BEIR folder, read line by line; `dev` and its like become `validation`.

    Notes in `problems`, with file:line, for the caller to `finish`: files that are missing or can not be read,
    a missing header, fields of another kind, an id with two texts, a pair with two grades, a grade that is not
    a whole number from 0, empty queries, empty documents that are judged relevant, and judged ids that are not
    in the corpus or in the queries. What is returned is then not complete.
    In the findings: repeated rows, empty documents, queries without a relevant document, and queries that
    validation or test share with train.
    Raises DataError when there are too many problems to go on.
    """
    from bertkit.sections import DataSpec

    reader = _Reader(folder, DataSpec(source=str(folder)), problems)
    corpus = reader.texts("corpus.jsonl", ("title", "text"))
    queries = reader.texts("queries.jsonl", ("text",))
    qrels = {split: reader.judgements(path, corpus, queries) for split, path in reader.splits().items()}
    return Beir(
        cast(dict[str, tuple[str, str]], corpus or {}),
        {name: text for name, (text,) in (queries or {}).items()},
        qrels,
        reader.findings + _findings(corpus or {}, qrels),
    )


def pairs(beir: Beir, split: str) -> list[Row]:
    """The judgements of a split as rows `query_id`, `query`, `document_id`, `document`, `grade`.

    The document is its title and its text with a blank between, as BEIR and sentence-transformers join them.
    Raises DataError: there is no such split.
    """
    if split not in beir.qrels:
        raise DataError(f"no judgements for {split}; there are some for: {', '.join(beir.qrels) or 'nothing'}")
    return [
        {
            "query_id": query,
            "query": beir.queries[query],
            "document_id": document,
            "document": beir.document(document),
            "grade": grade,
        }
        for query, grades in beir.qrels[split].items()
        for document, grade in grades.items()
    ]


def check_pairs(table: Table) -> None:
    """Raises DataError, with the rows: an id has one text, a pair one grade, and grades are whole numbers from 0."""
    problems, sides = Problems(), ("query", "document")
    names = [*sides, *(f"{side}_id" for side in sides), "grade"]
    columns = [table.values.get(name, repeat(None)) for name in names]
    texts = dict[tuple[str, str], tuple[int, int]]()  # side and id -> the first row, and the hash of its text
    graded = dict[tuple[str, str], tuple[int, float]]()  # pair -> the first row, and its grade
    for row, (query, document, query_id, document_id, grade) in enumerate(zip(*columns, strict=False)):
        where, pair = table.origin[row], []
        for side, text, name in zip(sides, (query, document), (query_id, document_id), strict=True):
            pair.append(text if name is None else name)
            first, known = texts.setdefault((side, name), (row, hash(text))) if name is not None else (row, hash(text))
            if known != hash(text):
                what = f"the {side} {short_repr(name)} has another text at {table.origin[first]}"
                problems.add(where, what, "give each text an id of its own")
        if grade is None or not query:  # a document without a query is only there to be found
            continue
        if grade < 0 or grade != int(grade):
            what = f"`grade` holds {grade:g}, where a whole number from 0 is expected"
            problems.add(where, what, "write 0 for not relevant, 1 for relevant, 2 and up for better")
        first, other = graded.setdefault((pair[0], pair[1]), (row, grade))
        if other != grade:
            what = f"the pair has the grade {grade:g}, and {other:g} at {table.origin[first]}"
            problems.add(where, what, "keep one of the two rows")
    problems.raise_if_any()


@dataclass(frozen=True)
class _Reader:
    """Reads the files of one folder; what is wrong goes to `problems`, what is odd to `findings`."""

    folder: Path
    spec: DataSpec
    problems: Problems
    findings: list[Finding] = field(default_factory=list)
    unread: set[Path] = field(default_factory=set)  # what they hold is not known in full

    def splits(self) -> dict[str, Path]:
        """Split -> its file of judgements."""
        names = sorted({path.name.partition(".tsv")[0] for path in self.folder.glob("qrels/*.tsv*")})
        try:
            splits = match_splits(names, self.spec)
        except DataError as error:
            self._take(error)
            return {}
        if not splits:
            what = f"no judgements of a split, such as test.tsv; there: {', '.join(names) or 'nothing'}"
            self.problems.add(str(self.folder / "qrels"), what)
        found = {split: self._find(f"qrels/{name}.tsv") for split, name in splits.items()}
        return {split: path for split, path in found.items() if path is not None}

    def texts(self, name: str, fields: tuple[str, ...]) -> Texts | None:
        """The rows of a file by `_id`; None if it can not be read, so that no id is said to be missing from it."""
        path = self._find(name)
        if path is None:
            return None
        found: Texts = {}
        lines: dict[str, int] = {}
        repeated = []
        for number, row in self._rows(path):
            where = f"{path}:{number}"
            key, texts = self._row(row, fields, where)
            if not key:
                continue
            if found.setdefault(key, texts) != texts:
                what = f"the id {short_repr(key)} has another text on line {lines[key]}"
                self.problems.add(where, what, "give each text an id of its own")
            elif key in lines:
                repeated.append(where)
            lines.setdefault(key, number)
        self._note(repeated)
        return None if path in self.unread else found

    def judgements(self, path: Path, corpus: Texts | None, queries: Texts | None) -> Judged:
        """The judgements of a file; their ids are looked for in the corpus and the queries, where these were read."""
        judged: Judged = {}
        repeated = []
        for number, row in self._rows(path):
            if not row.keys() >= set(HEADER):
                what = f"no header with {', '.join(HEADER)}; found: {', '.join(row)}"
                self.problems.add(f"{path}:1", what, "begin the file with the line  query-id<TAB>corpus-id<TAB>score")
                break
            where = f"{path}:{number}"
            query, document, grade = self._judgement(row, corpus, queries, where)
            grades = judged.setdefault(query, {})
            if grades.get(document) == grade:
                repeated.append(where)
            if grades.setdefault(document, grade) != grade:
                pair = f"{short_repr(query)} and {short_repr(document)}"
                what = f"{pair} have the grade {grades[document]} in an earlier line"
                self.problems.add(where, what, "keep one of the two lines")
        self._note(repeated)
        return judged

    def _rows(self, path: Path) -> Iterator[tuple[int, Row]]:
        """The rows of a file with their lines; one that can not be read goes to `problems` and to `unread`."""
        try:
            yield from read_rows(path, self.spec)
        except DataError as error:
            self.unread.add(path)
            self._take(error)

    def _find(self, name: str) -> Path | None:
        """The file of this name, plain or compressed; None, and a problem, unless there is exactly one."""
        plain = self.folder / name
        found = [path for end in ("", *COMPRESSIONS) if (path := plain.with_name(plain.name + end)).is_file()]
        if not found:
            fix = "a BEIR folder holds corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, each also with .gz or .xz"
            self.problems.add(str(plain), f"no such file (looked from {Path.cwd()})", fix)
        elif len(found) > 1:
            names = " and ".join(path.name for path in found)
            self.problems.add(str(plain.parent), f"{names}: only one of these can be used", "remove the others")
        return found[0] if len(found) == 1 else None

    def _row(self, row: Row, fields: tuple[str, ...], where: str) -> tuple[str, tuple[str, ...]]:
        """(id, texts) of a row; an empty id, and problems, if it can not be used."""
        key = row.get("_id")
        values: dict[str, Any] = {"_id": str(key) if type(key) is int else key}
        values |= {name: row.get(name) for name in fields}
        if "title" in fields and values["title"] is None:
            values["title"] = ""
        bad = [name for name, value in values.items() if not isinstance(value, str)]
        for name in bad:
            have = f"`{name}` holds {short_repr(row[name])}" if name in row else f"no `{name}`"
            self.problems.add(where, f"{have}, where text is expected; found: {', '.join(row) or 'nothing'}")
        if not bad and not values["_id"].strip():
            self.problems.add(where, "the `_id` is empty")
        elif not bad and fields == ("text",) and not values["text"].strip():
            self.problems.add(
                where, f"the query {short_repr(key)} is empty", "give it a text, or remove its judgements too"
            )
        return "" if bad or not values["_id"].strip() else values["_id"], tuple(values[name] for name in fields)

    def _judgement(self, row: Row, corpus: Texts | None, queries: Texts | None, where: str) -> tuple[str, str, int]:
        """(query id, document id, grade), the grade 0 where it can not be read."""
        query, document, score = (row[name] for name in HEADER)
        if queries is not None and query not in queries:
            self.problems.add(where, f"the query {short_repr(query)} is not in queries.jsonl")
        if corpus is not None and document not in corpus:
            self.problems.add(where, f"the document {short_repr(document)} is not in corpus.jsonl")
        if not _GRADE.fullmatch(score):
            what = f"the grade {short_repr(score)} is not a whole number from 0"
            self.problems.add(where, what, "write 0 for not relevant, 1 for relevant, 2 and up for better")
            return query, document, 0
        if int(score) and _is_empty((corpus or {}).get(document, ("?",))):
            what = f"the document {short_repr(document)} is judged relevant, and is empty"
            self.problems.add(where, what, "give it a text, or remove the judgement")
        return query, document, int(score)

    def _take(self, error: DataError) -> None:
        for problem in error.problems:
            self.problems.add(*problem)

    def _note(self, repeated: list[str]) -> None:
        if repeated:
            self.findings.append(
                _warning(f"{counted(len(repeated), 'row', 'repeat')} an earlier row; e.g. {repeated[0]}")
            )


def _is_empty(texts: tuple[str, ...]) -> bool:
    return not any(text.strip() for text in texts)


def _warning(what: str, fix: str = "") -> Finding:
    from bertkit.data.schema import Finding

    return Finding("warn", what, fix)


def _findings(corpus: Texts, qrels: dict[str, Judged]) -> list[Finding]:
    findings = []
    empty = [name for name, texts in corpus.items() if _is_empty(texts)]
    if empty:
        findings.append(
            _warning(f"{len(empty):,} documents are empty, e.g. {short_repr(empty[0])}; none is judged relevant")
        )
    for split, judged in qrels.items():
        bare = sum(not any(grades.values()) for grades in judged.values())
        if bare:
            what = f"{split}: {bare:,} of {len(judged):,} queries have no relevant document"
            findings.append(_warning(what, "they score 0, whatever is found"))
        shared = 0 if split == "train" else len(judged.keys() & qrels.get("train", {}).keys())
        if shared:
            what = f"{split}: {shared:,} of {len(judged):,} queries are in train too"
            findings.append(_warning(what, "scores will look better than they are"))
    return findings
