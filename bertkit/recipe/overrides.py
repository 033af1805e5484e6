"""`key.sub=value` and `~key.sub` from the command line, applied to a recipe's plain data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bertkit.recipe.errors import Report
from bertkit.recipe.yaml import MAX_DEPTH, parse
from bertkit.text import dotted
from bertkit.validation import describe, did_you_mean


def apply_overrides(data: dict[str, Any], overrides: Sequence[str], report: Report) -> None:
    """Change `data` in place, from left to right. What cannot be applied is reported."""
    for override in overrides:
        key, equals, value = override.partition("=")
        delete = key.strip().startswith("~")
        path = tuple(word.strip() for word in key.strip().removeprefix("~").split("."))
        if re.search(r"[\ud800-\udfff]", override):
            report.add_override(override, "not UTF-8 text")
        elif not all(path):
            report.add_override(override, "no key", "write key=value, key.sub=value or ~key")
        elif len(path) > MAX_DEPTH:
            report.add_override(override, f"more than {MAX_DEPTH} levels deep")
        elif delete and equals:
            report.add_override(override, "a deletion has no value", f"write ~{dotted(path)}")
        elif delete:
            _delete(data, path, override, report)
        elif not equals:
            report.add_override(override, "no `=`", f"write {dotted(path)}=value, or ~{dotted(path)} to delete it")
        else:
            _set(data, path, value, override, report)


def _set(data: dict[str, Any], path: tuple[str, ...], text: str, override: str, report: Report) -> None:
    document = parse(text)
    for depth, key in enumerate(path[:-1], start=1):
        below = data.get(key)
        if below is None:
            below = data[key] = {}
            report.read(parse(""), path[:depth], override)
        if not isinstance(below, dict):
            here = dotted(path[:depth])
            what = f"{here} is {describe(below)}, so it has no `{path[depth]}`"
            report.add_override(override, what, f"override all of it: {here}=VALUE")
            return
        data = below
    data[path[-1]] = document.data
    report.read(document, path, override)


def _delete(data: dict[str, Any], path: tuple[str, ...], override: str, report: Report) -> None:
    for depth, key in enumerate(path, start=1):
        if key not in data:
            report.add_override(override, f"{dotted(path[:depth])}: not in the recipe{did_you_mean(key, data)}")
            return
        if depth == len(path):
            del data[key]
            report.delete(path, override)
        elif not isinstance(data[key], dict):
            report.add_override(override, f"{dotted(path[:depth])} is {describe(data[key])}, not a mapping")
            return
        else:
            data = data[key]
