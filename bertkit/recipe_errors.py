"""From what is wrong in a recipe to what a person reads: where it stands, what it is, what to write instead."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bertkit.errors import Problem, RecipeError
from bertkit.yaml12 import Document, KeyPath, dotted, shown

MAX_PROBLEMS = 50


class Found(NamedTuple):
    """Something wrong with the value at a key path."""

    path: KeyPath
    what: str
    fix: str = ""


class Report:
    """Collects what is wrong with one recipe, and knows the line or the override of every key."""

    def __init__(self, name: str) -> None:
        """name: what stands before line numbers; "" for data that come from no file."""
        self.name = name
        self._places: dict[KeyPath, int | str] = {(): 1}
        self._spoilt: set[KeyPath] = set()
        self._problems: list[tuple[float, Problem]] = []

    def read(self, document: Document, path: KeyPath = (), override: str = "") -> None:
        """Take over the lines and the faults of a parsed file, or of the value of an override of `path`."""
        for key in [key for key in self._places if key[: len(path)] == path != ()]:
            del self._places[key]
        if override:
            self._places[path] = override
        else:
            self._places.update(document.lines)
        self._spoilt.update((*path, *key) for key in document.spoilt)
        for fault in document.faults:
            self._add(override or fault.line, fault.what, fault.fix)

    def delete(self, path: KeyPath, override: str) -> None:
        """The key was deleted by an override, which is to blame where the key is missed."""
        self._places[path] = override

    def add(self, found: Found) -> None:
        """Report it, unless the value could not be read and that is reported already."""
        if not any(found.path[:depth] in self._spoilt for depth in range(len(found.path) + 1)):
            name = f"{dotted(found.path)}: " if found.path else ""
            self._add(self._place(found.path), name + found.what, found.fix)

    def add_override(self, override: str, what: str, fix: str = "") -> None:
        """Report an override that could not be applied at all."""
        self._add(override, what, fix)

    def is_overridden(self, path: KeyPath) -> bool:
        """True if the value came from the command line, not from the file."""
        return isinstance(self._place(path), str)

    def raise_if_any(self) -> None:
        """Raises RecipeError with every problem, in the order of the file, overrides last."""
        if self._problems:
            ordered = [problem for _, problem in sorted(self._problems, key=lambda each: each[0])]
            rest = len(ordered) - MAX_PROBLEMS
            more = [Problem(self.name, f"and {rest} more problems")] if rest > 0 else []
            raise RecipeError(ordered[:MAX_PROBLEMS] + more)

    def _place(self, path: KeyPath) -> int | str:
        # the place of a missing key is that of its section
        return next(self._places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self._places)

    def _add(self, place: int | str, what: str, fix: str) -> None:
        if isinstance(place, int):
            self._problems.append((place, Problem(f"{self.name}:{place}" if self.name else "", what, fix)))
        else:
            self._problems.append((math.inf, Problem(f"override {shown(place)[1:-1]}", what, fix)))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no name is close."""
    close = get_close_matches(name, known, n=1) if len(name) <= 80 else []
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_key(path: KeyPath, known: Iterable[str], homes: Mapping[str, str]) -> Found:
    """A key that its section does not have. homes: key -> the section it belongs to, for misplaced keys."""
    names, key = sorted(known), str(path[-1])
    if key in homes:
        return Found(path, "unknown key", f"it belongs under `{homes[key]}:`")
    meant = did_you_mean(key, names)
    return Found(path, f"unknown key{meant}", "" if meant or len(names) > 25 else f"known here: {', '.join(names)}")


def spelling_hint(value: Any, wanted: Iterable[str]) -> str:
    """What to write where text looks like a number or a yes, or a number should be text."""
    wanted = set(wanted)
    if isinstance(value, str) and wanted & {"a number", "a whole number"}:
        bare = value.strip().replace("_", "")
        try:
            number = float(bare)
        except ValueError:
            return ""
        if math.isfinite(number):
            return f"write {bare} without quotes" if bare == value else f"write {bare}"
    if isinstance(value, str) and "true or false" in wanted:
        if value.lower() in ("yes", "on", "y"):
            return "write true: in YAML 1.2 this word is text"
        if value.lower() in ("no", "off", "n"):
            return "write false: in YAML 1.2 this word is text"
    if isinstance(value, bool | int | float) and "text" in wanted:
        return f'put quotes around it: "{str(value).lower()}"'
    return ""


