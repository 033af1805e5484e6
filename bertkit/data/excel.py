"""Tables of .xlsx files, by openpyxl: a sheet as texts, and rows as a sheet."""

from __future__ import annotations

import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, time
from itertools import islice
from typing import IO, Any
from xml.etree.ElementTree import ParseError

from bertkit.data.arrow import MAX_WHOLE, seekable
from bertkit.data.delimited import Records, named_records
from bertkit.data.disk_list import AT_A_TIME
from bertkit.data.problems import Problems, setting
from bertkit.data.reader import OpenFile, Reader
from bertkit.data.schema import Finding
from bertkit.data.table import NumberedRows
from bertkit.errors import DataError, extras_required, translated
from bertkit.text import listed
from bertkit.validation import did_you_mean

MAX_ROWS = 1_048_576  # of a sheet
MAX_CELL = 32_767  # characters
_DAMAGE = (  # what openpyxl and zipfile raise for a file that is damaged or encrypted
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    ParseError,
    struct.error,
    zlib.error,
)
_AS_CSV = "save it as csv, which is streamed"


def sheet_records(
    stream: IO[bytes], problems: Problems, *, sheet: str | None = None, width: int = 0
) -> Records:
    """The rows of a sheet as (number in the sheet, texts); blank rows are skipped.

    sheet: its name; None: the first one, and a note in `problems.findings` if there are more. Cells are texts
    whatever their type, as values, not as they are displayed: 2024-03-05, 3, 1.5, true; the last values of
    formulas. Rows are as wide as the first, or as `width`, or as their own last text. They are streamed; the
    texts that the file shares between cells are held in memory.
    Raises DataError: no such sheet, not an .xlsx file, or one of over MAX_WHOLE bytes when unpacked;
    UserError without openpyxl.
    """
    with extras_required():
        import openpyxl

    name = problems.name
    stream = seekable(stream, name)
    locked = "not an .xlsx workbook, or password-protected"
    fix = "Save it as .xlsx without a password, or as csv."
    with (
        translated(_DAMAGE, DataError, name, "cannot be read as xlsx", "save it again, or as csv"),
        translated(zipfile.BadZipFile, DataError, name, locked, fix),
    ):
        with zipfile.ZipFile(stream) as archive:
            if sum(part.file_size for part in archive.infolist()) > MAX_WHOLE:
                raise DataError(name, f"holds more than {MAX_WHOLE:,} bytes when unpacked", _AS_CSV)
        with _quiet():
            book = openpyxl.load_workbook(stream, read_only=True, data_only=True, keep_links=False)
        chosen = _chosen(book.worksheets, sheet, problems)
        chosen.reset_dimensions()  # some programs write wrong ones
        rows = enumerate(chosen.iter_rows(values_only=True), 1)
        for block in iter(_quiet()(lambda: list(islice(rows, AT_A_TIME))), []):
            for number, cells in block:
                if number > MAX_ROWS:
                    raise DataError(name, f"numbers its rows beyond {MAX_ROWS:,}", _AS_CSV)
                texts = [_text(cell) for cell in cells]
                while texts and not texts[-1]:
                    texts.pop()
                if texts:
                    width = width or len(texts)
                    yield number, texts + [""] * (width - len(texts))


def write_sheet(file: IO[bytes], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows as the one sheet of a workbook, texts as texts even where they look like formulas.

    Raises DataError, with the row, for what a sheet cannot hold; UserError without openpyxl.
    """
    with extras_required():
        from openpyxl import Workbook
        from openpyxl.cell import WriteOnlyCell
        from openpyxl.utils.exceptions import IllegalCharacterError

    book = Workbook(write_only=True)
    sheet = book.create_sheet()
    fix = "Write .csv or .jsonl."
    try:
        for number, values in enumerate(rows, 1):
            where = f"xlsx output, row {number}"
            if number > MAX_ROWS or any(isinstance(value, str) and len(value) > MAX_CELL for value in values):
                raise DataError(
                    where, f"a sheet holds {MAX_ROWS:,} rows, a cell {MAX_CELL:,} characters", fix
                )
            try:
                cells = [WriteOnlyCell(sheet, _zoneless(value)) for value in values]
            except IllegalCharacterError as error:
                raise DataError(where, "a cell cannot hold control characters", fix) from error
            for cell, value in zip(cells, values, strict=True):
                cell.data_type = "s" if isinstance(value, str) else cell.data_type
            sheet.append(cells)
    finally:
        sheet.close()
    book.save(file)


def _zoneless(value: Any) -> Any:
    """The value, or as text if a sheet cannot hold it: a time with a zone, a number of over 15 digits."""
    zoned = isinstance(value, datetime | time) and value.tzinfo
    return str(value) if zoned or (isinstance(value, int) and abs(value) >= 10**15) else value


def _chosen(sheets: Sequence[Any], wanted: str | None, problems: Problems) -> Any:
    names = [sheet.title for sheet in sheets]
    if wanted is None:
        if len(names) > 1:
            what = f"the first of {len(names)} sheets is read, {names[0]!r}; others: {listed(names[1:])}"
            problems.findings.append(Finding("note", f"{problems.name}: {what}", setting("sheet", "NAME")))
        return sheets[0]
    if wanted not in names:
        raise DataError(
            problems.name,
            f"has no sheet {wanted!r}{did_you_mean(wanted, names)}",
            f"data.sheet is one of: {', '.join(names)}",
        )
    return sheets[names.index(wanted)]


@contextmanager
def _quiet() -> Iterator[None]:
    """openpyxl warns of what does not concern values: styles, validation, pictures."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="openpyxl")
        yield


def _text(cell: Any) -> str:
    match cell:
        case None | "#N/A" | "#VALUE!" | "#REF!" | "#DIV/0!" | "#NAME?" | "#NUM!" | "#NULL!":
            return ""
        case bool():
            return str(cell).lower()
        case float():
            if not cell.is_integer():
                return repr(cell)
            return str(int(cell)) if abs(cell) < 2**53 else f"{cell:.16e}"  # rounded, as an id must not be
        case datetime():
            return cell.isoformat(" ").removesuffix(" 00:00:00")
        case time():
            return cell.isoformat()
    return str(cell).replace("_x000D_", "\r")  # as Excel writes a carriage return


def _rows(file: OpenFile) -> NumberedRows:
    width = len(file.spec.header) if isinstance(file.spec.header, list) else 0
    records = sheet_records(file.stream, file.problems, sheet=file.spec.sheet, width=width)
    return named_records(records, file.spec, file.problems, XLSX.prefix(file.problems.name))


XLSX = Reader("xlsx", _rows, ("xlsx",), "row", "header")
