"""int8: weights by ONNX Runtime, and activations with a scale for each token."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.inference.onnx_session import onnx_runtime

if TYPE_CHECKING:
    from onnx import ModelProto

ZERO = 128  # the byte that stands for 0
CONSTANTS: dict[str, np.ndarray[Any, Any]] = {  # name of an initializer -> its value
    "int8_last": np.array([-1], dtype=np.int64),
    "int8_least": np.array(1e-12, dtype=np.float32),  # of a token whose numbers are all 0
    "int8_step": np.array(1 / 127, dtype=np.float32),
    "int8_zero": np.array(ZERO, dtype=np.uint8),
}


def quantized(proto: ModelProto, file: Path) -> ModelProto:
    """The graph with int8 weights by ONNX Runtime, per channel, of linear layers and embeddings; `file` is
    overwritten.

    Weights have 7 bits: processors with AVX2 and without VNNI add up two products in 16 bits, which saturate
    with 8. So the graph computes the same sums everywhere. Activations are quantised when they are computed
    (dynamic quantisation), so no calibration data are needed; each token has a scale of its own (ZeroQuant,
    Yao et al. 2022), so that no answer depends on the other texts of a batch.
    """
    onnx_runtime()
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]  # ONNX's shape inference contradicts some that torch.onnx wrote
    # Without this mark, ONNX Runtime asks in the log for preprocessing.
    bare.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    root = logging.getLogger()
    handler = logging.NullHandler()
    root.addHandler(handler)  # else its calls of logging.info add a handler to the process for good
    try:
        quantize_dynamic(
            bare,
            file,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            reduce_range=True,
        )
    finally:
        root.removeHandler(handler)
    graph = onnx.load(file)
    scale_by_token(graph)
    return graph


def scale_by_token(proto: ModelProto) -> None:
    """Let the graph quantise each row of activations by its own largest number, in place.

    quantize_dynamic writes `DynamicQuantizeLinear(x) -> y, scale, zero`, which has one scale for the whole
    tensor, and `Mul(sums, Mul(scale, weight_scale))`. The scale becomes `(…, 1)`, so that sums are multiplied
    by both in turn.
    """
    from onnx import numpy_helper
    from onnx.helper import make_node

    nodes = [*proto.graph.node]
    scales = {node.output[1] for node in nodes if node.op_type == "DynamicQuantizeLinear"}
    zeros = {node.output[2] for node in nodes if node.op_type == "DynamicQuantizeLinear"}
    products = {node.output[0]: node for node in nodes if node.op_type == "Mul" and node.input[0] in scales}
    del proto.graph.node[:]
    for node in nodes:
        node.input[:] = ["int8_zero" if name in zeros else name for name in node.input]
        if node.op_type == "DynamicQuantizeLinear":
            proto.graph.node.extend(_by_row(node.input[0], *node.output[:2]))
        elif node.op_type == "Mul" and node.input[1] in products:
            scale, weight_scale = products[node.input[1]].input
            sums = f"{node.output[0]}_sums"
            proto.graph.node.append(make_node("Mul", [node.input[0], scale], [sums]))
            proto.graph.node.append(make_node("Mul", [sums, weight_scale], [node.output[0]]))
        elif node.output[0] not in products:
            proto.graph.node.append(node)
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in CONSTANTS.items())


def _by_row(x: str, y: str, scale: str) -> Iterator[Any]:
    """`x` `(…, inputs)` -> `y`, bytes of the same shape, and `scale` `(…, 1)`: 127 steps on either side
    of 0.
    """
    from onnx.helper import make_node

    yield make_node("Abs", [x], [f"{y}_abs"])
    yield make_node("ReduceMax", [f"{y}_abs", "int8_last"], [f"{y}_max"], keepdims=1)
    yield make_node("Max", [f"{y}_max", "int8_least"], [f"{y}_range"])
    yield make_node("Mul", [f"{y}_range", "int8_step"], [scale])
    # QuantizeLinear takes a scale for each row of a matrix.
    yield make_node("Shape", [x], [f"{y}_shape"])
    yield make_node("Flatten", [x], [f"{y}_rows"], axis=-1)
    yield make_node("Reshape", [scale, "int8_last"], [f"{y}_scales"])
    yield make_node("Shape", [f"{y}_scales"], [f"{y}_count"])
    yield make_node("Expand", ["int8_zero", f"{y}_count"], [f"{y}_zeros"])
    yield make_node("QuantizeLinear", [f"{y}_rows", f"{y}_scales", f"{y}_zeros"], [f"{y}_bytes"], axis=0)
    yield make_node("Reshape", [f"{y}_bytes", f"{y}_shape"], [y])
