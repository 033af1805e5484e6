"""The ONNX graph of a task's model, by torch.onnx's exporter (torch.export and onnxscript)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn

from bertkit.encoding.padding import Arrays, fills, pad
from bertkit.errors import ModelError, extras_required
from bertkit.exports.viterbi import viterbi
from bertkit.inference.predictor import Predictor
from bertkit.models.heads.posteriors import constrained
from bertkit.models.quiet import quiet_logger
from bertkit.tasks.base import Task
from bertkit.text import first_line

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 20  # Gelu is an operator since then
MAX_BYTES = 2_000_000_000  # of a protobuf


class Reduced(nn.Module):
    """A task's model up to `reduce`, and its extra outputs."""

    def __init__(self, task: Task, model: Any, *, extra: bool = True) -> None:
        super().__init__()
        self.task = task
        self.model = model
        self.extra = extra

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Outputs by their names."""
        reduced = self.task.reduce(self.task.forward(self.model, batch), batch)
        return {**reduced, **(self.task.extra_outputs(reduced) if self.extra else {})}


@dataclass(frozen=True)
class Graph:
    """A model's graph, followed by the best path of a CRF."""

    proto: ModelProto
    tail: ModelProto | None
    reduced: list[str]  # outputs that the task reads

    @property
    def outputs(self) -> list[Any]:
        """All outputs, as ONNX describes them."""
        return [*self.proto.graph.output, *(self.tail.graph.output if self.tail else ())]

    def write(self, file: Path) -> None:
        """Write both as one file. Raises ModelError if it exceeds the size limit of a protobuf."""
        graph = type(self.proto)()
        graph.CopyFrom(self.proto)
        if self.tail:  # whose inputs are among the outputs
            graph.graph.node.extend(self.tail.graph.node)
            graph.graph.initializer.extend(self.tail.graph.initializer)
            graph.graph.output.extend(self.tail.graph.output)
        if (size := graph.ByteSize()) > MAX_BYTES:
            raise ModelError(
                file,
                f"the graph has {size / 1e9:.1f} GB; one ONNX file holds at most 2 GB",
                "Export a smaller model, such as a distilled one.",
            )
        file.write_bytes(graph.SerializeToString())


def described(values: Iterable[Any]) -> dict[str, list[Any]]:
    """Name of an input or output -> its shape, in which a name stands for any size."""
    return {value.name: _shape(value) for value in values}


def _shape(value: Any) -> list[Any]:
    return [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]


def batch_of(task: Task, features: Dataset, rows: Sequence[int]) -> Arrays:
    """These features as the graph reads them: token columns, and the columns that `reduce` reads."""
    batch = pad(task.examples(features, list(rows)), fills(task.tokenizer, task.padding))
    tokens = [
        n for n in ("input_ids", "attention_mask", "token_type_ids") if n in task.tokenizer.model_input_names
    ]
    return {name: batch[name] for name in (*tokens, *task.reduce_inputs)}


def build(predictor: Predictor, sample: Arrays) -> Graph:
    """The graph of a torch model in fp32 on the CPU.

    sample: a batch to trace with; the graph runs on batches of any size and length. Raises UserError if
    onnxscript is not installed, ModelError if the model cannot be exported.
    """
    task = predictor.task
    model = predictor.model
    # Sizes of at least two: torch.export takes a size of one in the sample for a constant.
    repeated = {name: np.tile(values, 1 + np.equal(values.shape, 1)) for name, values in sample.items()}
    batch = {name: torch.from_numpy(values) for name, values in repeated.items()}
    reduced = list(Reduced(task, model, extra=False)(batch))
    kernels = model.config._attn_implementation
    model.set_attn_implementation("eager")  # SDPA's graph also looks for NaN in every row of scores
    try:
        proto = _exported(Reduced(task, model).eval(), batch)
    finally:
        model.set_attn_implementation(kernels)
    if "transitions" not in reduced:
        return Graph(proto, None, reduced)
    options = task.options
    temperature = options.temperature or 1.0
    parts = [part.detach().float().numpy() for part in model.crf()]
    # as `decode` uses it
    chain = constrained(parts, options.tags, temperature, plain=options.scheme == "none")
    return Graph(proto, viterbi(chain, temperature), reduced)


def _exported(module: nn.Module, batch: Mapping[str, Tensor]) -> ModelProto:
    with extras_required():
        import onnxscript  # noqa: F401
    shapes = {name: dict.fromkeys(range(x.ndim), torch.export.Dim.DYNAMIC) for name, x in batch.items()}
    try:
        with ExitStack() as quiet, warnings.catch_warnings(action="ignore"), torch.inference_mode():
            # they report deprecated functions of each other
            for package in (
                "torch.onnx",
                "onnxscript",
                "onnx_ir",
            ):
                quiet.enter_context(quiet_logger(package))
            program = torch.onnx.export(
                module,
                kwargs={"batch": dict(batch)},
                dynamo=True,
                dynamic_shapes={"batch": shapes},
                opset_version=OPSET,
                input_names=list(batch),
                output_names=list(module(dict(batch))),
                custom_translation_table=_translations(),
                verbose=False,
            )
    except Exception as error:  # whatever torch.export or a translation raises
        cause: BaseException = error
        while cause.__cause__ is not None:  # the outer ones only say which step failed
            cause = cause.__cause__
        raise ModelError(
            "the model",
            f"torch.onnx cannot export this model: {first_line(cause)}",
            "Use an architecture of transformers.",
        ) from error
    assert program is not None  # with dynamo
    return program.model_proto


def _translations() -> dict[Any, Any]:
    """Operators that torch.onnx cannot translate."""
    import onnxscript

    op: Any = onnxscript.opset18

    def sort(values: Any, *, stable: bool = False, dim: int = -1, descending: bool = False) -> Any:
        # ONNX specifies that TopK takes the first of equal values, which makes it stable.
        size = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]))
        return op.TopK(values, size, axis=dim, largest=int(descending), sorted=1)

    return {torch.ops.aten.sort.stable: sort}
