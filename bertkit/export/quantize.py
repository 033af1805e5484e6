"""int8 by ONNX Runtime's dynamic quantisation."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto


def quantized(proto: ModelProto, file: Path) -> ModelProto:
    """The graph with int8 weights, per channel, of linear layers and embeddings; `file` is overwritten.

    Weights have 7 bits: processors with AVX2 and without VNNI add up two products in 16 bits, which saturate with 8. So
    the graph computes the same sums everywhere. Activations are quantised when they are computed (dynamic
    quantisation), so no calibration data are needed.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]  # ONNX's shape inference contradicts some that torch.onnx wrote
    # Without this mark, ONNX Runtime asks in the log for preprocessing.
    bare.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    root, handler = logging.getLogger(), logging.NullHandler()
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
    graph: ModelProto = onnx.load(file)
    return graph
