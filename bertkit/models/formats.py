"""Whether bertkit loads what a folder holds, and what to do where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError, Problem
from bertkit.files import read_json
from bertkit.models.untrusted import adapter_problems, read_object, vet_files

CONVERT = "Convert it once where you trust it: AutoModel.from_pretrained(…).save_pretrained(…) writes safetensors."
ORIGINAL = "Name the model that it was converted from, in safetensors."
UNREAD = (  # patterns of weights, what they are, what to do
    (("*.bin", "*.pt", "*.pth", "*.ckpt"), "bertkit does not unpickle {file}", CONVERT),
    (("*.gguf",), "{file} is GGUF, quantised for llama.cpp", ORIGINAL),
    (("*.onnx", "onnx/*.onnx"), "{file} is a graph that `bertkit export` has not written", ORIGINAL),
    (("*.h5", "*.msgpack"), "{file} is TensorFlow's or Flax's", f"{CONVERT} transformers 4 reads these."),
)


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
    if any(str(module.get("type", "")).endswith(".StaticEmbedding") for module in _modules(folder / "modules.json")):
        what = "is a StaticEmbedding of sentence-transformers: a vector for each token, without an encoder"
        yield Problem(str(folder), what, "Use it there, or name a model that has an encoder.")
    weights = any(chain(folder.glob("*.safetensors"), folder.glob("*.safetensors.index.json")))
    if not weights:
        for patterns, what, fix in UNREAD:
            for file in sorted(file for pattern in patterns for file in folder.glob(pattern)):
                yield Problem(str(folder), f"has no *.safetensors; {what.format(file=file.relative_to(folder))}", fix)
    if not (folder / "config.json").is_file():
        what = "is neither a run nor a model folder: it has no config.json"
        yield Problem(str(folder), what, "Name the folder that config.json and the weights are in.")
    if not weights:  # of a Hub model, other files were not even downloaded
        yield Problem(str(folder), "has no *.safetensors; bertkit does not unpickle pytorch_model.bin", CONVERT)


def _exported(config: Path) -> bool:
    section = read_object(config).get("bertkit") if config.is_file() else None
    return isinstance(section, dict) and section.get("onnx") is not None


def _modules(file: Path) -> list[dict[str, Any]]:
    listed = read_json(file) if file.is_file() else []
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
