"""Values of canonical columns: what files and callers give, as the one type that each kind of column
holds.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from bertkit.data.origin import Origin
from bertkit.data.problems import Problems, WrongColumn, WrongType, each_row
from bertkit.data.schema import Column, Mapped, Schema, cell, columns_of, given_name
from bertkit.data.table import Table
from bertkit.errors import DataError
from bertkit.text import Json, Record, short_repr

# of no width: soft hyphen, joiners, marks of direction, byte order mark
_INVISIBLE = re.compile(r"[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
_LIST_AS_TEXT = re.compile(r"""\s*\[\s*(['"\d].*)?\]\s*""", re.DOTALL)  # as pandas and json write it
_DECIMAL = re.compile(r"\s*[+-]?\d+(\.\d+)?\s*")
_WHOLE = re.compile(r"-?\d+\.0")
_EXPONENT = re.compile(r"-?\d(\.\d+)?[eE]\+\d+")  # how a spreadsheet writes a long number
_AS_TEXT = "keep it as text, e.g. pandas.read_csv(FILE, dtype={NAME: str})"
MARKS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_EXACT = 2**53  # beyond it, floats are not all whole numbers


def convert(values: Sequence[Any], name: str, column: Column, origin: Origin) -> list[Any]:
    """The values of a canonical column as what it holds: str, list of str, or float; spans stay as they are.

    name: of the column, for messages. A missing target is None; missing text becomes "".
    Raises DataError with the rows.
    """
    read = _READ[column.holds]
    if column.verbatim:
        read = partial(_label, verbatim=True)
    elif column.holds == "label":
        _refuse_fractions(values, name, origin)
        values = without_decimals(values)
    return list(each_row(read, origin.__getitem__, values, prefix=f"`{name}` "))


def read_inputs(
    rows: Sequence[Any], schema: Schema, inputs: Sequence[frozenset[str]], mapped: Mapped, start: int = 0
) -> dict[str, list[Any]]:
    """Rows that a caller gives, each a text or a mapping -> their input and context columns, by canonical
    name.

    inputs: alternatives, such as `schema.inputs`; the first row decides which one all rows have, preferably
    the one that is mapped.
    mapped: canonical column -> column of the rows; the canonical name is understood as well.
    start: rows that came before, for messages.
    Raises DataError with the rows that lack a column or its value, or hold something else.
    """
    numbered = [(f"row {n}", {"text": r} if isinstance(r, str) else r) for n, r in enumerate(rows, start + 1)]
    problems = Problems()
    expected = "a text, or columns such as" if any("text" in names for names in inputs) else "columns such as"
    expected += f" {{{', '.join(f'{name!r}: …' for name in sorted(inputs[0]))}}}"
    for where, row in numbered:
        if not isinstance(row, Mapping):
            problems.add(where, f"expected {expected}, found {short_repr(row)}", "Give texts or dicts.")
    problems.raise_if_any()
    where, first = numbered[0]
    stated = frozenset().union(*inputs) & mapped.keys()  # as in `choose_columns`
    ordered = sorted(inputs, key=stated.__ne__)
    chosen = next((names for names in ordered if has_columns(first, names, mapped)), None)
    if chosen is None:
        needed = " or ".join(", ".join(sorted(names)) for names in inputs)
        raise DataError(
            where,
            f"no {needed} in this row; it has {', '.join(map(str, first)) or 'nothing'}",
            "Rename your column, or name it in `columns`.",
        )
    context = {name for name in schema.context if has_columns(first, [name], mapped)}
    columns: dict[str, list[Any]] = {name: [] for name in schema.columns if name in chosen | context}
    for where, row in numbered:
        for name, values in columns.items():
            if name in chosen and not has_columns(row, [name], mapped):
                what = f"no {name} in this row; it has {', '.join(map(str, row)) or 'nothing'}"
                problems.add(where, what, kind=f"no {name}")
                continue
            cell = given_cell(row, name, mapped)
            column = schema.columns[name]
            theirs = given_name(name, mapped)
            theirs = theirs if theirs in row else name
            if is_missing(cell) and column.holds != "name":
                what = f"`{theirs}` is missing"
                fix = "Fill it in, or leave the row out."
                problems.add(where, what, fix, kind=what)
                continue
            try:
                values.append(_READ[column.holds](cell))
                if column.located:
                    refuse_pairs([cell] if isinstance(cell, str) else cell)
            except ValueError as error:
                problems.add_error(where, error, f"`{theirs}` ")
    problems.raise_if_any()
    return columns


def without_nan(row: Record) -> Json:
    """The row with None for every missing value: JSON and csv have no NaN."""
    return {name: None if is_missing(value) else value for name, value in row.items()}


def has_columns(row: Record, names: Iterable[str], mapped: Mapped) -> bool:
    """Whether a caller's row has these canonical columns, under their names or as mapped."""
    return all(name in row or row.keys() >= {*columns_of(mapped.get(name, name))} for name in names)


def given_cell(row: Record, name: str, mapped: Mapped) -> Any:
    """A caller's value for a canonical column: from the mapped columns if all are there, else from its own
    name.
    """
    source = mapped.get(name, name)
    return cell(row, source if row.keys() >= {*columns_of(source)} else name)


def replace_surrogates(text: str) -> str:
    """The text with lone surrogates, which no encoding can hold, as U+FFFD, and with pairs of them as one
    character.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def refuse_pairs(texts: Iterable[str]) -> None:
    """Raises ValueError where `replace_surrogates` makes one character of two, and so would move offsets."""
    for text in texts:
        if len(replace_surrogates(text)) != len(text):
            what = f"holds a character as a pair of surrogates, which shifts offsets, in {short_repr(text)}"
            fix = "send it as UTF-8, in Python text.encode('utf-16', 'surrogatepass').decode('utf-16')"
            raise ValueError(f"{what}; {fix}")


def is_missing(value: Any) -> bool:
    """Whether this is None, NaN, or what pandas has for a missing value: NA or NaT."""
    return value is None or (not isinstance(value, str | list | int) and str(value) in ("nan", "<NA>", "NaT"))


def is_blank(value: object) -> bool:
    """Whether a cell is missing, or holds nothing but whitespace."""
    return value is None or (isinstance(value, str) and not value.strip())


def folded(text: str) -> str:
    """What texts that differ only in case, whitespace, Unicode's compatibility forms or invisible characters
    share.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text))
    return " ".join(text.casefold().split())


def text_keys(*columns: Iterable[str | Sequence[str] | None], unordered: int = 0) -> Iterator[int | None]:
    """For each row a number that rows with the same texts share, by `folded`; None for a row without any
    text.

    unordered: of so many of the first columns, the order of the texts does not count.
    """
    for texts in zip(*columns, strict=True):
        normal = [folded(text if isinstance(text, str) else " ".join(text or ())) for text in texts]
        normal[:unordered] = sorted(normal[:unordered])
        yield hash(tuple(normal)) if any(normal) else None


def without_decimals(values: Sequence[Any]) -> Sequence[Any]:
    """Without the .0 of whole numbers in text, which pandas writes of a column with a missing value.

    If all values that are not blank are such numbers; otherwise as they are.
    """
    if not all(is_blank(value) or (isinstance(value, str) and _WHOLE.fullmatch(value)) for value in values):
        return values
    return [value and value.removesuffix(".0") for value in values]


def _refuse_fractions(values: Sequence[Any], name: str, origin: Origin) -> None:
    texts = all(is_blank(v) or (isinstance(v, str) and _DECIMAL.fullmatch(v)) for v in values)
    for index, value in enumerate(values):
        # NaN is how pandas writes a missing value
        number = isinstance(value, float) or (texts and not is_blank(value))
        if number and not (math.isnan(float(value)) or float(value).is_integer()):
            raise DataError(
                origin[index],
                f"`{name}` holds numbers such as {short_repr(value)}",
                "for regression map the column as the score, e.g.  data: {columns: {score: …}}",
            )


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise WrongType(value, "text")
    return replace_surrogates(value)


def _label(value: Any, *, verbatim: bool = False) -> str | None:
    text = isinstance(value, str) and not verbatim
    if isinstance(value, list) or (text and ("|" in value or value.startswith(("['", '["')))):
        raise WrongColumn(f"holds several labels, {short_repr(value)}; map the column as `labels`")
    if is_blank(value):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _value(value)
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise WrongType(value, "a class (text, whole number, true or false)")
    return value


def split_labels(value: Any, separator: str) -> Any:
    """Several labels in one text as a list; every other value, and a list written as text, as it is."""
    if not isinstance(value, str) or _LIST_AS_TEXT.fullmatch(value):
        return value
    return [part.strip() for part in value.split(separator) if part.strip()]


def marked(rows: Sequence[Record], names: Iterable[str], origin: Origin) -> list[list[str] | None]:
    """For each row the names of the columns that hold 1, sorted; None where one of them is empty.

    Raises DataError with the rows in which a column holds something other than 0, 1, true and false.
    """
    names = sorted({*names})
    problems = Problems()
    labels = list[list[str] | None]()
    for index, row in enumerate(rows):
        marks = dict[str, bool]()
        for name in names:
            value = row.get(name)
            if is_blank(value) or is_missing(value):
                continue
            text = str(value).strip().casefold()
            marks[name] = MARKS.get(text, False)
            if text not in MARKS:
                what = f"`{name}` holds {short_repr(value)}, where 0 or 1 is expected"
                fix = "Write 0 or 1, also as false or true. Texts and lists of labels are mapped by one name."
                problems.add(origin[index], what, fix, kind=name)
        labels.append([name for name in names if marks[name]] if len(marks) == len(names) else None)
    problems.raise_if_any()
    return labels


def _labels(value: Any) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str):
        what = f"holds a list written as text, {short_repr(value)}"
        raise WrongColumn(f"{what}; write a|b, or JSON lists in jsonl, or give lists from Python")
    if not isinstance(value, list):
        raise WrongType(value, "a list of labels, or text such as a|b,")
    if any(isinstance(part, float | list) for part in value):
        raise WrongColumn(f"holds {short_repr(value)}; write the names of the labels, not a vector")
    if any(isinstance(part, str) and "|" in part for part in value):
        raise WrongColumn(
            f"holds {short_repr(value)}; a label cannot contain |, which separates labels in csv output: "
            "write another sign"
        )
    names = [name for name in map(_label, value) if name is not None]
    if len(names) != len(value):
        raise ValueError(f"holds {short_repr(value)}, with an empty label")
    if len(set(names)) != len(names):
        raise ValueError(
            f"holds {short_repr(value)}, with a label twice; write the names of the labels, not 0 and 1"
        )
    return names


