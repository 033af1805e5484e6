"""Columns: which column of the source is which canonical one, and what its values mean."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertkit.data.table import Origin, Problems, shown
from bertkit.errors import DataError, Problem
from bertkit.validation import did_you_mean, nearest

if TYPE_CHECKING:
    from bertkit.data.schema import Column
    from bertkit.sections import DataSpec

_DECIMAL = re.compile(r"\s*[+-]?\d+(\.\d+)?\s*")
_IDS = ("id", "idx", "index", "")  # the last things to suggest
_PLAIN = re.compile(r"[^\W\d][\w.-]*")  # needs no quotes in YAML
_WHOLE = re.compile(r"-?\d+")


class _WrongColumn(ValueError):
    """The value shows that the whole column was mapped to the wrong name: one message, not one per row."""


def choose_columns(
    found: Sequence[str],
    spec: DataSpec,
    columns: Mapping[str, Column],
    *,
    inputs: Sequence[Sequence[str]],
    targets: Sequence[str],
    where: str,
    needs_target: bool,
) -> dict[str, str]:
    """Canonical column -> column of the source, for one source whose columns are `found`.

    What the recipe maps is taken before what is there under its own name. Of `inputs`, alternatives such as
    (("text",), ("text_a", "text_b")), one must be there in full; of `targets`, one, if `needs_target`.
    Raises DataError, with the line that mends it: columns that are not there, or several that could be meant.
    """
    _check_mapping(found, spec, columns, targets if not needs_target else (), where)
    alternatives = [*inputs, *([name] for name in targets)]
    grouped = {name for alternative in alternatives for name in alternative}
    chosen = [name for name in columns if name not in grouped and spec.columns.get(name, name) in found]
    for group, needed in ((inputs, True), ([[name] for name in targets], needs_target)):
        names = {name for alternative in group for name in alternative}
        mapped = names & spec.columns.keys()
        there = [a for a in group if mapped <= set(a) and all(spec.columns.get(n, n) in found for n in a)]
        if mapped and not any(mapped <= set(a) for a in group):
            what = f"{_either([sorted(mapped)])} do not go together; map {_either(group)}"
            raise DataError(Problem("data.columns", what))
        if len(there) > 1:
            raise DataError(_several(there, where))
        if there:
            chosen += there[0]
        elif needed and group:
            raise DataError(_missing(group, found, spec, columns, where))
        elif group:  # objects of json lines may have it further down
            chosen += [name for a in group for name in a if not mapped or name in mapped]
    return {name: spec.columns.get(name, name) for name in columns if name in chosen}


def convert(values: Sequence[Any], name: str, column: Column, origin: Origin) -> list[Any]:
    """The values of a canonical column as what it holds: str, list of str, or float; spans stay as they are.

    None stays where a target is missing; missing text becomes "". Raises DataError with the rows.
    """
    if column.holds == "label":
        _refuse_fractions(values, name, origin)
    read = _READ[column.holds]
    problems, converted = Problems(), []
    for index, value in enumerate(values):
        try:
            converted.append(read(value))
        except _WrongColumn as error:
            raise DataError(Problem(origin[index], f"`{name}` {error}")) from None
        except ValueError as error:
            problems.add(origin[index], f"`{name}` {error}")
    problems.finish()
    return converted


def label_names(values: Iterable[str], class_names: Sequence[str] = ()) -> list[str]:
    """Label names in a stable order, for id2label: the data set's own, else by number, else by alphabet.

    values: labels, repeated or not.  class_names: `Data.class_names`; all of them are kept.
    """
    found = set(values)
    if class_names:
        return [*class_names, *sorted(found.difference(class_names))]
    if all(_WHOLE.fullmatch(name) for name in found):
        return sorted(found, key=lambda name: (int(name), name))
    return sorted(found)


def _check_mapping(
    found: Sequence[str], spec: DataSpec, columns: Mapping[str, Column], optional: Collection[str], where: str
) -> None:
    problems = Problems()
    for ours, theirs in spec.columns.items():
        if ours not in columns:
            what = f"the task has no column `{ours}`{did_you_mean(ours, columns)}"
            problems.add("data.columns", what, f"columns of the task: {', '.join(columns)}")
        elif theirs not in found and ours not in optional:
            what = f"no column `{theirs}`, which `data.columns` names for `{ours}`; found: {', '.join(found)}"
            problems.add(where, what, _fix(ours, nearest(theirs, found) or nearest(ours, found)))
    problems.finish()


def _several(there: Sequence[Sequence[str]], where: str) -> Problem:
    fix = "map the one that is meant, e.g.  data: {columns: {" + ", ".join(f"{n}: {n}" for n in there[0]) + "}}"
    return Problem(where, f"has {_either(there)}: only one of these can be used", fix)


def _either(alternatives: Iterable[Sequence[str]]) -> str:
    return ", or ".join(" and ".join(f"`{name}`" for name in names) for names in alternatives)


def _missing(
    group: Sequence[Sequence[str]],
    found: Sequence[str],
    spec: DataSpec,
    columns: Mapping[str, Column],
    where: str,
) -> Problem:
    what = f"needs a column {_either(group)}; found: {', '.join(map(shown, found))}"
    if len(found) == 1 and (others := [d for d in "\t;,|" if d in found[0]]):
        fix = f"the fields may be separated by it:  data: {{delimiter: {json.dumps(others[0])}}}"
        return Problem(where, what, fix)
    free = [name for name in found if name not in spec.columns.values() and name not in columns]
    free.sort(key=lambda name: name.lower() in _IDS)
    near = [(n, match) for alternative in group for n in alternative if (match := nearest(n, free))]
    closest = max(group, key=lambda names: sum(spec.columns.get(n, n) in found for n in names))
    gaps = [n for n in closest if spec.columns.get(n, n) not in found]
    ours, theirs = near[0] if near else (gaps[0], free[0] if free else "")
    return Problem(where, what, _fix(ours, theirs) if theirs else "")


def _fix(ours: str, theirs: str) -> str:
    written = theirs if _PLAIN.fullmatch(theirs) else json.dumps(theirs, ensure_ascii=False)
    return f"say which column it is, e.g.  data: {{columns: {{{ours}: {written if theirs else '…'}}}}}"


def _refuse_fractions(values: Sequence[Any], name: str, origin: Origin) -> None:
    texts = all(isinstance(v, str) and _DECIMAL.fullmatch(v) for v in values)
    for index, value in enumerate(values):
        if (texts or isinstance(value, float)) and _has_fraction(float(value)):
            what = f"`{name}` holds numbers such as {shown(value)}"
            fix = "for regression map the column as the score, e.g.  data: {columns: {score: …}}"
            raise DataError(Problem(origin[index], what, fix))


def _has_fraction(value: float) -> bool:
    return not math.isnan(value) and not value.is_integer()  # NaN is how pandas writes a missing value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"holds {shown(value)}, where text is expected")
    return value


def _label(value: Any) -> str | None:
    if isinstance(value, list) or (isinstance(value, str) and "|" in value):
        raise _WrongColumn(f"holds several labels, {shown(value)}; map the column as `labels`")
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):  # fractions were refused for the whole column
        return None if math.isnan(value) else str(int(value))
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"holds {shown(value)}, where a class (text, whole number, true or false) is expected")
    return value


def _labels(value: Any) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = [part.strip() for part in value.split("|") if part.strip()]
    if not isinstance(value, list):
        raise ValueError(f"holds {shown(value)}, where a list of labels, or text such as a|b, is expected")
    if any(isinstance(part, float | list) for part in value):
        raise _WrongColumn(f"holds {shown(value)}; write the names of the labels, not a vector")
    names = [name for part in value if (name := _label(part)) is not None]
    if len(names) != len(value):
        raise ValueError(f"holds {shown(value)}, with an empty label")
    if len(set(names)) != len(names):
        raise ValueError(f"holds {shown(value)}, with a label twice; write the names of the labels, not 0 and 1")
    return names


def _number(value: Any) -> float | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
            raise ValueError
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"holds {shown(value)}, where a number is expected") from None
    if not math.isfinite(number):
        raise ValueError(f"holds {shown(value)}, which is not a finite number")
    return number


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        raise _WrongColumn(f"holds text, {shown(value)}, where a list of words is expected; map the column as `text`")
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError(f"holds {shown(value)}, where a list of words is expected")
    return value


def _tags(value: Any) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise ValueError(f"holds {shown(value)}, where a list of tags, written out such as B-LOC, is expected")
    return value


def _name(value: Any) -> str | None:
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"holds {shown(value)}, where a name (text or a number) is expected")
    return None if value is None else str(value)


def _as_it_is(value: Any) -> Any:
    return value


_READ: dict[str, Callable[[Any], Any]] = {
    "text": _text,
    "label": _label,
    "labels": _labels,
    "number": _number,
    "words": _words,
    "tags": _tags,
    "spans": _as_it_is,
    "name": _name,
    "answers": _as_it_is,
}
