"""`key.sub=value` and `~key.sub` from the command line, applied to a recipe's plain data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bertkit.recipe.key_problems import Report
from bertkit.recipe.yaml import MAX_DEPTH, parse
from bertkit.text import dotted
from bertkit.validation import describe, did_you_mean


def apply_overrides(data: dict[str, Any], overrides: Sequence[str], report: Report) -> None:
    """Change `data` in place, from left to right. What cannot be applied is reported."""
    for override in overrides:
        if refused := _apply(data, override, report):
            report.add_at(override, *refused)


def _apply(data: dict[str, Any], override: str, report: Report) -> tuple[str, str] | None:
    """Apply one override; returns what is wrong with it, and a fix, if it cannot be applied."""
    left, equals, value = override.partition("=")
    delete = left.strip().startswith("~")
    path = tuple(word.strip() for word in left.strip().removeprefix("~").split("."))
    if re.search(r"[\ud800-\udfff]", override):
        return "not UTF-8 text", ""
    if not all(path):
        return "no key", "write key=value, key.sub=value or ~key"
    if len(path) > MAX_DEPTH:
        return f"more than {MAX_DEPTH} levels deep", ""
    if delete and equals:
        return "a deletion has no value", f"write ~{dotted(path)}"
    if not delete and not equals:
        return "no `=`", f"write {dotted(path)}=value, or ~{dotted(path)} to delete it"
    for depth, key in enumerate(path[:-1], start=1):
        here = dotted(path[:depth])
        if delete and key not in data:
            return f"{here}: not in the recipe{did_you_mean(key, data)}", ""
        if not delete and data.get(key) is None:
            data[key] = {}
            report.read(parse(""), path[:depth], override)
        if not isinstance(data[key], dict):
            what = f"{here} is {describe(data[key])}, so it has no `{path[depth]}`"
            return what, "" if delete else f"override all of it: {here}=VALUE"
        data = data[key]
    if delete and path[-1] not in data:
        return f"{dotted(path)}: not in the recipe{did_you_mean(path[-1], data)}", ""
    document = parse("" if delete else value)
    if delete:
        del data[path[-1]]
    else:
        data[path[-1]] = document.data
    report.read(document, path, override)
    return None
