"""What installed packages announce as entry points: a task or a reader, imported when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


def announced(group: str) -> dict[str, str]:
    """Name -> the packages that announce it, with their versions. group: `bertkit.tasks` or
    `bertkit.readers`.
    """
    return {
        name: " and ".join(sorted(map(_package, points)))
        for name, points in _points(group, *sys.path).items()
    }


def load(group: str, name: str, fault: Callable[[Any, str], str]) -> Any:
    """What is announced by this name, or a text that says why it cannot be used.

    fault: of what was imported, and the name, what is wrong with it; empty if nothing is.
    """
    kind = group.rpartition(".")[2].removesuffix("s")
    points = _points(group, *sys.path)[name]
    value = None
    try:
        value = points[0].load()
        why = fault(value, name)
    except Exception as error:  # whatever a module of another package raises
        why = f"{type(error).__name__}: {error}"
    if points[1:]:
        why = f"several packages have a {kind} of this name"
    return f"the {kind} {name!r} of {announced(group)[name]} cannot be used: {why}" if why else value


@cache
def _points(group: str, *path: str) -> dict[str, list[EntryPoint]]:
    """path: `sys.path`, on which packages are found."""
    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        points.setdefault(point.name, []).append(point)
    return points


def forget() -> None:
    """Look for packages again: one may have been installed."""
    _points.cache_clear()


def _package(point: EntryPoint) -> str:
    package: Any = point.dist
    return f"{package.name} {package.version}"