def found_value(value: Any) -> str:
    """What stands there, in words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"text {shown(value)}"
    if isinstance(value, int | float):
        return f"the number {shown(value)}"
    return "a mapping" if isinstance(value, dict) else "a list"


_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",  # as pydantic says it of a union
    "none_required": "null",
}
_BOUNDS = {
    "greater_than": "must be more than {gt:.12g}",
    "greater_than_equal": "must be at least {ge:.12g}",
    "less_than": "must be less than {lt:.12g}",
    "less_than_equal": "must be at most {le:.12g}",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_too_long": "must be at most {max_length} characters long",
    "finite_number": "must be finite",
}


def explain(
    error: ValidationError, data: Any, sections: Mapping[str, type[BaseModel]], homes: Mapping[str, str]
) -> list[Found]:
    """pydantic's errors about `data` in plain words, one per key path.

    sections: name -> its type, with "" for the recipe itself; both for `did you mean`.
    """
    by_path: dict[KeyPath, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False, include_input=False):
        by_path.setdefault(_key_path(detail["loc"], data), []).append(detail)
    inner = {path[:n] for path in by_path for n in range(len(path))}
    found = []
    for path, details in by_path.items():
        if path in inner:
            # of a choice such as `text or a mapping`, what is wrong inside the mapping says more than `not text`
            continue
        if any(detail["type"] == "missing" for detail in details):
            found.append(Found(path, "missing", "write it; it has no default"))
        elif any(detail["type"] == "extra_forbidden" for detail in details):
            section = sections.get(str(path[0])) if len(path) > 1 else sections[""]
            found.append(unknown_key(path, section.model_fields if section else (), homes))
        else:
            found.append(_explain_value(path, details, _at(data, path)))
    return found


def _explain_value(path: KeyPath, details: list[ErrorDetails], value: Any) -> Found:
    bounds = [_BOUNDS[d["type"]].format(**d.get("ctx", {})) for d in details if d["type"] in _BOUNDS]
    if bounds:
        return Found(path, f"{bounds[0]}, found {shown(value)}")
    choices = [name for d in details for name in _choices(d)]
    if any(d["loc"][-1] == "[key]" for d in details):
        return unknown_key(path, choices, {})
    wanted = [_WANTED[d["type"]] for d in details if d["type"] in _WANTED]
    if not wanted and not choices:
        return Found(path, details[0]["msg"])
    names = [*map(repr, choices), *dict.fromkeys(wanted)]
    listed = " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    meant = did_you_mean(value, choices) if isinstance(value, str) else ""
    return Found(path, f"expected {listed}, found {found_value(value)}{meant}", spelling_hint(value, wanted))


def _choices(detail: ErrorDetails) -> list[str]:
    return re.findall(r"'([^']*)'", detail["ctx"]["expected"]) if detail["type"] == "literal_error" else []


def _key_path(loc: tuple[int | str, ...], data: Any) -> KeyPath:
    """pydantic's location without the names of the types it tried, which stand between the keys."""
    path: list[int | str] = []
    for position, key in enumerate(loc):
        last = position == len(loc) - 1
        if _has(data, key):
            data = data[key]
            path.append(key)
        elif last and isinstance(data, dict) and key not in ("[key]", data.get("name")) and not _is_type_name(key):
            path.append(key)
    return tuple(path)


def _has(data: Any, key: int | str) -> bool:
    return key in data if isinstance(data, dict) else isinstance(data, list) and isinstance(key, int)


def _is_type_name(key: int | str) -> bool:
    return bool(re.match(r"(str|int|float|bool|constrained-\w+)$|(dict|list|literal)\[", str(key)))


def _at(data: Any, path: KeyPath) -> Any:
    for key in path:
        data = data[key]
    return data
