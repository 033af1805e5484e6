"""Rows from parquet files, data sets that were saved and those of the Hub, with the names of ClassLabel
numbers.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertkit.data.disk_list import AT_A_TIME
from bertkit.data.problems import Problems, each_row
from bertkit.data.reader import Reader
from bertkit.data.table import NumberedRows, Row
from bertkit.errors import DataError, Problem, translated
from bertkit.sections import DataSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset, Features

MAX_WHOLE = 500_000_000  # bytes of a file that must be held in memory
JSON = "arrow.json"  # the type of a column of several types; before pyarrow 19 only its metadata say so
_SECRET = re.compile(r"hf_\w+|(?<=://)[^/@\s]+@|\?\S+")


def parquet_rows(stream: IO[bytes], problems: Problems) -> NumberedRows:
    """Stream a file as (row counted from 1, {column: value}); DataError where it cannot be read.

    problems: gets class names that `datasets` wrote.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = problems.name
    with (
        translated((pa.ArrowException, UnicodeDecodeError), DataError, name, "cannot be read as parquet"),
        pq.ParquetFile(seekable(stream, name)) as file,
    ):
        rows = (row for batch in file.iter_batches(AT_A_TIME) for row in plain_rows(batch))
        if b"huggingface" in (file.schema_arrow.metadata or {}):
            from datasets import Features

            with translated(
                (ValueError, KeyError, TypeError), DataError, name, "its class names cannot be read"
            ):
                problems.class_names = class_names(Features.from_arrow_schema(file.schema_arrow))
        yield from named_rows(rows, problems.class_names, f"{name}, row ")


PARQUET = Reader(
    "parquet", lambda file: parquet_rows(file.stream, file.problems), ("parquet",), "row", "fixed"
)


def plain_rows(batch: pa.RecordBatch) -> list[Row]:
    """The rows as Python values; those that Arrow holds as JSON, because their types differ, are decoded."""
    rows: list[Row] = batch.to_pylist()
    mixed = [column for column in batch.schema if JSON in f"{column.type} {column.metadata}"]
    for row in rows if mixed else ():
        row.update(
            {column.name: _decoded(row[column.name], column.type, column.metadata) for column in mixed}
        )
    return rows


def _decoded(value: Any, kind: pa.DataType, metadata: Any = None) -> Any:
    import pyarrow as pa

    if isinstance(value, list):
        return [_decoded(item, kind.value_type) for item in value]
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {column.name: _decoded(value[column.name], column.type) for column in kind}
    return json.loads(value) if isinstance(value, str) and JSON in f"{kind} {metadata}" else value


def class_names(features: Features) -> dict[str, list[str]]:
    """Column -> the names of its class numbers (ClassLabel, or a list of it), in order."""
    from datasets import ClassLabel, LargeList, List

    inner = {c: f.feature if isinstance(f, List | LargeList) else f for c, f in features.items()}
    return {column: list(f.names) for column, f in inner.items() if isinstance(f, ClassLabel) and f.names}


def named_rows(rows: Iterable[Row], names: Mapping[str, Sequence[str]], prefix: str) -> NumberedRows:
    """Number rows from 1 and replace ClassLabel numbers by names; -1 (unlabelled) becomes None.

    Raises DataError for numbers without a name, located at `prefix` + number.
    """

    def named(row: Row) -> Row:
        faults = list[str]()
        for column, class_names in names.items():
            value = row[column]
            ids = value if isinstance(value, list) else [value]
            if any(i is not None and not -1 <= i < len(class_names) for i in ids):
                faults.append(f"`{column}` holds {value}, but has only {len(class_names)} names")
                continue
            values = [None if i is None or i == -1 else class_names[i] for i in ids]
            row[column] = values if isinstance(value, list) else values[0]
        if faults:
            raise ValueError(*faults)
        return row

    return enumerate(each_row(named, lambda index: f"{prefix}{index + 1}", rows) if names else rows, 1)


