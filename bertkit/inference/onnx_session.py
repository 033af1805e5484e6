"""An exported model in ONNX Runtime; torch is not needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.encoding.padding import Arrays
from bertkit.errors import ModelError, extras_required
from bertkit.text import first_line

GRAPH = "model.onnx"


@dataclass(frozen=True)
class OnnxModel:
    """A task's reduced arrays for a batch, by ONNX Runtime on the CPU."""

    session: Any  # onnxruntime.InferenceSession
    inputs: Sequence[str]
    outputs: Sequence[str]  # those of `reduce`; the graph may have more, for other programs

    def __call__(self, batch: Arrays) -> Arrays:
        """The outputs by their names. Raises ModelError where the graph cannot be run on this batch."""
        try:
            arrays = self.session.run(self.outputs, {name: batch[name] for name in self.inputs})
        except Exception as error:  # ONNX Runtime's errors share no class of their own
            shapes = ", ".join(f"{name} {batch[name].shape}" for name in self.inputs)
            raise ModelError(
                GRAPH, f"cannot be run on {shapes}: {first_line(error)}", "Export the run again."
            ) from error
        return dict(zip(self.outputs, arrays, strict=True))


def onnx_runtime() -> Any:
    """The module onnxruntime, without its telemetry, which is on by default and reports to Microsoft.

    Raises UserError where it is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when the library is initialised
    with extras_required():
        import onnxruntime
    return onnxruntime


def open_model(folder: Path, outputs: Sequence[str], columns: Sequence[str]) -> OnnxModel:
    """The model of an exported folder. It runs in OMP_NUM_THREADS threads, or as many as there are cores.

    outputs: those that the task reads. columns: those of its batches. Raises ModelError where ONNX Runtime
    rejects the file, and UserError where it is not installed.
    """
    onnxruntime = onnx_runtime()
    file = folder / GRAPH
    if not file.is_file():
        raise ModelError(folder, f"was exported, but has no {GRAPH}", "Export the run again.")
    options = onnxruntime.SessionOptions()
    count = os.environ.get("OMP_NUM_THREADS", "")  # as for torch
    options.intra_op_num_threads = int(count) if count.isdecimal() else 0  # 0: ONNX Runtime's default
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors share no class of their own
        reason = first_line(error).rpartition(f"{GRAPH} failed:")[2]
        raise ModelError(
            file,
            f"ONNX Runtime {onnxruntime.__version__} rejects it: {reason}",
            "Copy or export it again, or install a newer ONNX Runtime.",
        ) from error
    inputs = [node.name for node in session.get_inputs()]
    computed = {node.name for node in session.get_outputs()}
    lacking = [name for name in outputs if name not in computed]
    if lacking or (unknown := [name for name in inputs if name not in columns]):
        what = f"it has no output {', '.join(lacking)}" if lacking else f"it needs {', '.join(unknown)}"
        raise ModelError(
            file, f"is not the graph that config.json describes: {what}", "Export the run again."
        )
    return OnnxModel(session, inputs, outputs)
