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

from bertkit.errors import ModelError, Problem, UserError
from bertkit.files import read_json

LARGEST_HEADER = 100_000_000  # bytes; safetensors' own limit
LARGEST_VOCABULARY = 500_000_000  # bytes of tokenizer.json and the like
LABELS, POSITIONS = 1_000_000, 1_000_000  # more than anyone has; some positions have no tensor to compare with
SMALL = 10_000  # numbers up to here need no tensor to explain them
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


def vet(folder: Path) -> None:
    """Raises ModelError with everything that is wrong: files of other folders, sizes that no weights explain, code."""
    if problems := list(_special(folder)):  # opening one may wait without end
        raise ModelError(problems)
    problems = [*_large(folder), *_outside(folder)]
    if (folder / "adapter_config.json").is_file():
        fix = "Merge it into its model once: PeftModel.from_pretrained(…).merge_and_unload().save_pretrained(…)."
        problems.append(Problem(str(folder), "an adapter, which names another model to load", fix))
    if problems:
        raise ModelError(problems)
    if (folder / "config.json").is_file() and (problems := list(_implausible(folder))):
        raise ModelError(problems)


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a model's file. Raises ModelError where there is none."""
    try:
        content = read_json(file)
    except UserError as error:
        raise ModelError(error.problems) from error
    except OSError as error:
        raise ModelError(Problem(str(file), f"cannot be read: {error.strerror or error}")) from error
    if not isinstance(content, dict):
        raise ModelError(Problem(str(file), "is not a JSON object"))
    return content


def _special(folder: Path) -> Iterator[Problem]:
    """Pipes, sockets and devices, which an archive may hold."""
    for file in sorted(folder.glob("*")):
        if file.exists() and not (file.is_file() or file.is_dir()):
            yield Problem(str(file), "is not a regular file", "Remove it.")


def _large(folder: Path) -> Iterator[Problem]:
    for file in sorted(folder.glob("*.json")) + sorted(folder.glob("*.txt")):
        if file.is_file() and (size := file.stat().st_size) > LARGEST_VOCABULARY:
            yield Problem(str(file), f"{size / 1e6:,.0f} MB, larger than any tokenizer or config")


def _outside(folder: Path) -> Iterator[Problem]:
    """An index names files of weights; transformers would open what it names, wherever it is."""
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


def _implausible(folder: Path) -> Iterator[Problem]:
    file = folder / "config.json"
    config = read_object(file)
    for name in ("attn_implementation", "_attn_implementation"):
        if config.get(name) not in (None, *ATTENTIONS):
            yield Problem(
                str(file), f"{name} is {config[name]!r:.60}, but bertkit does not fetch code that a model names"
            )
    if config.get("quantization_config"):
        fix = "Save it once in fp32 or bf16, where you trust it."
        yield Problem(str(file), "its weights are quantised; bertkit neither trains nor loads those", fix)
    shapes = [shape for weights in sorted(folder.glob("*.safetensors")) for shape in _shapes(weights)]
    if not shapes:
        return
    widest = max((size for shape in shapes for size in shape), default=0)
    for name, number in config.items():
        integer = isinstance(number, int) and not isinstance(number, bool)
        if "layers" in name and not integer and number is not None and not isinstance(number, bool | list | dict):
            yield Problem(str(file), f"{name} is {number!r:.60}, not a whole number")
        if not integer or name.endswith(("_id", "_index")):
            continue
        most = max(SMALL, widest)
        if "layers" in name:
            most = max(100, len(shapes))  # layers may share their weights, as in ALBERT
        elif "position" in name:
            most = POSITIONS
        elif name == "num_labels":
            most = LABELS
        if not (0 if "layers" in name else -math.inf) <= number <= most:
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
