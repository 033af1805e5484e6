"""Checks of a model folder before any library opens it: the folder may come from anyone.

Only sizes and the headers of the weights are read. Code that loads models makes sure that weights are not pickles, that
no code of the model is run, and that every tensor is present.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError, Problem
from bertkit.files import read_json

LARGEST_HEADER = 100_000_000  # bytes; safetensors' own limit
LARGEST_VOCABULARY = 500_000_000  # bytes of tokenizer.json and the like
LABELS, POSITIONS = 1_000_000, 1_000_000  # more than anyone has; some positions have no tensor to compare with
SMALL = 10_000  # numbers up to here need no tensor to explain them
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


def vet(folder: Path) -> None:
    """Raises ModelError with everything that is wrong: files of other folders, sizes that no weights explain, code."""
    for check in (_irregular, _unsuitable, _implausible):  # each opens only what passed the ones before
        if problems := list(check(folder)):
            raise ModelError(problems)


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a model's file. Raises ModelError where there is none."""
    try:
        content = read_json(file)
    except OSError as error:
        raise ModelError(Problem(str(file), f"cannot be read: {error.strerror or error}")) from error
    if not isinstance(content, dict):
        raise ModelError(Problem(str(file), "is not a JSON object"))
    return content


def _irregular(folder: Path) -> Iterator[Problem]:
    """Pipes, sockets and devices, which an archive may hold; opening one may wait without end."""
    for file in sorted(folder.glob("*")):
        if file.exists() and not (file.is_file() or file.is_dir()):
            yield Problem(str(file), "is not a regular file", "Remove it.")


def _unsuitable(folder: Path) -> Iterator[Problem]:
    """Files that are too large, or name others: transformers would open what an index names, wherever it is."""
    for file in sorted(folder.glob("*.json")) + sorted(folder.glob("*.txt")):
        if file.is_file() and (size := file.stat().st_size) > LARGEST_VOCABULARY:
            yield Problem(str(file), f"{size / 1e6:,.0f} MB, larger than any tokenizer or config")
    for index in sorted(folder.glob("*.index.json")):
        files = read_object(index).get("weight_map")
        if not isinstance(files, dict):
            yield Problem(str(index), "has no weight_map of tensors and their files")
            continue
        for name in sorted({str(name) for name in files.values()})[:5]:
            if not name.endswith(".safetensors") or Path(name).name != name:
                yield Problem(str(index), f"names {name!r:.100}, not a safetensors file in this folder")
            elif not (folder / name).is_file():
                yield Problem(str(index), f"names {name!r:.100}, which does not exist")
    if (folder / "adapter_config.json").is_file():
        fix = "Merge it into its model once: PeftModel.from_pretrained(…).merge_and_unload().save_pretrained(…)."
        yield Problem(str(folder), "an adapter, which names another model to load", fix)


def _implausible(folder: Path) -> Iterator[Problem]:
    """A config that names code, or sizes that the tensors do not have."""
    file = folder / "config.json"
    if not file.is_file():
        return
    config = read_object(file)
    for name in ("attn_implementation", "_attn_implementation"):
        if (code := config.get(name)) not in (None, *ATTENTIONS):
            yield Problem(str(file), f"{name} is {code!r:.60}, but bertkit does not fetch code that a model names")
    if config.get("quantization_config"):
        fix = "Save it once in fp32 or bf16, where you trust it."
        yield Problem(str(file), "its weights are quantised; bertkit neither trains nor loads those", fix)
    shapes = [shape for weights in sorted(folder.glob("*.safetensors")) for shape in _shapes(weights)]
    widest = max((size for shape in shapes for size in shape), default=0)
    for name, number in config.items() if shapes else ():
        if "layers" in name and isinstance(number, str | float):
            yield Problem(str(file), f"{name} is {number!r:.60}, not a whole number")
        if type(number) is not int or name.endswith(("_id", "_index")):
            continue
        least, most = -math.inf, max(SMALL, widest)
        if "layers" in name:
            least, most = 0, max(100, len(shapes))  # layers may share their weights, as in ALBERT
        elif "position" in name:
            most = POSITIONS
        elif name == "num_labels":
            most = LABELS
        if not least <= number <= most:
            what = f"{name} is {number:,}, but the weights are {len(shapes):,} tensors of dimensions up to {widest:,}"
            yield Problem(str(file), what, "The file is damaged, or was made to exhaust memory.")


def _shapes(file: Path) -> Iterator[list[int]]:
    """The shapes that a file's header states; the format is 8 bytes of length, then JSON.

    Raises ModelError on an invalid header, or one whose tensors are not in the file.
    """
    size = file.stat().st_size
    with file.open("rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        if not 2 <= length <= min(LARGEST_HEADER, size - 8):
            raise ModelError(Problem(str(file), "is damaged: its header is longer than the file", "Fetch it again."))
        try:
            header = json.loads(raw.read(length))
            tensors: list[dict[str, Any]] = [each for name, each in header.items() if name != "__metadata__"]
            shapes = [[int(n) for n in each["shape"]] for each in tensors]
            ends = [int(each["data_offsets"][1]) for each in tensors]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(Problem(str(file), "not a valid safetensors file (bad header)")) from error
    if max(ends, default=0) > size - 8 - length:
        raise ModelError(Problem(str(file), "is damaged: it ends before its tensors do", "Fetch it again."))
    yield from shapes
