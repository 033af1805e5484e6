"""`bertkit export`: a run becomes a folder for ONNX Runtime, and counts as done when it was held against the run."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bertkit.encoding.padding import Tokens
from bertkit.errors import DataError, ModelError, Problem, RecipeError, UserError
from bertkit.export import quantize
from bertkit.export.agreement import CLOSE, Agreement, agreement, compared, output_difference
from bertkit.export.graph import OPSET, Graph, batch_of, build, described
from bertkit.files import sha256, write_json, write_text
from bertkit.inference.evaluate import rows_of_split
from bertkit.inference.onnx_session import GRAPH, OnnxModel, open_model
from bertkit.inference.predictor import Predictor, load, model_folder

if TYPE_CHECKING:
    from datasets import Dataset

    from bertkit.data.schema import Answer

logger = logging.getLogger(__name__)

SAMPLE = 32  # features by which layers are ranked
MOST = 100_000  # rows that a model is held against


@dataclass(frozen=True)
class Held:
    """A torch model and the rows that its exports are held against."""

    predictor: Predictor
    split: str
    rows: Dataset

    @property
    def known(self) -> list[str]:
        """The columns that a graph of this task may read."""
        task = self.predictor.task
        return [*task.tokenizer.model_input_names, *task.reduce_inputs]


def export(
    source: str | Path,
    output: Path,
    *,
    int8: bool = False,
    max_drop: float = 0.005,
    opset: int = OPSET,
    data: Path | None = None,
) -> dict[str, Any]:
    """Write `output`: model.onnx, tokenizer, config.json, export.json. Returns what export.json says.

    It is there only when, on the run's validation rows (or `data`, labelled rows in their layout), outputs agree to
    1e-4, answers are equal and no metric has moved. int8: quantised; the headline metric may fall by `max_drop`.
    Raises UserError: an output that is not empty, no rows, a task without an export; ModelError: it does not agree.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(Problem(str(output), "is there already", "Name a new folder with --output."))
    held = _held(source, data)
    started = time.monotonic()
    features = held.predictor.task.encode(held.rows.select(range(min(len(held.rows), SAMPLE))))
    sample = batch_of(held.predictor.task, features, range(min(len(features), SAMPLE)))
    graph = build(held.predictor, sample, opset)
    aside = output.with_name(f".{output.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        _write_folder(held.predictor, graph, aside)
        graph.write(aside / GRAPH)
        exact, expected = agreement(held.predictor, open_model(aside, graph.reduced, held.known), held.rows)
        _agreed(held, exact)
        facts = {"fp32": _figures(held, exact, aside / GRAPH)}
        if int8:
            facts["int8"] = _quantize(held, graph, aside, expected, sample, max_drop)
        said = _facts(held, graph, aside, facts, time.monotonic() - started)
        write_json(aside / "export.json", said)
        write_text(aside / "README.md", card(model_folder(source), said))
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.is_dir():
            output.rmdir()
        aside.replace(output)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return said


def _held(source: str | Path, data: Path | None) -> Held:
    """The model in fp32 on the CPU, and its rows."""
    predictor = load(source, precision="fp32")
    if predictor.backend == "onnx":
        raise ModelError(Problem(str(source), "is an exported model already", "Name the run that it is of."))
    if predictor.task.name == "pretraining":
        what = "a pretrained model answers at places that it is told, and has no graph from text to answers"
        raise ModelError(Problem(str(source), what, "Fine-tune it, and export that."))
    try:
        split, rows = rows_of_split(source, predictor, data, None, ("validation", "test"))
    except (DataError, RecipeError) as error:
        if data is not None:
            raise
        what = "an export is compared with the run on labelled rows"
        fix = "Name some in the layout of the run's data: --data FILE"
        raise DataError([*error.problems, Problem(str(source), what, fix)]) from error
    rows = rows.select(range(min(len(rows), MOST)))
    cpu = torch.device("cpu")
    return Held(replace(predictor, model=predictor.model.cpu(), device=cpu), str(data or split), rows)


def _write_folder(predictor: Predictor, graph: Graph, folder: Path) -> None:
    """Tokenizer, and a config.json by which `load` knows the folder."""
    config, task = predictor.model.config, predictor.task
    folder.mkdir(parents=True)
    task.tokenizer.save_pretrained(folder)
    config.bertkit = {
        "version": version("bertkit"),
        "precision": "fp32",
        "batch_size": rows._asdict() if isinstance(rows := predictor.batch_size, Tokens) else rows,
        "columns": dict(predictor.columns),
        "max_length": task.max_length,
        "task": task.options.model_dump(mode="json"),
        "onnx": graph.reduced,
    }
    config.save_pretrained(folder)


def _agreed(held: Held, found: Agreement) -> None:
    """Raises ModelError where an export in fp32 is not the model that it was made of."""
    moved = {
        name: (value, found.metrics["onnx"][name])
        for name, value in found.metrics["torch"].items()
        if abs((value or 0.0) - (found.metrics["onnx"][name] or 0.0)) > CLOSE
    }
    if found.output_difference <= CLOSE and not found.answers_differ and not moved:
        return
    what = f"on {found.rows:,} rows ({held.split}) outputs differ by up to {found.output_difference:.2g}"
    what += f", {found.answers_differ:,} answers differ" + "".join(
        f", {name} went from {before} to {after}" for name, (before, after) in moved.items()
    )
    raise ModelError(Problem("the exported graph", what, "Nothing was written. Please report it with the recipe."))


def _quantize(
    held: Held, graph: Graph, folder: Path, expected: Sequence[Answer], sample: Any, max_drop: float
) -> dict[str, Any]:
    """model.onnx in int8; and its figures."""
    headline, found, last = held.predictor.task.metrics[0], quantize.layers(graph.proto), dict[str, Agreement]()

    def opened(**nodes: Any) -> OnnxModel:
        replace(graph, proto=quantize.quantized(graph.proto, folder / GRAPH, **nodes)).write(folder / GRAPH)
        return open_model(folder, graph.reduced, held.known)

    plain = open_model(folder, graph.reduced, held.known)(sample)

    def harm(nodes: list[str]) -> float:
        return output_difference(plain, opened(only=nodes)(sample))

    def drop(nodes: list[str]) -> float:
        model = opened(but=nodes)
        difference = output_difference(plain, model(sample))
        last["int8"] = compared(held.predictor, model, held.rows, expected, difference, math.inf)
        fallen = last["int8"].drop(headline)
        way = "falls" if fallen >= 0 else "rises"
        logger.info("int8 but for %d nodes: %s %s by %.4f", len(nodes), headline, way, abs(fallen))
        return fallen

    excluded, steps = quantize.search(found, harm, drop, max_drop)
    figures = _figures(held, last["int8"], folder / GRAPH)
    return {**figures, "max_drop": max_drop, "fp32_layers": excluded, "steps": steps}


def _figures(held: Held, found: Agreement, file: Path) -> dict[str, Any]:
    return {**asdict(found), "drop": found.drop(held.predictor.task.metrics[0]), "megabytes": file.stat().st_size / 1e6}


def _facts(held: Held, graph: Graph, folder: Path, held_against: dict[str, Any], seconds: float) -> dict[str, Any]:
    weights = sum(each.numel() * each.element_size() for each in held.predictor.model.state_dict().values())
    return {
        "task": held.predictor.task.name,
        "headline": held.predictor.task.metrics[0],
        "precision": "int8" if "int8" in held_against else "fp32",
        "split": held.split,
        "inputs": described(graph.proto.graph.input),
        "outputs": described(graph.outputs),
        "torch_megabytes": weights / 1e6,
        **held_against,
        "opset": graph.opset,
        "sha256": sha256(folder / GRAPH),
        "seconds": seconds,
        "versions": {
            name: metadata.version(name) for name in ("bertkit", "torch", "onnx", "onnxscript", "onnxruntime")
        },
    }


def card(model: Path, said: dict[str, Any]) -> str:
    """The model's own card, and how the export compares with the model."""
    old = model / "README.md"
    own = old.read_text(encoding="utf-8") if old.is_file() else "# An exported model\n"
    headline, first = said["headline"], said["fp32"]

    def row(name: str, megabytes: float, score: float | None, differ: str) -> str:
        shown = "-" if score is None else f"{score:.4f}"
        return f"| {name} | {megabytes:.1f} | {shown} | {differ} |"

    table = [f"| | MB | {headline} | answers that differ |", "|---|---|---|---|"]
    table.append(row("torch fp32", said["torch_megabytes"], first["metrics"]["torch"].get(headline), ""))
    for name in ("fp32", "int8"):
        if figures := said.get(name):
            differ = f"{figures['answers_differ']:,} of {figures['rows']:,}"
            table.append(row(f"ONNX {name}", figures["megabytes"], figures["metrics"]["onnx"].get(headline), differ))
    what = f"`model.onnx` is {said['precision']}, opset {said['opset']}; measured on {Path(said['split']).name}."
    left = said.get("int8", {}).get("fp32_layers")
    kept = f" In fp32 stay {', '.join(left)}." if left else ""
    return f"{own}\n## Exported to ONNX\n\n{what}{kept}\n\n" + "\n".join(table) + "\n"
