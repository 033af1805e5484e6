"""Checks that several tasks make of their rows and outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bertkit.errors import ModelError, Problem


def require_finite(finite: Iterable[Any], unit: str = "rows") -> None:
    """finite: for each row, whether the model's outputs are finite. Raises ModelError where some are not."""
    flags = list(finite)
    bad = sum(not each for each in flags)
    if bad:
        what = f"its outputs are not finite for {bad} of {len(flags)} {unit}"
        raise ModelError(Problem("the model", what, "Its weights are damaged, or its training diverged."))
