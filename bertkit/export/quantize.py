"""int8 by ONNX Runtime's dynamic quantisation, and the search for layers that have to stay in fp32."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError, Problem

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

OPERATORS = ("MatMul", "Gemm", "Gather")  # with a constant: linear layers and embeddings
_LAYER = re.compile(r".*?(\.layers?\.\d+|\.embeddings)(?=\.|$)")


def layers(proto: ModelProto) -> dict[str, list[str]]:
    """Layer, such as `bert.encoder.layer.0` -> its nodes that can be quantised; embeddings and head count as layers."""
    constants, nodes = {each.name for each in proto.graph.initializer}, dict[str, list[str]]()
    for node in proto.graph.node:
        if node.op_type in OPERATORS and any(name in constants for name in node.input):
            scope = _scope(node)
            match = _LAYER.match(scope)
            # ONNX Runtime replaces a Gemm by a MatMul and an Add before it compares names.
            names = [node.name, f"{node.name}_MatMul"] if node.op_type == "Gemm" else [node.name]
            nodes.setdefault((match[0] if match else scope).removeprefix("model."), []).extend(names)
    return nodes


def _scope(node: NodeProto) -> str:
    """The module that a node comes from, as torch.onnx records it: `model.bert.encoder.layer.0.output.dense`."""
    value = next((each.value for each in node.metadata_props if each.key == "pkg.torch.onnx.name_scopes"), "")
    scopes = re.findall(r"'([^']*)'", value)
    return scopes[-2] if len(scopes) > 1 else node.name


def quantized(proto: ModelProto, file: Path, *, only: Collection[str] = (), but: Collection[str] = ()) -> ModelProto:
    """The graph with int8 weights, per channel, in `only` these nodes or all `but` these; `file` is overwritten.

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
            nodes_to_quantize=list(only) or None,
            nodes_to_exclude=list(but),
        )
    finally:
        root.removeHandler(handler)
    graph: ModelProto = onnx.load(file)
    return graph


def search(
    nodes: Mapping[str, list[str]],
    harm: Callable[[list[str]], float],
    drop: Callable[[list[str]], float],
    max_drop: float,
) -> tuple[list[str], list[dict[str, Any]]]:
    """The fewest layers that have to stay in fp32, and the steps that were tried.

    nodes: of each layer. harm: nodes, quantised alone -> change of the outputs. drop: nodes that are left out -> fall
    of the metric. Each step leaves out one more layer, the most harmful first. Raises ModelError if no step is within
    `max_drop`.
    """
    steps: list[dict[str, Any]] = []
    ranked: list[str] = []
    for count in range(len(nodes)):
        if count == 1:
            harms = {name: harm(each) for name, each in nodes.items()}
            ranked = sorted(harms, key=lambda name: -harms[name])
        excluded = ranked[:count]
        fall = drop([node for name in excluded for node in nodes[name]])
        steps.append({"fp32_layers": excluded, "drop": fall})
        if fall <= max_drop:
            return excluded, steps
    falls = "; ".join(f"{step['drop']:.4f} with {len(step['fp32_layers'])} layers in fp32" for step in steps)
    what = f"in int8 the metric falls by more than {max_drop:g}, whichever layers stay in fp32: by {falls}"
    raise ModelError(Problem("int8", what, "Export without int8, or allow a larger drop."))
