"""int8 by ONNX Runtime's dynamic quantisation, and the search for layers that do not bear it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError, Problem

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

KINDS = ("MatMul", "Gemm", "Gather")  # by a constant: linear layers and embeddings
_LAYER = re.compile(r".*?(\.layers?\.\d+|\.embeddings)(?=\.|$)")


def layers(proto: ModelProto) -> dict[str, list[str]]:
    """Layer -> its nodes that can be quantised, such as `bert.encoder.layer.0`; embeddings and head are one each."""
    constants, found = {each.name for each in proto.graph.initializer}, dict[str, list[str]]()
    for node in proto.graph.node:
        if node.op_type in KINDS and any(name in constants for name in node.input):
            scope = _scope(node)
            match = _LAYER.match(scope)
            # ONNX Runtime writes a Gemm as a MatMul and an Add before it looks at the names.
            names = [node.name, f"{node.name}_MatMul"] if node.op_type == "Gemm" else [node.name]
            found.setdefault((match[0] if match else scope).removeprefix("model."), []).extend(names)
    return found


def _scope(node: NodeProto) -> str:
    """The module that a node came from, as torch.onnx notes it, such as `model.bert.encoder.layer.0.output.dense`."""
    said = next((each.value for each in node.metadata_props if each.key == "pkg.torch.onnx.name_scopes"), "")
    scopes = re.findall(r"'([^']*)'", said)
    return scopes[-2] if len(scopes) > 1 else node.name


def quantized(proto: ModelProto, file: Path, *, only: Collection[str] = (), but: Collection[str] = ()) -> ModelProto:
    """The graph with int8 weights, per channel, of these nodes only, or of all but these. `file` is written on the way.

    Activations are quantised as they come (dynamic quantisation), so that no data have to be chosen for it.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]  # ONNX's shape inference contradicts what torch.onnx says of some
    bare.metadata_props.add(
        key="onnx.quant.pre_process", value="onnxruntime.quant"
    )  # else it asks for that, in the log
    root, deaf = logging.getLogger(), logging.NullHandler()
    root.addHandler(deaf)  # else its calls of logging.info give the process a second handler, for good
    try:
        quantize_dynamic(
            bare,
            file,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=list(only) or None,
            nodes_to_exclude=list(but),
        )
    finally:
        root.removeHandler(deaf)
    made: ModelProto = onnx.load(file)
    return made


def search(
    found: Mapping[str, list[str]],
    harm: Callable[[list[str]], float],
    drop: Callable[[list[str]], float],
    max_drop: float,
) -> tuple[list[str], list[dict[str, Any]]]:
    """The layers to leave in fp32, fewest first, and the steps that were tried.

    harm: nodes that alone are quantised -> how far outputs move. drop: nodes left out -> by how much the metric falls.
    Each step leaves out one layer more, the most harmful first. Raises ModelError where no step is within `max_drop`.
    """
    steps: list[dict[str, Any]] = []
    ranked: list[str] = []
    for count in range(len(found)):
        if count == 1:
            harms = {name: harm(nodes) for name, nodes in found.items()}
            ranked = sorted(harms, key=lambda name: -harms[name])
        excluded = ranked[:count]
        fallen = drop([node for name in excluded for node in found[name]])
        steps.append({"fp32_layers": excluded, "drop": fallen})
        if fallen <= max_drop:
            return excluded, steps
    told = "; ".join(f"{len(step['fp32_layers'])} layers in fp32: {step['drop']:.4f}" for step in steps)
    what = f"int8 lets the metric fall by more than {max_drop:g}, whichever layers stay in fp32. It fell by: {told}"
    raise ModelError(Problem("--int8", what, "Export without --int8, or allow more with --max-drop."))
