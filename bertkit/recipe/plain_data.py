"""Plain data of a recipe: their texts, of which some are paths, and what is left of them without what is
wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from bertkit.data.reader import COMPRESSIONS
from bertkit.data.readers import by_suffix, suffix_of
from bertkit.sections import MEMORY
from bertkit.text import Json, KeyPath, dotted, escape_controls
from bertkit.validation import KeyProblem, did_you_mean

# keys whose texts may be paths
_PATHS = """
    data.source data.folder data.exclude data.relabel model.name model.tokenizer distillation.teacher
""".split()


def texts_in(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Every text in plain data, and its key path."""
    if isinstance(value, str):
        yield path, value
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        yield from texts_in(inner, (*path, key))


def resolve_paths(
    data: Json, folder: Callable[[KeyPath], Path], *, must_exist: bool = True
) -> Iterator[KeyProblem]:
    """Make the paths in `data` absolute, in place, and yield those that do not exist.

    folder: key path -> the folder that a relative path there is relative to.
    """
    root: Any = data
    columns = [text for _, text in texts_in((data.get("data") or {}).get("columns"))]
    for path, text in texts_in(data):
        if dotted(path[:2]) not in _PATHS:
            continue
        is_data = path[0] == "data"
        is_file = len(path) > 2 or path[1] in ("exclude", "relabel")
        if path == ("data", "source") and (text == MEMORY or text.startswith("sample:")):
            continue
        absolute = os.path.abspath(os.path.join(folder(path), os.path.expanduser(text)))
        # files of parallel texts: source `train`, columns `en` and `de` -> train.en, train.de.gz
        parallel = [f"{absolute}.{column}{suffix}" for column in columns for suffix in ("", *COMPRESSIONS)]
        exists = any(map(os.path.exists, [absolute, *parallel])) if is_data else os.path.isdir(absolute)
        is_path = text in (".", "..") or text.startswith(("./", "../", "/", "~"))
        is_path |= is_data and (is_file or bool(by_suffix(suffix_of(text))))
        if text == absolute and exists:  # a RowsFolder stays one
            continue
        if exists or (is_path and not must_exist):
            reduce(getitem, path[:-1], root)[path[-1]] = absolute
        elif is_path:
            kind = "file or folder" if is_data else "folder"
            yield KeyProblem(
                path,
                f"no {kind} '{escape_controls(absolute)}'{_similar(absolute)}",
                "Check the path: a relative one begins at the recipe's folder.",
            )


def _similar(missing: str) -> str:
    """The most similar name in the folder, as did_you_mean has it."""
    folder, name = os.path.split(missing)
    try:
        return did_you_mean(name, os.listdir(folder)[:1000])
    except (OSError, ValueError):
        return ""


def without(data: Any, bad: set[KeyPath], path: KeyPath = ()) -> Any:
    """A copy of plain data without the keys at `bad`, and without lists that have a bad item."""
    if isinstance(data, dict):
        good = {key: value for key, value in data.items() if not _is_bad((*path, key), value, bad)}
        return {key: without(value, bad, (*path, key)) for key, value in good.items()}
    return [without(item, bad, (*path, n)) for n, item in enumerate(data)] if isinstance(data, list) else data


def _is_bad(path: KeyPath, value: Any, bad: set[KeyPath]) -> bool:
    return path in bad or (isinstance(value, list) and any((*path, n) in bad for n in range(len(value))))
