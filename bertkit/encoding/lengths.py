"""What `check` says about the lengths of texts in tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from bertkit.data.schema import LARGE_SHARE, Finding, note
from bertkit.data.table import numbers
from bertkit.text import counted, part_of

if TYPE_CHECKING:
    from datasets import Dataset


def length_findings(features: Dataset, split: str, max_length: int, *, has_windows: bool = True) -> Iterator[Finding]:
    """The distribution of lengths in tokens, and what the limit cuts off.

    has_windows: whether the task has the option `overflow: window`.
    """
    _, starts = np.unique(numbers(features, "row"), return_index=True)
    lengths = numbers(features, "length")
    median, high = np.percentile(lengths, [50, 95])
    what = f"{split}: tokens per window: median {median:.0f}, 95 % within {high:.0f}, at most {lengths.max()}"
    windows = "side" not in features.column_names  # else the features of a row are several texts
    if windows and len(lengths) > len(starts):
        what += f"; {counted(len(starts), 'row')} in {counted(len(lengths), 'window')}"
    yield note(what)
    if "lost" not in features.column_names:  # a task that reads everything
        return
    lost = numbers(features, "lost")[starts]
    if cut := int((lost > 0).sum()):
        part, tokens = part_of(cut, len(starts), "row"), counted(int(lost.sum()), "token")
        what = f"{split}: {part} truncated at {max_length} tokens: {tokens} dropped"
        fix = "Raise model.max_length" + (", or set task.overflow: window." if windows and has_windows else ".")
        yield Finding("warn" if cut >= LARGE_SHARE * len(starts) else "note", what, fix)