def seekable(stream: IO[bytes], name: str) -> IO[bytes]:
    """The stream, or a copy of it in memory where it cannot be read from its end."""
    if isinstance(stream, io.BufferedReader) and stream.seekable():
        return stream
    return io.BytesIO(read_all(stream, name, "Give the file without further compression: it is streamed."))


def read_all(stream: IO[bytes], name: str, instead: str) -> bytes:
    """All bytes of a stream. Raises DataError where they would fill the memory; instead: the fix."""
    data = stream.read(MAX_WHOLE + 1)
    if len(data) > MAX_WHOLE:
        raise DataError(name, f"holds more than {MAX_WHOLE:,} bytes, and must be read into memory", instead)
    return data


def saved_tables(folder: Path) -> Mapping[str, Dataset]:
    """What `save_to_disk` of datasets wrote: its splits; a data set alone is train."""
    from datasets import DatasetDict, load_from_disk
    from pyarrow import ArrowException, OSFile, ipc

    damage = (OSError, ValueError, LookupError, TypeError, ArrowException)
    with translated(damage, DataError, folder, "not a data set as datasets saves it", "Save it again."):
        checked = {file.resolve() for file in folder.rglob("*.arrow")}
        # datasets maps files, and Arrow follows an offset of a damaged one out of its memory
        for path in checked:
            with OSFile(str(path)) as file:
                for batch in ipc.open_stream(file):
                    batch.validate(full=True)
        saved = load_from_disk(str(folder))
        splits = saved if isinstance(saved, DatasetDict) else {"train": saved}
        caches = chain.from_iterable(rows.cache_files for rows in splits.values())
        named = {Path(cache["filename"]).resolve() for cache in caches}
        if outside := named - checked:
            raise ValueError(f"names files outside the folder: {', '.join(sorted(map(str, outside)))}")
    return splits


def hub_tables(spec: DataSpec) -> Mapping[str, Dataset]:
    """The splits of a data set of the Hub, or of its cache. Raises DataError where it cannot be loaded."""
    import datasets
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported lazily

    try:
        validate_repo_id(str(spec.source))
        return dict(datasets.load_dataset(str(spec.source), name=spec.subset, revision=spec.revision))
    # The bases of HfHubHTTPError are the HTTP client's error and OSError.
    except (*HfHubHTTPError.__bases__, ValueError, RuntimeError, DatasetsError) as error:
        raise DataError(_hub_problem(spec, error)) from None


def _hub_problem(spec: DataSpec, error: Exception) -> Problem:
    """What went wrong with a Hub data set, in one message without tokens and signed addresses."""
    from datasets.exceptions import DatasetGenerationError
    from huggingface_hub.errors import GatedRepoError, HFValidationError

    why = error.__cause__ if type(error) is DatasetGenerationError else None  # it says nothing itself
    text = " ".join(_SECRET.sub("…", str(why or error)).split())[:400]
    cause: BaseException | None = error
    while cause and not isinstance(cause, GatedRepoError):
        cause = cause.__cause__
    what = f"the Hub data set cannot be loaded: {text}"
    fix = ""
    if cause or "is a gated dataset" in text:
        what = "the data set is gated"
        fix = f"accept its terms at https://huggingface.co/datasets/{spec.source} and log in: hf auth login"
    elif isinstance(error, HFValidationError):
        what = "neither a file or folder here, nor a name that the Hub allows"
    elif isinstance(error, FileNotFoundError) and not re.search("^Revision|data files", text):
        what = f"neither a file or folder here, nor a data set on the Hub: {text}"
        fix = f"files are looked for from {Path.cwd()}; a private data set needs: hf auth login"
    elif isinstance(error, ConnectionError):
        what = f"neither a file or folder here, nor in the cache, and the Hub cannot be reached: {text}"
        fix = "load it once with a network, or name local files under data.source"
    elif "scripts are no longer supported" in text:
        what = "the data set is made by a script, which is code and is not run"
        fix = "try its parquet copy:  data: {revision: refs/convert/parquet}"
    elif "onfig" in text and "data files" not in text:
        fix = "pick one:  data: {subset: NAME}"
    return Problem(str(spec.source), what, fix)
