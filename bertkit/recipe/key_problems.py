"""Gathers what is wrong in a recipe as messages: where, what, and what to write instead."""

from __future__ import annotations

import math
from operator import itemgetter
from pathlib import Path
from typing import Any

from bertkit.errors import Problem, RecipeError
from bertkit.recipe.yaml import MAX_BYTES, Document, parse
from bertkit.text import Json, KeyPath, counted, dotted, short_repr
from bertkit.validation import KeyProblem, describe

MAX_PROBLEMS = 50


class Report:
    """Collects what is wrong with one recipe, and knows the line or the override of every key."""

    def __init__(self, name: str, home: Path = Path()) -> None:
        """name: goes before line numbers; "" for data that come from no file. home: of relative paths in the
        file.
        """
        self.name = name
        self.home = home
        self.document = parse("")
        self._places: dict[KeyPath, int | str] = {(): 1}
        self._spoilt: set[KeyPath] = set()
        self._problems: list[tuple[float, Problem]] = []

    def read(self, document: Document, path: KeyPath = (), override: str = "") -> None:
        """Take over the lines and the faults of a parsed file, or of the value of an override of `path`."""
        if override:
            self._move(path, override)
        else:
            self._places.update(document.lines)
        self._spoilt.update((*path, *key) for key in document.spoilt)
        for line, what, fix in document.faults:
            self.add_at(override or line, what, fix)

    def from_python(self, *paths: KeyPath) -> None:
        """The values at these key paths are not those of the file, but of Python: they have no line."""
        for path in paths:
            self._move(path, 0)

    def read_file(self, file: Path, kind: str, fix: str) -> Json:
        """The keys of a YAML file. kind: of the file, for messages; fix: for an empty one. Raises
        RecipeError.
        """
        try:
            with open(file, "rb") as stream:
                self.document = document = parse(stream.read(MAX_BYTES + 1))
        except (OSError, ValueError) as error:  # ValueError: a null character in the name
            what = str(error.strerror) if isinstance(error, OSError) else "not a valid file name"
            raise RecipeError(self.name, f"cannot be read: {what}", "Check the path.") from error
        self.read(document)
        data: Any = document.data
        if isinstance(data, dict):
            return data
        if not document.faults:
            what = f"the {kind} is empty" if data is None else f"expected a mapping, found {describe(data)}"
            self.add(KeyProblem((), what, fix))
        self.raise_if_any()
        return {}

    def add(self, *problems: KeyProblem) -> None:
        """Report these, except about values that could not be read, which is reported already."""
        for path, what, fix in problems:
            if not any(path[:depth] in self._spoilt for depth in range(len(path) + 1)):
                self.add_at(self._place(path), f"{dotted(path)}: {what}" if path else what, fix)

    def add_at(self, place: int | str, what: str, fix: str = "") -> None:
        """Report what is wrong with a line, or with an override."""
        if isinstance(place, int):
            self._problems.append(
                (place, Problem(f"{self.name}:{place}" if self.name and place else "", what, fix))
            )
        else:
            self._problems.append((math.inf, Problem(f"override {short_repr(place)[1:-1]}", what, fix)))

    def folder(self, path: KeyPath) -> Path:
        """The folder that a relative path at this key starts from: the file's, or of other values the working
        one.
        """
        place = self._place(path)
        return self.home if isinstance(place, int) and place else Path()

    def raise_if_any(self) -> None:
        """Raises RecipeError with every problem, in the order of the file, overrides last."""
        if self._problems:
            ordered = [problem for _, problem in sorted(self._problems, key=itemgetter(0))]
            rest = len(ordered) - MAX_PROBLEMS
            more = (
                [Problem(self.name, f"and {counted(rest, 'more problem')}", "Fix these first.")]
                if rest > 0
                else []
            )
            raise RecipeError(ordered[:MAX_PROBLEMS] + more)

    def _move(self, path: KeyPath, place: int | str) -> None:
        others = {key: before for key, before in self._places.items() if key[: len(path)] != path}
        self._places = {**others, path: place}

    def _place(self, path: KeyPath) -> int | str:
        # the place of a missing key is that of its section
        return next(self._places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self._places)
