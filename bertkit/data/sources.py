"""Where rows come from: samples, files, folders, the Hub, and the files of rows that were given from Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.arrow import class_names, named_rows
from bertkit.data.beir import Beir, pairs, read_beir
from bertkit.data.disk_list import AT_A_TIME
from bertkit.data.parallel import parallel_files, parallel_rows, stem_of
from bertkit.data.python_rows import stored_files
from bertkit.data.readers import COMPRESSIONS, FORMATS, format_of, read_rows, row_prefix, suffix_of
from bertkit.data.schema import Finding, Source
from bertkit.data.splits import SPLITS, VALIDATION, match_splits
from bertkit.data.table import Problems
from bertkit.errors import DataError, Problem, translated
from bertkit.sections import MEMORY, DataSpec
from bertkit.validation import did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset

SAMPLE = "sample:"
_SHARD = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]+)?$")
_SECRET = re.compile(r"hf_\w+|(?<=://)[^/@\s]+@|\?\S+")


@dataclass(frozen=True)
class Part:
    """One file, or one split of a Hub data set: some rows of a split, not yet read."""

    name: str
    prefix: str  # before the number of a row in messages
    columns: list[str]  # of json lines: those of the first row
    rows: Iterator[tuple[int, dict[str, Any]]]
    class_names: dict[str, list[str]]
    findings: Sequence[Finding] = ()  # of this part or the whole source; complete once all rows are read
    mapping: Mapping[str, Source] = field(default_factory=dict)  # canonical column -> column, once columns are chosen
    fingerprint: str = ""  # of a Hub data set, or of rows from Python; "" for a file of the user
    objects: bool = False  # rows are objects of json, each with keys of its own


def open_source(spec: DataSpec, splits: Collection[str] | None, wanted: Collection[str]) -> dict[str, list[Part]]:
    """Split -> its parts, opened and their first rows read, in the order train, validation, test.

    splits: those to open; None: all that the source has.  wanted: columns to read, where columns can be read
    separately. Raises DataError: a source that does not exist, is ambiguous, or lacks one of `splits`.
    """
    in_memory = spec.source == MEMORY
    path = None if in_memory or isinstance(spec.source, dict) else local_path(spec.source)
    if spec.splits and (path is None or path.is_file()):
        fix = "`splits:` is for folders and the Hub; write  data: {source: {train: FILE, validation: FILE}}"
        raise DataError(Problem("data.splits", "this source names its splits itself", fix))
    folder = path if path is not None and (path / "qrels").is_dir() else None  # of judgements, as BEIR lays them out
    saved = path is not None and any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
    files = None if in_memory or saved or folder is not None else find_files(spec)
    hub: Mapping[str, Dataset] = {}
    opens: dict[str, Callable[[], list[Part]]]
    if in_memory:
        stored = spec.model_copy(update={"format": "parquet"})  # whose locations are `train, row 12`
        opens = {split: partial(_file_parts, [file], stored, split) for split, file in stored_files(spec).items()}
    elif folder is not None:
        beir = read_beir(folder)
        opens = {split: partial(_beir_parts, beir, split, f"{folder}, {split}") for split in beir.qrels}
    elif files is not None:
        opens = {split: partial(_file_parts, paths, spec) for split, paths in files.items()}
    else:
        hub = _load_saved(path) if path and saved else _load_hub(spec)
        names = match_splits(hub, spec)
        opens = {s: partial(_hub_parts, hub[name], f"{spec.source}, {name}", wanted) for s, name in names.items()}
    if spec.validation is not None and "validation" in opens and folder is None:
        fix = "remove `validation:`, or name only train, e.g.  data: {source: {train: FILE}}"
        raise DataError(Problem("data.validation", "the source has a validation split of its own", fix))
    missing = [split for split in splits or () if split not in opens]
    if missing:
        what = f"no {' and no '.join(missing)} split; available: {', '.join(hub or opens) or 'none'}"
        raise DataError(Problem(str(spec.source), what))
    return {split: opens[split]() for split in SPLITS if split in opens and (splits is None or split in splits)}


def _beir_parts(beir: Beir, split: str, name: str) -> list[Part]:
    """The judged pairs of a split and, except for train, the other documents with an empty query."""
    rows = pairs(beir, split)
    judged = {row["document_id"] for row in rows}
    others = {} if split == "train" else {name: text for name, text in beir.corpus.items() if name not in judged}
    empty = {"query_id": "", "query": "", "grade": 0}
    rows += [{**empty, "document_id": other, "document": text} for other, text in others.items()]
    return [Part(name, f"{name}, pair ", list(rows[0]), enumerate(rows, 1), {}, beir.findings)]


def find_files(spec: DataSpec) -> dict[str, list[Path]] | None:
    """Split -> files of a local source; None for a Hub data set. Raises DataError with all that is wrong."""
    if isinstance(spec.source, dict):
        return _named_files(spec.source, spec)
    path = local_path(spec.source)
    if path.is_dir():
        return _folder(path, spec)
    if path.exists() or parallel_files(path, spec):
        return {"train": [path]}
    like_a_file = suffix_of(path) in FORMATS or path.suffix in COMPRESSIONS
    if like_a_file or spec.source.startswith((".", "/", "~")) or spec.source.count("/") > 1 or "\\" in spec.source:
        raise DataError(Problem(spec.source, f"no such file or folder (looked from {Path.cwd()})"))
    return None


def samples_folder() -> Path:
    """Where the packaged samples are."""
    return Path(str(files("bertkit").joinpath("samples")))


def _named_files(source: Mapping[str, str | list[str]], spec: DataSpec) -> dict[str, list[Path]]:
    problems = Problems()
    for split in source:
        if split not in SPLITS:
            hint = "; did you mean validation?" if split in VALIDATION else ""
            problems.add("data.source", f"no split {split!r}{hint}; splits: {', '.join(SPLITS)}")
    files = {k: [Path(p).expanduser() for p in ([v] if isinstance(v, str) else v)] for k, v in source.items()}
    for paths in files.values():
        for path in paths:
            if not path.is_file() and not parallel_files(path, spec):
                what = "is a folder; a file is needed here" if path.is_dir() else "no such file"
                what = "is not a regular file" if path.exists() and not path.is_dir() else what
                problems.add(str(path), f"{what} (looked from {Path.cwd()})")
    problems.raise_if_any()
    return files


def local_path(source: str) -> Path:
    """Where a source would be on this machine. Raises DataError for an unknown sample."""
    if not source.startswith(SAMPLE):
        return Path(source).expanduser()
    root, name = samples_folder(), source.removeprefix(SAMPLE)
    known = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(("_", ".")))
    if name not in known:
        what = f"no such sample{did_you_mean(name, known)}"
        raise DataError(Problem(source, what, f"samples: {', '.join(known)}"))
    return root / name


def _folder(folder: Path, spec: DataSpec) -> dict[str, list[Path]]:
    """The files of a folder by split: train.csv, dev.jsonl.gz, shards as train-00000-of-00002.parquet; or of data/.

    Of parallel texts, train.en and train.de, what their names begin with.
    """
    by_name, wanted = _by_name(folder, spec), {*SPLITS, *VALIDATION, *(spec.splits or {}).values()}
    if wanted.isdisjoint(by_name) and (folder / "data").is_dir():
        by_name = _by_name(folder / "data", spec)
    matched = {split: by_name[name] for split, name in match_splits(by_name, spec).items()}
    problems = Problems()
    for split, paths in matched.items():
        if len(paths) > 1 and not all("-of-" in p.name for p in paths):
            fix = f"name the one that is meant:  data: {{source: {{{split}: {paths[0]}}}}}"
            problems.add(str(folder), f"two files for {split}: {', '.join(p.name for p in paths)}", fix)
    problems.raise_if_any()
    if not matched:
        there = ", ".join(sorted(p.name for p in folder.iterdir())[:20]) or "nothing"
        what = f"no file of a split, such as train.csv; the folder holds: {there}"
        raise DataError(Problem(str(folder), what, "name the files:  data: {source: {train: FILE}}"))
    return matched


def _by_name(folder: Path, spec: DataSpec) -> dict[str, list[Path]]:
    """Name without suffix and number of the shard -> the files of a folder whose format is known."""
    by_name: dict[str, list[Path]] = {}
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        if stem := stem_of(path, spec):
            by_name[stem.name] = [stem]
        elif spec.format or suffix_of(path) in FORMATS:
            plain = path.with_suffix("") if path.suffix in COMPRESSIONS else path
            by_name.setdefault(_SHARD.sub("", plain.stem), []).append(path)
    return by_name


def _load_saved(folder: Path) -> Mapping[str, Dataset]:
    """What `save_to_disk` of datasets wrote: its splits; a data set alone is train."""
    from datasets import DatasetDict, load_from_disk
    from pyarrow import ArrowException, OSFile, ipc

    damage = (OSError, ValueError, LookupError, TypeError, ArrowException)
    with translated(damage, DataError, str(folder), "not a data set as datasets saves it", "Save it again."):
        checked = {file.resolve() for file in folder.rglob("*.arrow")}
        for path in checked:  # datasets maps files, and Arrow follows an offset of a damaged one out of its memory
            with OSFile(str(path)) as file:
                for batch in ipc.open_stream(file):
                    batch.validate(full=True)
        saved = load_from_disk(str(folder))
        splits = saved if isinstance(saved, DatasetDict) else {"train": saved}
        named = {Path(each["filename"]).resolve() for rows in splits.values() for each in rows.cache_files}
        if outside := named - checked:
            raise ValueError(f"names files outside the folder: {', '.join(sorted(map(str, outside)))}")
    return splits


def _file_parts(paths: Sequence[Path], spec: DataSpec, name: str = "") -> list[Part]:
    return [_file_part(path, spec, name or str(path)) for path in paths]


def _file_part(path: Path, spec: DataSpec, name: str) -> Part:
    problems, objects = Problems(name), False
    if files := {} if path.is_file() else parallel_files(path, spec):
        rows, prefix = parallel_rows(files, spec), f"{name}.{{{','.join(files)}}}:"
    else:
        rows, prefix = read_rows(path, spec, problems), row_prefix(name, format_of(path, spec))
        objects = format_of(path, spec) in ("json", "jsonl")
    first = next(rows)
    rows, of_memory = chain([first], rows), spec.fingerprint or ""
    names, found = problems.class_names, problems.findings
    return Part(name, prefix, list(first[1]), rows, names, found, fingerprint=of_memory, objects=objects)


def _hub_parts(rows: Dataset, name: str, wanted: Collection[str]) -> list[Part]:
    columns, prefix, fingerprint = list(rows.column_names), f"{name}, row ", rows._fingerprint
    if not len(rows):
        raise DataError(Problem(name, "holds no rows"))
    rows = rows.select_columns([c for c in columns if c in wanted]).with_format(None)
    names = class_names(rows.features)
    dicts = (dict(zip(b, row, strict=True)) for b in rows.iter(AT_A_TIME) for row in zip(*b.values(), strict=True))
    return [Part(name, prefix, columns, named_rows(dicts, names, prefix), names, fingerprint=fingerprint)]


def _load_hub(spec: DataSpec) -> Mapping[str, Dataset]:
    import datasets
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported lazily

    try:
        validate_repo_id(str(spec.source))
        return dict(datasets.load_dataset(str(spec.source), name=spec.subset, revision=spec.revision))
    except (*HfHubHTTPError.__bases__, ValueError, RuntimeError, DatasetsError) as error:  # the HTTP client's, OSError
        raise DataError(_hub_problem(spec, error)) from None


def _hub_problem(spec: DataSpec, error: Exception) -> Problem:
    """What went wrong with a Hub data set, in one message without tokens and signed addresses."""
    from huggingface_hub.errors import GatedRepoError, HFValidationError

    text = " ".join(_SECRET.sub("…", str(error)).split())[:400]
    cause: BaseException | None = error
    while cause and not isinstance(cause, GatedRepoError):
        cause = cause.__cause__
    what, fix = f"the Hub data set cannot be loaded: {text}", ""
    if cause or "gated" in text:
        what = "the data set is gated"
        fix = f"accept its terms at https://huggingface.co/datasets/{spec.source} and log in: hf auth login"
    elif isinstance(error, HFValidationError):
        what = "neither a file or folder here, nor a name that the Hub allows"
    elif isinstance(error, FileNotFoundError):
        what = f"neither a file or folder here, nor a data set on the Hub: {text}"
        fix = f"files are looked for from {Path.cwd()}; a private data set needs: hf auth login"
    elif isinstance(error, ConnectionError):
        what = f"neither a file or folder here, nor in the cache, and the Hub cannot be reached: {text}"
        fix = "load it once with a network, or name local files under data.source"
    elif "script" in text:
        what = "the data set is made by a script, which is code and is not run"
        fix = "try its parquet copy:  data: {revision: refs/convert/parquet}"
    elif "onfig" in text:
        fix = "pick one:  data: {subset: NAME}"
    return Problem(str(spec.source), what, fix)
