"""Validation errors of pydantic as sentences, with "did you mean"."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bertkit.text import KeyPath, short_repr


class KeyProblem(NamedTuple):
    """Something wrong with the value at a key path."""

    path: KeyPath
    what: str
    fix: str = ""


def nearest(name: str, known: Iterable[str]) -> str:
    """The most similar of the known names, upper and lower case alike; "" where none is close."""
    by_lower = {each.lower().strip(): each for each in known}
    close = get_close_matches(name.lower(), by_lower, n=1) if len(name) <= 80 else []
    return by_lower[close[0]] if close else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no name is close."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def unknown_key(path: KeyPath, known: Iterable[str], homes: Mapping[str, str]) -> KeyProblem:
    """A key that its section does not have. homes: key -> the section it belongs to, for misplaced keys."""
    names, key = sorted(known), str(path[-1])
    if key in homes:
        return KeyProblem(path, "unknown key", f"it belongs under `{homes[key]}:`")
    meant = did_you_mean(key, names)
    return KeyProblem(
        path, f"unknown key{meant}", "" if meant or len(names) > 25 else f"known here: {', '.join(names)}"
    )


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


def describe(value: Any) -> str:
    """What stands there, in words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"text {short_repr(value)}"
    if isinstance(value, int | float):
        return f"the number {short_repr(value)}"
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
) -> list[KeyProblem]:
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
            found.append(KeyProblem(path, "missing", "write it; it has no default"))
        elif any(detail["type"] == "extra_forbidden" for detail in details):
            section = sections.get(str(path[0])) if len(path) > 1 else sections[""]
            found.append(unknown_key(path, section.model_fields if section else (), homes))
        else:
            found.append(_explain_value(path, details, _at(data, path)))
    return found


def _explain_value(path: KeyPath, details: list[ErrorDetails], value: Any) -> KeyProblem:
    bounds = [_BOUNDS[d["type"]].format(**d.get("ctx", {})) for d in details if d["type"] in _BOUNDS]
    if bounds:
        return KeyProblem(path, f"{bounds[0]}, found {short_repr(value)}")
    choices = [name for d in details for name in _choices(d)]
    if any(d["loc"][-1] == "[key]" for d in details):
        return unknown_key(path, choices, {})
    wanted = [_WANTED[d["type"]] for d in details if d["type"] in _WANTED]
    if not wanted and not choices:
        return KeyProblem(path, details[0]["msg"])
    names = [*map(repr, choices), *dict.fromkeys(wanted)]
    listed = " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    meant = did_you_mean(value, choices) if isinstance(value, str) else ""
    return KeyProblem(path, f"expected {listed}, found {describe(value)}{meant}", spelling_hint(value, wanted))


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
