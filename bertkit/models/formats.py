"""Whether bertkit loads what a folder holds, and what to do where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from bertkit.errors import ModelError, Problem
from bertkit.models.untrusted import adapter_problems, read_object, vet_files

CONVERT = "Convert it once where you trust it: AutoModel.from_pretrained(…).save_pretrained(…) writes safetensors."


def require_model(folder: Path, *, exports: bool = False) -> None:
    """Raises ModelError unless the folder has a config and weights in safetensors, all of them inside of it.

    exports: whether a folder that `bertkit export` wrote will do, too.
    """
    vet_files(folder)
    exported = _exported(folder / "config.json")
    if exported and exports:
        return
    if exported:
        what = "is an exported model, whose weights are in an ONNX graph"
        raise ModelError(Problem(str(folder), what, "Name the run that it was exported from."))
    if problem := next(_problems(folder), None):
        raise ModelError(problem)


def _problems(folder: Path) -> Iterator[Problem]:
    yield from adapter_problems(folder)
    weights = any(chain(folder.glob("*.safetensors"), folder.glob("*.safetensors.index.json")))
    if not (folder / "config.json").is_file():
        what = "is neither a run nor a model folder: it has no config.json"
        yield Problem(str(folder), what, "Name the folder that config.json and the weights are in.")
    if not weights:
        what = "has no *.safetensors; bertkit reads no other weights, and does not unpickle pytorch_model.bin"
        yield Problem(str(folder), what, CONVERT)


def _exported(config: Path) -> bool:
    section = read_object(config).get("bertkit") if config.is_file() else None
    return isinstance(section, dict) and section.get("onnx") is not None
