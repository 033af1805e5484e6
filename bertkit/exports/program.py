"""`bertkit export`: a folder for ONNX Runtime, written only if its predictions match those of the run."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
from datasets import Dataset

from bertkit.data.schema import Answer
from bertkit.encoding.padding import Arrays
from bertkit.errors import DataError, ModelError, Problem, RecipeError, UserError
from bertkit.exports.agreement import CLOSE, agreement, compared, output_difference, same
from bertkit.exports.graph import OPSET, Graph, batch_of, build, described
from bertkit.exports.int8 import quantized
from bertkit.files import folder_aside, is_taken, sha256, write_json
from bertkit.inference.evaluate import rows_of_split
from bertkit.inference.onnx_session import GRAPH, OnnxModel, onnx_runtime, open_model
from bertkit.inference.predictor import Predictor, load, model_folder
from bertkit.models.encoder import save_tokenizer
from bertkit.sections import Batching
from bertkit.tasks import package_of
from bertkit.text import Json, counted

logger = logging.getLogger(__name__)

MAX_DROP = 0.005  # of the metric, by int8
SAMPLE = 32  # features by which the graph is built, and int8 is compared with fp32
MAX_ROWS = 100_000  # on which models are compared


class Reference(NamedTuple):
    """A torch model, and the rows on which its exports are compared with it."""

    predictor: Predictor
    split: str
    rows: Dataset


def export(
    source: str | Path,
    output: str | Path,
    *,
    int8: bool = False,
    max_drop: float = MAX_DROP,
    data: str | Path | None = None,
    task: str | None = None,
) -> Json:
    """Write `output`: model.onnx, tokenizer, config.json, export.json. Returns the contents of export.json.

    It is written only if, on the run's validation rows (or `data`, labelled rows in the same layout), outputs
    agree to 1e-4, and answers and metrics are equal. int8: quantised; the task's first metric may
    fall by `max_drop`. task: as for `load`.
    Raises UserError for an output that is not empty, DataError without rows, ModelError for a model that
    cannot be exported or an export that differs.

    >>> bertkit.export("runs/quickstart", "runs/onnx")["fp32"]["answers_differ"]
    0
    """
    output = Path(output).expanduser()
    if is_taken(output):
        raise UserError(output, "already exists", "Use a new folder.")
    if max_drop != MAX_DROP and not int8:
        raise UserError("", "max_drop has no effect without int8", "Leave it out, or use int8.")
    if not math.isfinite(max_drop):
        raise UserError(
            "", f"max_drop must be a finite number (found {max_drop})", f"The default is {MAX_DROP}."
        )
    reference = _reference(source, data, task)
    predictor = reference.predictor
    rows = reference.rows
    started = time.monotonic()
    features = predictor.task.encode(rows.select(range(min(len(rows), SAMPLE))))
    sample = batch_of(predictor.task, features, range(min(len(features), SAMPLE)))
    graph = build(predictor, sample)
    with folder_aside(output) as aside:
        save_tokenizer(predictor.task.tokenizer, aside)
        exported = _opened(predictor, graph, aside)
        figures, expected = agreement(predictor, exported, rows)
        _require_agreement(reference, figures)
        exports = {"fp32": figures | {"megabytes": (aside / GRAPH).stat().st_size / 1e6}}
        if int8:
            exact = exported(sample)
            exports["int8"] = _quantize(reference, graph, aside, expected, sample, exact, max_drop)
        _write_config(predictor, graph, aside, "int8" if int8 else "fp32")
        facts = _facts(reference, graph, aside, exports, time.monotonic() - started)
        write_json(aside / "export.json", facts)
        if (card := model_folder(source) / "README.md").is_file():
            shutil.copyfile(card, aside / "README.md")
    return facts


def _reference(source: str | Path, data: str | Path | None, task: str | None) -> Reference:
    """The model in fp32 on the CPU, and its rows."""
    predictor = load(source, precision="fp32", task=task)
    name = predictor.task.name
    if predictor.backend == "onnx":
        raise ModelError(source, "is already exported", "Use the run that it was exported from.")
    if predictor.task.no_graph:
        why, fix = predictor.task.no_graph
        raise ModelError(source, f"{name} has no graph from texts to answers: {why}", fix)
    try:
        split, rows = rows_of_split(source, predictor, data, None, ("validation", "test"))
    except (DataError, RecipeError) as error:
        if data is not None:
            raise
        what = "an export is compared with the run on labelled rows"
        fix = "Pass some as `data`, in the layout of the run's."
        raise DataError([*error.problems, Problem(str(source), what, fix)]) from error
    rows = rows.select(range(min(len(rows), MAX_ROWS)))
    cpu = torch.device("cpu")
    return Reference(replace(predictor, model=predictor.model.cpu(), device=cpu), str(data or split), rows)


def _write_config(predictor: Predictor, graph: Graph, folder: Path, precision: str) -> None:
    """A config.json that `load` recognises."""
    config = predictor.model.config
    task = predictor.task
    config.bertkit = {
        "version": version("bertkit"),
        "package": package_of(task.name),
        "precision": precision,
        "batch_size": rows.model_dump() if isinstance(rows := predictor.batch_size, Batching) else rows,
        "columns": dict(predictor.columns),
        "max_length": task.max_length,
        "task": task.options.model_dump(mode="json"),
        "onnx": graph.reduced,
    }
    config.save_pretrained(folder)


def _opened(predictor: Predictor, graph: Graph, folder: Path) -> OnnxModel:
    """Write the graph into the folder, and open it."""
    task = predictor.task
    graph.write(folder / GRAPH)
    return open_model(folder, graph.reduced, [*task.tokenizer.model_input_names, *task.reduce_inputs])


def _require_agreement(reference: Reference, figures: Json) -> None:
    """Raises ModelError if an export in fp32 differs from its model."""
    before, after = figures["metrics"].values()
    moved = [name for name, value in before.items() if not same(value or 0.0, after[name] or 0.0)]
    if figures["output_difference"] > CLOSE or figures["answers_differ"] or moved:
        what = f"on {counted(figures['rows'], 'row')} ({reference.split}) outputs differ by up to "
        what += (
            f"{figures['output_difference']:.2g}, {counted(figures['answers_differ'], 'answer', 'differ')}"
        )
        what += "".join(f", {name} changed from {before[name]} to {after[name]}" for name in moved)
        raise ModelError("the exported graph", what, "Nothing was written. Please report it with the recipe.")


def _quantize(
    reference: Reference,
    graph: Graph,
    folder: Path,
    expected: Sequence[Answer],
    sample: Arrays,
    exact: Arrays,
    max_drop: float,
) -> Json:
    """Write model.onnx in int8; returns its figures. exact: what the sample gives in fp32.

    Raises ModelError where the metric falls by more than `max_drop`.
    """
    predictor = reference.predictor
    proto = quantized(graph.proto, folder / GRAPH)
    model = _opened(predictor, replace(graph, proto=proto), folder)
    difference = output_difference(exact, model(sample))
    figures = compared(predictor, model, reference.rows, expected, difference, math.inf)
    headline = predictor.task.metrics[0]
    drop = figures["drop"]
    logger.info("int8: %s changes by %+.4f", headline, -drop)
    if not drop <= max_drop:  # it may be NaN
        what = f"{headline} falls by {drop:.4f} on {reference.split}, which is more than {max_drop:g}"
        raise ModelError(
            "int8", what + _unanswered(figures), "Export without int8, or with a larger max_drop."
        )
    return figures | {"megabytes": (folder / GRAPH).stat().st_size / 1e6, "max_drop": max_drop}


def _unanswered(figures: Json) -> str:
    """Where thresholds leave rows without an answer, which accuracy counts as errors: how many each model
    answers.
    """
    before, after = figures["answered"].values()
    if before == after:
        return ""
    right = [
        ""
        if (accuracy := scores.get("accuracy")) is None or not share
        else f", {accuracy / share:.1%} of them right"
        for scores, share in zip(figures["metrics"].values(), (before, after), strict=True)
    ]
    return f"; in fp32 {before:.1%} of the rows are answered{right[0]}, in int8 {after:.1%}{right[1]}"


def _facts(reference: Reference, graph: Graph, folder: Path, exports: Json, seconds: float) -> Json:
    predictor = reference.predictor
    weights = sum(tensor.numel() * tensor.element_size() for tensor in predictor.model.state_dict().values())
    libraries = ("bertkit", "torch", "onnx", "onnxscript")
    return {
        "task": predictor.task.name,
        "headline": predictor.task.metrics[0],
        "precision": list(exports)[-1],
        "split": reference.split,
        "inputs": described(graph.proto.graph.input),
        "outputs": described(graph.outputs),
        "torch_megabytes": weights / 1e6,
        **exports,
        "opset": OPSET,
        "sha256": sha256(folder / GRAPH),
        "seconds": seconds,
        "versions": {name: version(name) for name in libraries}
        | {"onnxruntime": onnx_runtime().__version__},  # whatever its package is called
    }