def _number(value: Any) -> float | None:
    if is_blank(value):
        return None
    try:
        if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
            raise ValueError
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        if isinstance(value, str) and _COMMA.fullmatch(value):
            fix = 'give the frame pandas.read_csv(FILE, sep=";", decimal=","), or thousands="," for thousands'
            raise WrongColumn(f"holds {short_repr(value)}, with a decimal comma; {fix}") from None
        raise WrongType(value, "a number") from None
    if not math.isfinite(number):
        raise ValueError(f"holds {short_repr(value)}, which is not a finite number")
    return number


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        fix = "write JSON lists in jsonl" if _LIST_AS_TEXT.fullmatch(value) else "map the column as `text`"
        what = f"holds text, {short_repr(value)}, where a list of words is expected; {fix}"
        raise WrongColumn(what)
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise WrongType(value, "a list of words")
    return [replace_surrogates(word) for word in value]


def _tags(value: Any) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(tag, str) or type(tag) is int for tag in value):
        raise WrongType(value, "a list of tags, such as B-LOC or NOUN,")
    return [str(tag) for tag in value]


def _numbers(value: Any) -> list[float | None] | None:
    numbers = list(map(_number, value)) if isinstance(value, list) else None
    if value is not None and (numbers is None or None in numbers):
        raise WrongType(value, "a list of numbers, one per word,")
    return numbers


