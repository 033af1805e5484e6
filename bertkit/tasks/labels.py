"""Label names and their weights, settled from the training rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from bertkit.data.schema import Finding
from bertkit.data.table import numbers
from bertkit.errors import DataError, Problem
from bertkit.text import counted, part_of

if TYPE_CHECKING:
    from datasets import Dataset


def settle_labels(wanted: list[str] | dict[str, str] | None, found: Sequence[str]) -> dict[str, str]:
    """Value in the data -> label name, in the order of the label ids.

    wanted: the recipe's `task.labels`: names in order (the data hold the names, or their indices), or
    {value: name}, or None for what was found. found: the distinct values in the training rows, in order.
    Raises DataError when a value of the data has no name.
    """
    if not found:
        raise DataError(Problem("data", "no row of train has a label"))
    if wanted is None:
        return {value: value for value in found}
    if isinstance(wanted, list) and not set(found) <= set(wanted):
        wanted = {str(index): name for index, name in enumerate(wanted)}
    if isinstance(wanted, list):
        return {name: name for name in wanted}
    unknown = [value for value in found if value not in wanted]
    if unknown:
        what = f"train has labels that task.labels does not name: {', '.join(unknown[:10])}"
        raise DataError(
            Problem("task.labels", what, f"task.labels names {', '.join(wanted)}; add them, or leave it out.")
        )
    return wanted


def settle_weights(
    option: str, wanted: Literal["auto"] | dict[str, float] | None, auto: Mapping[str, float]
) -> dict[str, float] | None:
    """Label name -> weight, for every label; None stays None. Raises DataError on a label that is not there."""
    if wanted is None:
        return None
    if wanted == "auto":
        return dict(auto)
    unknown = [name for name in wanted if name not in auto]
    if unknown:
        what = f"no label {', '.join(map(repr, unknown))}; the labels are {', '.join(auto)}"
        raise DataError(Problem(f"task.{option}", what))
    return {name: wanted.get(name, 1.0) for name in auto}


def length_findings(features: Dataset, split: str, max_length: int, overflow: str) -> Iterator[Finding]:
    """The distribution of lengths in word pieces, and what the limit cuts off."""
    import numpy as np

    _, starts = np.unique(numbers(features, "row"), return_index=True)
    lengths = numbers(features, "length")
    median, high = np.percentile(lengths, [50, 95])
    what = f"{split}: word pieces per window: median {median:.0f}, 95 % within {high:.0f}, at most {lengths.max()}"
    if overflow == "window":
        what += f"; {len(starts):,} rows in {len(lengths):,} windows"
    yield Finding("note", what)
    if "lost" not in features.column_names:  # a task that reads everything
        return
    lost = numbers(features, "lost")[starts]
    cut = int((lost > 0).sum())
    if cut:
        part = part_of(cut, len(starts), "row")
        what = (
            f"{split}: {part} cut at {max_length} word pieces, which leaves {counted(int(lost.sum()), 'piece')} unread"
        )
        yield Finding("warn", what, "Raise model.max_length, or set task.overflow: window.")
