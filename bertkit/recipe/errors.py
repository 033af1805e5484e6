"""Gathers what is wrong in a recipe as messages: where, what, and what to write instead."""

from __future__ import annotations

import math

from bertkit.errors import Problem, RecipeError
from bertkit.recipe.yaml import Document
from bertkit.text import KeyPath, dotted, short_repr
from bertkit.validation import KeyProblem

MAX_PROBLEMS = 50


class Report:
    """Collects what is wrong with one recipe, and knows the line or the override of every key."""

    def __init__(self, name: str) -> None:
        """name: goes before line numbers; "" for data that come from no file."""
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
        """The key was deleted by an override, which is its location if it is missed."""
        self._places[path] = override

    def add(self, *problems: KeyProblem) -> None:
        """Report these, except about values that could not be read, which is reported already."""
        for path, what, fix in problems:
            if not any(path[:depth] in self._spoilt for depth in range(len(path) + 1)):
                self._add(self._place(path), f"{dotted(path)}: {what}" if path else what, fix)

    def add_override(self, override: str, what: str, fix: str = "") -> None:
        """Report an override that could not be applied at all."""
        self._add(override, what, fix)

    def is_overridden(self, path: KeyPath) -> bool:
        """Whether the value came from the command line, not from the file."""
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
            self._problems.append((math.inf, Problem(f"override {short_repr(place)[1:-1]}", what, fix)))
