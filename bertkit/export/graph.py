"""From a task's model to one ONNX graph, by torch.onnx's exporter (torch.export and onnxscript)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.encoding.padding import fills, pad
from bertkit.errors import ModelError, Problem, UserError
from bertkit.export.published import PUBLISHED
from bertkit.export.viterbi import append, viterbi
from bertkit.inference.onnx_session import first_line

if TYPE_CHECKING:
    from datasets import Dataset
    from onnx import ModelProto

    from bertkit.encoding.padding import Arrays
    from bertkit.inference.predictor import Predictor
    from bertkit.tasks.base import Task

OPSET = 20  # Gelu is an operator since then
OPSETS = range(18, 25)  # what torch.onnx writes and ONNX Runtime 1.31 reads
LARGEST = 2_000_000_000  # bytes of a protobuf


class Reduced(nn.Module):
    """A task's model up to `reduce`, and what it publishes of that."""

    def __init__(self, task: Task, model: Any, *, published: bool = True) -> None:
        super().__init__()
        self.task, self.model, self.published = task, model, published

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Outputs by their names."""
        reduced = self.task.reduce(self.task.forward(self.model, batch), batch)
        published = PUBLISHED.get(self.task.name) if self.published else None
        return {**reduced, **(published(self.task, reduced) if published else {})}


@dataclass(frozen=True)
class Graph:
    """A model's graph, and behind it the best path of a CRF."""

    proto: ModelProto
    tail: ModelProto | None
    reduced: list[str]  # outputs that the task reads
    opset: int

    @property
    def outputs(self) -> list[Any]:
        """All outputs, as ONNX describes them."""
        return [*self.proto.graph.output, *(self.tail.graph.output if self.tail else ())]

    def write(self, file: Path) -> None:
        """The whole in one file. Raises ModelError where it would be larger than a protobuf may be."""
        whole = type(self.proto)()
        whole.CopyFrom(self.proto)
        if self.tail:
            append(whole, self.tail)
        if (size := whole.ByteSize()) > LARGEST:
            what = f"its graph has {size / 1e9:.1f} GB, and one file of ONNX holds 2 GB"
            raise ModelError(Problem(str(file), what, "Export a smaller model, such as a distilled one."))
        file.write_bytes(whole.SerializeToString())


def described(values: Iterable[Any]) -> dict[str, list[Any]]:
    """Name of an input or output -> its shape, where a name stands for any size."""
    sizes = {each.name: each.type.tensor_type.shape.dim for each in values}
    return {name: [size.dim_param or size.dim_value for size in shape] for name, shape in sizes.items()}


def batch_of(task: Task, features: Dataset, rows: Sequence[int]) -> Arrays:
    """These features as the graph reads them: word pieces, and the columns that `reduce` reads."""
    batch = pad(task.examples(features, list(rows)), fills(task.tokenizer, task.padding))
    pieces = [n for n in ("input_ids", "attention_mask", "token_type_ids") if n in task.tokenizer.model_input_names]
    return {name: batch[name] for name in (*pieces, *task.reduce_inputs)}


def build(predictor: Predictor, sample: Arrays, opset: int) -> Graph:
    """The graph of a torch model in fp32 on the CPU.

    sample: a batch to trace with. Any batch and any length can be run. Raises UserError where onnxscript is not
    installed or the opset is not known, ModelError where the graph fails.
    """
    if opset not in OPSETS:
        what = f"{opset} is not an opset that can be written"
        raise UserError(Problem("--opset", what, f"Write {OPSETS[0]} to {OPSETS[-1]}; {OPSET} is the default."))
    task, model = predictor.task, predictor.model
    batch = {name: torch.from_numpy(_several(values)) for name, values in sample.items()}
    reduced = list(Reduced(task, model, published=False)(batch))
    kernels = model.config._attn_implementation
    model.set_attn_implementation("eager")  # SDPA's graph also looks for NaN in every row of scores
    try:
        proto = _exported(Reduced(task, model).eval(), batch, opset)
    finally:
        model.set_attn_implementation(kernels)
    tail = viterbi(*_chain(predictor)) if "transitions" in reduced else None
    return Graph(proto, tail, reduced, opset)


def _several(values: np.ndarray) -> np.ndarray:
    """At least two of everything: what is one in the sample, torch.export takes to be one always."""
    for axis in range(values.ndim):
        if values.shape[axis] == 1:
            values = values.repeat(2, axis)
    return values


def _exported(module: nn.Module, batch: Mapping[str, Tensor], opset: int) -> ModelProto:
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(Problem("", "export needs onnx and onnxscript", 'pip install "bertkit[onnx]"')) from error
    shapes = {name: dict.fromkeys(range(x.ndim), torch.export.Dim.DYNAMIC) for name, x in batch.items()}
    try:
        with _silence(), torch.inference_mode():
            program = torch.onnx.export(
                module,
                kwargs={"batch": dict(batch)},
                dynamo=True,
                dynamic_shapes={"batch": shapes},
                opset_version=opset,
                input_names=list(batch),
                output_names=list(module(dict(batch))),
                custom_translation_table=_translations(),
                verbose=False,
            )
    except Exception as error:  # whatever torch.export or a translation raises
        what = f"torch.onnx can not write this model's graph: {first_line(error)}"
        raise ModelError(Problem("the model", what, "Is it of an architecture of transformers' own?")) from error
    assert program is not None  # with dynamo
    proto: ModelProto = program.model_proto
    return proto


@contextmanager
def _silence() -> Iterator[None]:
    """Without the exporter's notices, and the warnings of its own use of what it deprecates."""
    noisy = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [each.level for each in noisy]
    try:
        for each in noisy:
            each.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(noisy, levels, strict=True):
            each.setLevel(level)


def _translations() -> dict[Any, Any]:
    """Operators that torch.onnx has no translation of."""
    import onnxscript

    op: Any = onnxscript.opset18

    def sort(values: Any, *, stable: bool = False, dim: int = -1, descending: bool = False) -> Any:
        # Of equals, TopK takes the first: ONNX says so, and it is what stable means.
        size = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]))
        return op.TopK(values, size, axis=dim, largest=int(descending), sorted=1)

    return {torch.ops.aten.sort.stable: sort}


def _chain(predictor: Predictor) -> tuple[tuple[np.ndarray, ...], float]:
    """The chain as `decode` has it: constrained, at the fitted temperature; and that temperature."""
    from bertkit.models.heads.posteriors import constrained

    options: Any = predictor.task.options
    temperature = options.temperature or 1.0
    parts = [part.detach().float().numpy() for part in predictor.model.crf()]
    return constrained(parts, options.tags, temperature), temperature
