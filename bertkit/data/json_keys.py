"""JSON whose objects have each key once: which of two values is meant, nobody knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.decoder import JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from bertkit.text import short_repr


class RepeatedKey(json.JSONDecodeError):
    """An object that has a key twice; the position is that of the object."""


class _Twice(Exception):
    """A key that an object has twice."""


def unique_json(text: str) -> Any:
    """The value. Raises RepeatedKey, and ValueError or RecursionError as `json.loads`."""
    try:
        return _DECODER.decode(text)
    except _Twice:
        return _Located().decode(text)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen = set[str]()
        raise _Twice(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


class _Located(json.JSONDecoder):
    """It knows where an object begins, and is slow."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_unique)
        self.parse_object = self._object
        self.scan_once = py_make_scanner(self)

    def _object(self, start: tuple[str, int], *others: Any) -> Any:
        try:
            return JSONObject(start, *others)
        except _Twice as error:
            what = f"an object has the key {short_repr(str(error))} twice"
            raise RepeatedKey(what, start[0], start[1] - 1) from None
