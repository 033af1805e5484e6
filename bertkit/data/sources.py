"""Where rows come from: samples, files, folders, the Hub, and the files of rows that were given from Python.

Parallel texts as Moses and fairseq have them are NAME.en and NAME.de, whose lines with one number are a row.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.arrow import class_names, hub_tables, named_rows, saved_tables
from bertkit.data.beir import Beir, pairs, read_beir
from bertkit.data.disk_list import AT_A_TIME
from bertkit.data.problems import Problems
from bertkit.data.python_rows import stored_files
from bertkit.data.reader import COMPRESSIONS, packed, uncompressed
from bertkit.data.readers import by_suffix, read_rows, reader_of, rows_or_problems, suffix_of
from bertkit.data.schema import Finding, Mapped, mapped_columns, note
from bertkit.data.splits import SPLITS, VALIDATION, match_splits
from bertkit.data.table import NumberedRows
from bertkit.data.text_folders import UNLABELLED, Texts, text_folders, text_rows
from bertkit.errors import DataError
from bertkit.sections import MEMORY, DataSpec
from bertkit.text import listed
from bertkit.validation import did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset

SAMPLE = "sample:"
_SHARD = re.compile(r"-\d{5}-of-(\d{5})(-[0-9a-f]+)?$")


@dataclass(frozen=True)
class Part:
    """One file, or one split of a Hub data set: some rows of a split, not yet read."""

    name: str
    prefix: str  # before the number of a row in messages
    columns: list[str]  # of json lines: those of the first row
    rows: NumberedRows
    class_names: dict[str, list[str]]
    findings: Sequence[Finding] = ()  # of this part or the whole source; complete once all rows are read
    mapping: Mapped = field(default_factory=dict)  # canonical column -> column, once columns are chosen
    fingerprint: str = ""  # of a Hub data set, or of rows from Python; "" for a file of the user
    all_keys: Callable[[], Collection[str]] | None = (
        None  # where rows have keys of their own: reads them, and notes it
    )


def open_source(
    spec: DataSpec, splits: Collection[str] | None, wanted: Collection[str] | None
) -> dict[str, list[Part]]:
    """Split -> its parts, opened and their first rows read, in the order train, validation, test.

    splits: those to open; None: all that the source has.
    wanted: columns to read, where columns can be read separately; None: all.
    Raises DataError: a source that does not exist, is ambiguous, or lacks one of `splits`.
    """
    path = None if spec.source == MEMORY or isinstance(spec.source, dict) else local_path(spec.source)
    if spec.splits and (path is None or path.is_file()):
        raise DataError(
            "data.splits",
            "this source names its splits itself",
            "`splits:` is for folders and the Hub; write  data: {source: {train: FILE, validation: FILE}}",
        )
    opens = dict[str, list[Callable[[], Part]]]()  # by split
    names: Collection[str] = opens  # of the splits at the source
    files = dict[str, list[Path]]()
    if spec.source == MEMORY:
        stored = spec.model_copy(update={"format": "parquet"})  # whose locations are `train, row 12`
        for split, file in stored_files(spec).items():
            opens[split] = [partial(_file_part, file, stored, split)]
    elif path is None:
        files = _named_files(spec)
    elif (path / "qrels").is_dir():
        beir = read_beir(path, spec.encoding, spec.splits)
        for split in beir.qrels:
            opens[split] = [partial(_beir_part, beir, split, f"{path}, {split}")]
    elif tables := _data_set(spec, path):
        names = tables
        for split, name in match_splits(tables, spec).items():
            opens[split] = [partial(_table_part, tables[name], f"{spec.source}, {name}", wanted)]
    elif folders := texts_at(path, spec):
        names = folders
        for split, name in match_splits(folders, spec).items():
            opens[split] = [partial(_texts_part, folders[name], f"{path}, {name}", spec)]
    else:
        files = files_at(path, spec)
    for split, of_split in files.items():
        opens[split] = [partial(_file_part, file, spec, str(file)) for file in of_split]
    for split in ("validation", "test"):
        if getattr(spec, split) is not None and split in opens:
            raise DataError(
                f"data.{split}",
                f"the source has a {split} split of its own",
                f"remove `{split}:`, or name only train, e.g.  data: {{source: {{train: FILE}}}}",
            )
    missing = [split for split in splits or () if split not in opens]
    if missing:
        what = f"no {' and no '.join(missing)} split; available: {', '.join(names) or 'none'}"
        hold = f"hold rows of train out:  data: {{{missing[0]}: 0.1}}"
        add = f"Add it:  data: {{source: {{{missing[0]}: FILE}}}}"
        raise DataError(str(spec.source), what, f"{add}, or {hold}" if "train" in opens else add)
    parts = dict[str, list[Part]]()
    for split in SPLITS:
        if split in opens and (splits is None or split in splits):
            parts[split] = [open_part() for open_part in opens[split]]
    return parts


def _data_set(spec: DataSpec, path: Path) -> Mapping[str, Dataset]:
    """The splits of a data set that was saved here, or is on the Hub; none where files are here."""
    if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return saved_tables(path)
    if path.exists() or _parallel_files(path, spec):
        return {}
    source = str(spec.source)
    like_a_file = by_suffix(suffix_of(path)) or path.suffix in COMPRESSIONS
    if like_a_file or source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source:
        raise DataError(source, f"no such file or folder (looked from {Path.cwd()})", "Check the path.")
    return hub_tables(spec)


def texts_at(folder: Path, spec: DataSpec) -> dict[str, Texts]:
    """The texts of a folder by split and label; empty where it has files of splits, or something else."""
    names = {*SPLITS, *VALIDATION, *(spec.splits or {}).values()}
    plain = folder.is_dir() and names.isdisjoint(_by_name(folder, spec))
    return text_folders(folder, names) if plain else {}


def _texts_part(texts: Texts, name: str, spec: DataSpec) -> Part:
    folders = {file.parents[1] for files in texts.values() for file in files[:1]}
    out = [f"{folder / other}" for folder in folders for other in UNLABELLED if (folder / other).is_dir()]
    findings = [note(f"{name}: left out, without labels: {listed(out)}")] if out else []
    return Part(name, f"{name}, text ", ["id", "text", "label"], text_rows(texts, spec), {}, findings)


def _beir_part(beir: Beir, split: str, name: str) -> Part:
    """The judged pairs of a split and, except for train, the other documents with an empty query."""
    rows = pairs(beir, split)
    judged = {row["document_id"] for row in rows}
    empty = {"query_id": "", "query": "", "grade": 0}
    for other, text in beir.corpus.items() if split != "train" else ():
        if other not in judged:
            rows.append({**empty, "document_id": other, "document": text})
    return Part(name, f"{name}, pair ", list(rows[0]), enumerate(rows, 1), {}, beir.findings)


def samples_folder() -> Path:
    """Where the packaged samples are, which a recipe reads as `sample:NAME`.

    >>> sorted(path.name for path in (bertkit.samples_folder() / "sentiment").glob("*.jsonl"))
    ['test.jsonl', 'train.jsonl', 'validation.jsonl']
    """
    return Path(str(files("bertkit").joinpath("samples")))


def _named_files(spec: DataSpec) -> dict[str, list[Path]]:
    source: Any = spec.source
    problems = Problems()
    paths = dict[str, list[Path]]()
    for split, names in source.items():
        paths[split] = [Path(name).expanduser() for name in ([names] if isinstance(names, str) else names)]
        if split not in SPLITS:
            hint = "; did you mean validation?" if split in VALIDATION else ""
            problems.add("data.source", f"no split {split!r}{hint}", f"Splits are {', '.join(SPLITS)}.")
    for path in chain.from_iterable(paths.values()):
        if not path.is_file() and not _parallel_files(path, spec):
            what = "is a pipe, and would be read twice" if path.exists() else "no such file"
            if path.is_dir():
                what = "is a folder; a file is needed here"
            problems.add(str(path), f"{what} (looked from {Path.cwd()})", "Check the path.")
    problems.raise_if_any()
    return paths


def local_path(source: str) -> Path:
    """Where a source would be on this machine. Raises DataError for an unknown sample."""
    if not source.startswith(SAMPLE):
        return Path(source).expanduser()
    root = samples_folder()
    name = source.removeprefix(SAMPLE)
    samples = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(("_", ".")))
    if name not in samples:
        what = f"no such sample{did_you_mean(name, samples)}"
        raise DataError(source, what, f"samples: {', '.join(samples)}")
    return root / name


def files_at(folder: Path, spec: DataSpec) -> dict[str, list[Path]]:
    """The files of a folder by split: train.csv, dev.jsonl.gz, shards as train-00000-of-00002.parquet; or of
    data/.

    Of parallel texts, train.en and train.de, what their names begin with. A file is train.
    """
    if not folder.is_dir():
        return {"train": [folder]}
    by_name = _by_name(folder, spec)
    wanted = {*SPLITS, *VALIDATION, *(spec.splits or {}).values()}
    if wanted.isdisjoint(by_name) and (folder / "data").is_dir():
        by_name = _by_name(folder / "data", spec)
    matched = {split: by_name[name] for split, name in match_splits(by_name, spec).items()}
    problems = Problems()
    for split, paths in matched.items():
        if len(paths) > 1 and not all("-of-" in p.name for p in paths):
            fix = f"name the one that is meant:  data: {{source: {{{split}: {paths[0]}}}}}"
            problems.add(str(folder), f"two files for {split}: {', '.join(p.name for p in paths)}", fix)
        elif (shard := _SHARD.search(uncompressed(paths[0]).stem)) and int(shard[1]) != len(paths):
            what = f"{len(paths)} files for {split}, of {int(shard[1])} shards"
            problems.add(str(folder), what, "Complete them, or name the files in data.source.")
    problems.raise_if_any()
    if not matched:
        content = ", ".join(sorted(p.name for p in folder.iterdir())[:20]) or "nothing"
        raise DataError(
            folder,
            f"no file of a split, such as train.csv; the folder holds: {content}",
            "name the files:  data: {source: {train: FILE}}; of texts by label, put .txt files into a "
            "folder for each label",
        )
    return matched


def _by_name(folder: Path, spec: DataSpec) -> dict[str, list[Path]]:
    """Name without suffix and number of the shard -> the files of a folder whose format is known."""
    by_name = dict[str, list[Path]]()
    beside = defaultdict[str, list[str]](list)
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        plain = uncompressed(path)
        suffix = suffix_of(path)
        readers = by_suffix(suffix)
        if suffix in mapped_columns(spec) and not readers:
            by_name[plain.stem] = [plain.with_suffix("")]
        elif spec.format or readers:
            by_name.setdefault(_SHARD.sub("", plain.stem), []).append(path)
            beside[plain.stem] += [more for reader in readers for more in reader.beside]
    for name, paths in by_name.items():
        by_name[name] = [path for path in paths if suffix_of(path) not in beside[name]]
    return by_name


def _file_part(path: Path, spec: DataSpec, name: str) -> Part:
    problems = Problems(name)
    reader = None
    if files := {} if path.is_file() else _parallel_files(path, spec):
        rows = _parallel_rows(files, spec)
        prefix = f"{name}.{{{','.join(files)}}}:"
    else:
        reader = reader_of(path, spec)
        rows = read_rows(path, spec, problems)
        prefix = reader.prefix(name)
    first = next(rows)
    rows = chain([first], rows)
    names = problems.class_names
    findings = problems.findings
    keys = partial(_all_keys, path, spec, prefix, findings) if reader and reader.columns == "any" else None
    return Part(name, prefix, list(first[1]), rows, names, findings, {}, spec.fingerprint or "", keys)


def _all_keys(path: Path, spec: DataSpec, prefix: str, findings: list[Finding]) -> Collection[str]:
    """The keys of all objects of a file. findings: gets those that the first one lacks."""
    first = dict[str, int]()
    for number, row in read_rows(path, spec):
        for key in row.keys() - first.keys():
            first[key] = number
    begin = min(first.values(), default=0)
    late = [f"`{key}`, first in {prefix}{number}" for key, number in first.items() if number > begin]
    if late:
        findings.append(
            note(f"{prefix}{begin} lacks {listed(sorted(late))}; rows without it have no value for it")
        )
    return first


def _parallel_files(stem: Path, spec: DataSpec) -> dict[str, Path]:
    """Column, such as en -> NAME.en or NAME.en.gz: the files of the columns that `data.columns` maps; or
    empty.

    Raises DataError where only some of them exist.
    """
    columns = sorted(mapped_columns(spec))
    files = {column: packed(Path(f"{stem}.{column}")) for column in columns}
    sides = {column: file for column, file in files.items() if file.is_file()}
    if missing := sides and [f"{stem}.{column}" for column in columns if column not in sides]:
        raise DataError(
            next(iter(sides.values())),
            f"no {' and no '.join(missing)}, plain or as {' or '.join(COMPRESSIONS)}, to go with it",
            "Correct data.columns, or add the file.",
        )
    return sides


def _parallel_rows(files: Mapping[str, Path], spec: DataSpec) -> NumberedRows:
    """Each line of all files as (number, {column: text}).

    Raises DataError with what `read_rows` finds wrong in any of the files, or where one has fewer lines than
    another.
    """
    lines = spec.model_copy(update={"format": "lines"})
    last = dict.fromkeys(files, 0)
    problems = Problems()
    for rows in zip_longest(*(rows_or_problems(file, lines, problems) for file in files.values())):
        cells = {column: row for column, row in zip(files, rows, strict=True) if row}
        last.update({column: number for column, (number, _) in cells.items()})
        if len(cells) == len(files):
            yield max(last.values()), {column: row["text"] for column, (_, row) in cells.items()}
    problems.raise_if_any()
    longest = max(last.values())
    for column in (column for column in files if last[column] < longest):
        what = f"the file ends here, but another one has {longest:,} lines"
        problems.add(
            f"{files[column]}:{last[column]}", what, "A line and its translation must have the same number."
        )
    problems.raise_if_any()


def _table_part(rows: Dataset, name: str, wanted: Collection[str] | None) -> Part:
    columns = list(rows.column_names)
    prefix = f"{name}, row "
    fingerprint = rows._fingerprint  # of all columns
    if not len(rows):
        raise DataError(name, "is empty: it has no rows", "Name a split that has rows.")
    rows = rows.select_columns([c for c in columns if wanted is None or c in wanted]).with_format(None)
    names = class_names(rows.features)
    dicts = (
        dict(zip(b, row, strict=True)) for b in rows.iter(AT_A_TIME) for row in zip(*b.values(), strict=True)
    )
    return Part(name, prefix, columns, named_rows(dicts, names, prefix), names, fingerprint=fingerprint)
