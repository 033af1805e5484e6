"""Documents packed into rows of the model's full length, where no token attends to another document.

Krell et al. 2021, "Efficient sequence packing without cross-contamination" (arXiv 2107.02027).
"""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.table import numbers, on_disk
from bertkit.errors import ModelError, Problem
from bertkit.models.bert.bert_config import MODEL_TYPE
from bertkit.models.bert.drawing import Chunks, Drawing
from bertkit.models.encoder import unused_positions
from bertkit.text import first_line

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from transformers import PretrainedConfig

    from bertkit.models.bert.drawing import Flags, Integers

BLOCK = 4096  # chunks, or rows, that are read at a time
TOLERANCE = 1e-3  # of the largest output; fp32, summed in another order, changes by far less


def pack_chunks(chunks: Dataset, max_length: int, mask_id: int) -> Dataset:
    """Chunks of `encode_documents`, without pairs -> rows of several chunks, each with special tokens of its own.

    Columns as there, but `sentences` has the tokens of each chunk, and `rows` its document; `row` and `document` are
    those of the first. Each chunk, the longest first, goes to the row that it fills best. A cloze is a row of its own.
    """
    from datasets import Features, List, Value

    arrow = chunks.with_format("arrow")
    lengths = np.where(_clozes(arrow, mask_id), max_length, numbers(chunks, "length"))
    row = _best_fit(lengths, max_length)
    types = {**chunks.features, "rows": List(Value("int64"))}
    return on_disk(_blocks(arrow, row), Features(types), token_hex())


def _clozes(arrow: Dataset, mask_id: int) -> Flags:
    masks = [np.zeros(0, dtype=bool)]
    for start in range(0, len(arrow), BLOCK):
        part = Chunks.take(arrow, range(start, min(start + BLOCK, len(arrow))))
        masks.append(np.logical_or.reduceat(part.ids == mask_id, part.bounds[:-1]))
    return np.concatenate(masks)


def _best_fit(lengths: Integers, most: int) -> Integers:
    """For each chunk the number of its row: the row with the least room that is enough, or a new one."""
    rows, count = np.empty(len(lengths), dtype=np.int64), 0
    with_room: list[list[int]] = [[] for _ in range(most + 1)]  # the rows with so much room
    for chunk in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[chunk])
        room = next((room for room in range(size, most) if with_room[room]), most)
        if room < most:
            row = with_room[room].pop()
        else:
            row, count = count, count + 1
        rows[chunk] = row
        with_room[room - size].append(row)
    return rows


def _blocks(arrow: Dataset, row: Integers) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    order = np.argsort(row, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(row))])
    lost = numbers(arrow, "lost")
    for first in range(0, max(len(starts) - 1, 1), BLOCK):
        edges = starts[first : first + BLOCK + 1]
        own = order[edges[0] : edges[-1]]
        part, edges = Chunks.take(arrow, own), edges - edges[0]
        yield {
            "row": part.rows[edges[:-1]],
            "document": part.documents[edges[:-1]],
            "input_ids": pa.ListArray.from_arrays(part.bounds[edges], part.ids),
            "sentences": pa.ListArray.from_arrays(edges, np.diff(part.bounds)),
            "lost": np.maximum.reduceat(lost[own], edges[:-1]),
            "length": np.diff(part.bounds[edges]) + 2 * np.diff(edges),
            "rows": pa.ListArray.from_arrays(edges, part.rows),
        }


def packed_inputs(config: PretrainedConfig, position_ids: Tensor) -> dict[str, Any]:
    """What a model reads besides the tokens of packed rows: its `position_ids` and `attention_mask`.

    position_ids: `(batch, length)`, 0 at the first token of each document, and for padding, of which each token is on
    its own.
    """
    import torch
    from transformers import masking_utils

    document = (position_ids == 0).cumsum(1)
    if config.model_type == MODEL_TYPE:
        return {"position_ids": position_ids, "attention_mask": document[:, None, :, None] == document[:, None, None]}
    inputs: dict[str, Any] = {
        "config": config,
        "inputs_embeds": torch.empty(*document.shape, 0, device=document.device),
        "attention_mask": None,
        "and_mask_function": masking_utils.packed_sequence_mask_function(document),
    }
    mask: Any = masking_utils.create_bidirectional_mask(**inputs)
    if "sliding_attention" in (config.to_dict().get("layer_types") or ()):
        local = masking_utils.create_bidirectional_sliding_window_mask(**inputs)
        mask = {"full_attention": mask, "sliding_attention": local}
    return {"position_ids": position_ids + unused_positions(config.to_dict()), "attention_mask": mask}


def check_packing(model: Any, drawing: Drawing) -> None:
    """Raises ModelError where the model's outputs for packed texts differ from those for each text alone."""
    import torch

    words = drawing.ordinary[:: max(len(drawing.ordinary) // 5, 1)].tolist()
    one, other = ([drawing.cls_id, *part, drawing.sep_id] for part in (words[:2], words[2:]))
    ids = [torch.tensor([each]) for each in (one, other, one + other)]
    positions = torch.tensor([[*range(len(one)), *range(len(other))]])
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            *alone, packed = (
                next(iter(model(input_ids=each, **more).values()))[0]
                for each, more in zip(ids, ({}, {}, packed_inputs(model.config, positions)), strict=True)
            )
            apart = torch.cat(alone)
            same = bool((packed - apart).abs().max() <= TOLERANCE * apart.abs().max())
        problem = "" if same else "its outputs for a text depend on the other texts of the row"
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
    finally:
        model.train(training)
    if problem:
        what = f"a {model.config.model_type} cannot read packed rows: {problem}"
        raise ModelError(Problem("task.packing", what, "Write  packing: false."))