def refuse_unequal(schema: Schema, table: Table) -> None:
    """Raises DataError with the rows that do not have a number for each of their words."""

    def read(words: Sequence[str], numbers: Sequence[float] | None) -> None:
        if numbers is not None and len(numbers) != len(words):
            raise ValueError(f"{len(words)} words, but {len(numbers)} numbers")

    of_kind = {schema.columns[name].holds: values for name, values in table.values.items()}
    if of_kind.keys() >= {"words", "numbers"}:
        list(table.each_row(read, of_kind["words"], of_kind["numbers"]))


def _starts(value: Any) -> list[int] | None:
    if is_blank(value):
        return None
    values = value if isinstance(value, list) else [value]
    with suppress(ValueError):
        starts = [
            int(number) for number in map(_number, values) if number is not None and number.is_integer()
        ]
        if len(starts) == len(values):
            return starts
    raise WrongType(value, "a whole number, or a list of them,")


def _value(value: Any) -> str | None:
    if isinstance(value, Collection) and not isinstance(value, str):
        raise WrongType(value, "a name (text or a number)")
    if is_missing(value):
        return None
    if not isinstance(value, float) or not value.is_integer():
        return str(value)
    if abs(value) >= _EXACT:
        what = "pandas makes floats of whole numbers where one is missing, and rounds those beyond 2**53"
        raise ValueError(f"holds {value!r}, a rounded number: {what}; {_AS_TEXT}")
    return str(int(value))


def read_name(value: Any) -> str | None:
    """What something is called, as text; None: it is missing. Raises ValueError for a fraction or a rounded
    number.
    """
    name = _value(value)
    if name and isinstance(value, float) and not value.is_integer():
        raise ValueError(f"holds {value!r}, a fraction, which names nothing; {_AS_TEXT}")
    if name and _EXPONENT.fullmatch(name):
        raise ValueError(f"holds {short_repr(name)}, a number that a spreadsheet has rounded; {_AS_TEXT}")
    return name


_READ: dict[str, Callable[[Any], Any]] = {
    "text": _text,
    "label": _label,
    "labels": _labels,
    "number": _number,
    "words": _words,
    "tags": _tags,
    "word_labels": _tags,
    "numbers": _numbers,
    "spans": lambda value: None if is_blank(value) else value,
    "name": read_name,
    "value": _value,
    "answers": lambda value: value,
    "starts": _starts,
}
