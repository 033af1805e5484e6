"""`bertkit export`: a folder for ONNX Runtime, written only if its predictions match those of the run."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bertkit.errors import DataError, ModelError, Problem, RecipeError, UserError
from bertkit.export import quantize
from bertkit.export.agreement import CLOSE, Agreement, agreement, compared, output_difference
from bertkit.export.graph import OPSET, Graph, batch_of, build, described
from bertkit.files import sha256, write_json, write_text
from bertkit.inference.evaluate import rows_of_split
from bertkit.inference.onnx_session import GRAPH, OnnxModel, open_model
from bertkit.inference.predictor import Predictor, load, model_folder
from bertkit.sections import Batching

if TYPE_CHECKING:
    from datasets import Dataset

    from bertkit.data.schema import Answer

logger = logging.getLogger(__name__)

SAMPLE = 32  # features by which layers are ranked
MAX_ROWS = 100_000  # on which models are compared


@dataclass(frozen=True)
class Reference:
    """A torch model, and the rows on which its exports are compared with it."""

    predictor: Predictor
    split: str
    rows: Dataset

    @property
    def headline(self) -> str:
        """The metric that selects checkpoints."""
        return self.predictor.task.metrics[0]

    def open(self, folder: Path, graph: Graph) -> OnnxModel:
        """The exported model in this folder."""
        task = self.predictor.task
        return open_model(folder, graph.reduced, [*task.tokenizer.model_input_names, *task.reduce_inputs])

    def figures(self, agreement: Agreement, file: Path) -> dict[str, Any]:
        """The figures of an export in export.json."""
        megabytes = file.stat().st_size / 1e6
        return {**asdict(agreement), "drop": agreement.drop(self.headline), "megabytes": megabytes}


def export(
    source: str | Path,
    output: Path,
    *,
    int8: bool = False,
    max_drop: float = 0.005,
    opset: int = OPSET,
    data: Path | None = None,
) -> dict[str, Any]:
    """Write `output`: model.onnx, tokenizer, config.json, export.json. Returns the contents of export.json.

    It is written only if, on the run's validation rows (or `data`, labelled rows in the same layout), outputs agree to
    1e-4, and answers and metrics are equal. int8: quantised; the headline metric may fall by `max_drop`.
    Raises UserError for an output that is not empty, DataError without rows, ModelError for a model that cannot be
    exported or an export that differs.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(Problem(str(output), "already exists", "Name a new folder with --output."))
    reference = _reference(source, data)
    task, rows = reference.predictor.task, reference.rows
    started = time.monotonic()
    features = task.encode(rows.select(range(min(len(rows), SAMPLE))))
    sample = batch_of(task, features, range(min(len(features), SAMPLE)))
    graph = build(reference.predictor, sample, opset)
    aside = output.with_name(f".{output.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        _write_folder(reference.predictor, graph, aside)
        graph.write(aside / GRAPH)
        exact, expected = agreement(reference.predictor, reference.open(aside, graph), rows)
        _require_agreement(reference, exact)
        figures = {"fp32": reference.figures(exact, aside / GRAPH)}
        if int8:
            figures["int8"] = _quantize(reference, graph, aside, expected, sample, max_drop)
        facts = _facts(reference, graph, aside, figures, time.monotonic() - started)
        write_json(aside / "export.json", facts)
        write_text(aside / "README.md", card(model_folder(source), facts))
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.is_dir():
            output.rmdir()
        aside.replace(output)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return facts


def _reference(source: str | Path, data: Path | None) -> Reference:
    """The model in fp32 on the CPU, and its rows."""
    predictor = load(source, precision="fp32")
    if predictor.backend == "onnx":
        raise ModelError(Problem(str(source), "is already exported", "Name the run that it was exported from."))
    if predictor.task.name == "pretraining":
        what = "pretraining has no graph from texts to answers: which tokens are predicted depends on the masks"
        raise ModelError(Problem(str(source), what, "Fine-tune the model, and export that run."))
    try:
        split, rows = rows_of_split(source, predictor, data, None, ("validation", "test"))
    except (DataError, RecipeError) as error:
        if data is not None:
            raise
        what = "an export is compared with the run on labelled rows"
        fix = "Name some in the layout of the run's data: --data FILE"
        raise DataError([*error.problems, Problem(str(source), what, fix)]) from error
    rows = rows.select(range(min(len(rows), MAX_ROWS)))
    cpu = torch.device("cpu")
    return Reference(replace(predictor, model=predictor.model.cpu(), device=cpu), str(data or split), rows)


def _write_folder(predictor: Predictor, graph: Graph, folder: Path) -> None:
    """Tokenizer, and a config.json that `load` recognises."""
    config, task = predictor.model.config, predictor.task
    folder.mkdir(parents=True)
    task.tokenizer.save_pretrained(folder)
    config.bertkit = {
        "version": version("bertkit"),
        "precision": "fp32",
        "batch_size": rows.model_dump() if isinstance(rows := predictor.batch_size, Batching) else rows,
        "columns": dict(predictor.columns),
        "max_length": task.max_length,
        "task": task.options.model_dump(mode="json"),
        "onnx": graph.reduced,
    }
    config.save_pretrained(folder)


def _require_agreement(reference: Reference, found: Agreement) -> None:
    """Raises ModelError if an export in fp32 differs from its model."""
    moved = {
        name: (value, found.metrics["onnx"][name])
        for name, value in found.metrics["torch"].items()
        if abs((value or 0.0) - (found.metrics["onnx"][name] or 0.0)) > CLOSE
    }
    if found.output_difference > CLOSE or found.answers_differ or moved:
        what = f"on {found.rows:,} rows ({reference.split}) outputs differ by up to {found.output_difference:.2g}"
        what += f", {found.answers_differ:,} answers differ"
        what += "".join(f", {name} changed from {before} to {after}" for name, (before, after) in moved.items())
        raise ModelError(Problem("the exported graph", what, "Nothing was written. Please report it with the recipe."))


def _quantize(
    reference: Reference, graph: Graph, folder: Path, expected: Sequence[Answer], sample: Any, max_drop: float
) -> dict[str, Any]:
    """Write model.onnx in int8; returns its figures."""
    predictor, last = reference.predictor, dict[str, Agreement]()
    exact = reference.open(folder, graph)(sample)

    def quantized(**nodes: Any) -> OnnxModel:
        replace(graph, proto=quantize.quantized(graph.proto, folder / GRAPH, **nodes)).write(folder / GRAPH)
        return reference.open(folder, graph)

    def harm(nodes: list[str]) -> float:
        return output_difference(exact, quantized(only=nodes)(sample))

    def drop(nodes: list[str]) -> float:
        model = quantized(but=nodes)
        difference = output_difference(exact, model(sample))
        last["int8"] = compared(predictor, model, reference.rows, expected, difference, math.inf)
        change = -last["int8"].drop(reference.headline)
        logger.info("int8, except for %d nodes: %s changes by %+.4f", len(nodes), reference.headline, change)
        return -change

    excluded, steps = quantize.search(quantize.layers(graph.proto), harm, drop, max_drop)
    figures = reference.figures(last["int8"], folder / GRAPH)
    return {**figures, "max_drop": max_drop, "fp32_layers": excluded, "steps": steps}


def _facts(reference: Reference, graph: Graph, folder: Path, figures: dict[str, Any], seconds: float) -> dict[str, Any]:
    weights = sum(each.numel() * each.element_size() for each in reference.predictor.model.state_dict().values())
    libraries = ("bertkit", "torch", "onnx", "onnxscript", "onnxruntime")
    return {
        "task": reference.predictor.task.name,
        "headline": reference.headline,
        "precision": "int8" if "int8" in figures else "fp32",
        "split": reference.split,
        "inputs": described(graph.proto.graph.input),
        "outputs": described(graph.outputs),
        "torch_megabytes": weights / 1e6,
        **figures,
        "opset": graph.opset,
        "sha256": sha256(folder / GRAPH),
        "seconds": seconds,
        "versions": {name: version(name) for name in libraries},
    }


def card(model: Path, facts: dict[str, Any]) -> str:
    """The model's own card, and how the export compares with the model."""
    readme, headline = model / "README.md", facts["headline"]
    text = readme.read_text(encoding="utf-8") if readme.is_file() else "# An exported model\n"
    exports = [(name, facts[name]) for name in ("fp32", "int8") if name in facts]
    rows = [("torch fp32", facts["torch_megabytes"], exports[0][1]["metrics"]["torch"], "")]
    for name, each in exports:
        differ = f"{each['answers_differ']:,} of {each['rows']:,}"
        rows.append((f"ONNX {name}", each["megabytes"], each["metrics"]["onnx"], differ))
    text += f"\n## Exported to ONNX\n\n`model.onnx` is {facts['precision']}, opset {facts['opset']}; "
    text += f"measured on {Path(facts['split']).name}."
    if layers := facts.get("int8", {}).get("fp32_layers"):
        text += f" These layers stay in fp32: {', '.join(layers)}."
    text += f"\n\n| | MB | {headline} | answers that differ |\n|---|---|---|---|\n"
    for title, megabytes, metrics, differ in rows:
        score = "-" if metrics.get(headline) is None else f"{metrics[headline]:.4f}"
        text += f"| {title} | {megabytes:.1f} | {score} | {differ} |\n"
    return text
