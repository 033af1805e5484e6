"""Checks of a model folder before any library opens it, and of its model while it is built: anyone may have
made it.

Only sizes, settings and the headers of the weights are read. Code that loads models makes sure that weights
are not pickles, that no code of the model is run, and that every tensor is present.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NewType

from safetensors import SafetensorError, safe_open

from bertkit.errors import ModelError, Problem, translated
from bertkit.files import LARGEST_JSON, read_json
from bertkit.text import Json, Record

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

VettedFolder = NewType("VettedFolder", Path)  # a folder that `vet` returned
Fault = tuple[Path, str, str]  # a file, what is wrong with it, and what to do
LARGEST_VOCABULARY = 500_000_000  # bytes of tokenizer.json and the like
POSITIONS = 1_000_000  # more than anyone has; some positions have no tensor to compare with
MAX_NUMBER = 10_000  # numbers up to here need no tensor to explain them
LONGEST = 100_000  # entries of a list or object: transformers copies and prints id2label several times
# What a number that sizes a tensor is called; others, such as rope_theta and rotary_emb_base, may be any.
SIZE = re.compile(
    "size|dim|layer|num_|^n_|^d_|head|pos|width|len|window|rank|bucket|label|group|hidden|embed|bins"
)
TENSORS = 20_000  # of a file; a BERT of 24 layers has 400
UNEXPLAINED = 250_000_000  # parameters beyond the bytes of the weights, such as those of a new head
NORMALIZERS = 1_000  # steps of a tokenizer's normalizer
GROWTH = 256  # characters that it may make of one
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
ADVICE = "The file is damaged or hostile; download the model again."
CORRECT = "Correct it in a copy of the model."
REMOVE = "Rename the files to their usual names, and remove the key."
CONVERT = (
    "If you trust it, convert it once: from_pretrained(…).save_pretrained(…) of the class of its head, such "
    "as AutoModelForMaskedLM, writes safetensors; AutoModel drops the head. Save its tokenizer there too."
)


def vet(folder: Path) -> VettedFolder:
    """The folder, whose files any library may open now.

    Raises ModelError with everything that is wrong: files of other folders, sizes that no weights explain,
    code, a tokenizer that makes tokens or characters without end.
    """
    # a check opens only what passed those before
    for check in (_unopenable, _unsuitable, _implausible, _exploding):
        _require_none(check(folder))
    return VettedFolder(folder)


def _require_none(faults: Iterable[Fault]) -> None:
    """Raises ModelError with all of them."""
    if problems := [Problem(str(file), what, fix) for file, what, fix in faults]:
        raise ModelError(problems)


def _unopenable(folder: Path) -> Iterator[Fault]:
    """Files that must not be opened: pipes, devices, links to what is outside the folder.

    In the Hub's cache, where a model's files are links to blobs, those of its own repository are inside.
    """
    real = Path(os.path.realpath(folder))
    inside = (real, real.parents[1] / "blobs") if real.parent.name == "snapshots" else (real,)
    for file in sorted(folder.rglob("*")):
        target = Path(os.path.realpath(file))
        if not any(map(target.is_relative_to, inside)):
            fix = "If you trust it, replace it with the file itself."
            yield file, "is a link to a place outside of the model's folder", fix
        elif file.exists() and not (file.is_file() or file.is_dir()):  # opening one may wait without end
            yield file, "is not a regular file", "Remove it."


def read_object(file: Path, largest: int = LARGEST_JSON) -> Json:
    """The JSON object in a model's file. Raises ModelError where there is none, or the file has more
    bytes.
    """
    with translated(OSError, ModelError, str(file), "cannot be read", "Check the path and its permissions."):
        content = read_json(file, largest)
    if not isinstance(content, dict):
        raise ModelError(file, "is not a JSON object", ADVICE)
    return content


@contextmanager
def bounded(folder: Path) -> Iterator[None]:
    """Within the block, a model that is built has no more parameters than the bytes of this folder's weights
    explain.

    transformers builds models on the meta device, without memory; tensors are counted there. Raises
    ModelError.
    """
    from torch.nn.modules import module

    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    left = most = size + UNEXPLAINED

    def count(owner: Module, name: str, tensor: Tensor | None) -> None:
        nonlocal left
        if tensor is not None and tensor.is_meta:
            left -= max(tensor.numel(), MAX_NUMBER)  # a module takes memory, too
        if left < 0:
            raise ModelError(
                folder / "config.json",
                f"describes a model of more than {most:,} parameters, but the weights are {size:,} bytes",
                ADVICE,
            )

    parameters = module.register_module_parameter_registration_hook(count)
    buffers = module.register_module_buffer_registration_hook(count)
    try:
        yield
    finally:
        parameters.remove()
        buffers.remove()


def _unsuitable(folder: Path) -> Iterator[Fault]:
    """Files that are too large, or name others: transformers would open what an index names, wherever it
    is.
    """
    for file in sorted(folder.rglob("*")):
        text = file.suffix in (".json", ".txt", ".model", ".jinja") and file.is_file()
        if text and (size := file.stat().st_size) > LARGEST_VOCABULARY:
            yield file, f"{size / 1e6:,.0f} MB, larger than any tokenizer or config", ADVICE
    for index in sorted(folder.rglob("*.safetensors.index.json")):
        files = read_object(index).get("weight_map")
        if not isinstance(files, dict):
            yield index, "has no weight_map of tensors and their files", ADVICE
            continue
        for name in sorted({str(name) for name in files.values()})[:5]:
            if not name.endswith(".safetensors") or Path(name).name != name:
                yield index, f"names {name!r:.100}, not a safetensors file in its folder", ADVICE
            elif not (index.parent / name).is_file():
                yield index, f"names {name!r:.100}, which does not exist", "Download the file."
    yield from _adapter(folder)


def _adapter(folder: Path) -> Iterator[Fault]:
    """An adapter of peft, with which transformers would load another model, wherever it is."""
    if (folder / "adapter_config.json").is_file():
        fix = (
            "Merge it into its model once: "
            "PeftModel.from_pretrained(…).merge_and_unload().save_pretrained(…)."
        )
        yield folder, "is an adapter, which names another model to load", fix


def _implausible(folder: Path) -> Iterator[Fault]:
    """Headers that are damaged; a config that names code or other weights, or sizes that the tensors do not
    have.
    """
    shapes = []
    for weights in filter(Path.is_file, sorted(folder.rglob("*.safetensors"))):
        header = shapes_of(weights)
        shapes += header if weights.parent == folder else []  # the model's own weights
    file = folder / "config.json"
    if not file.is_file():
        return
    config = read_object(file)
    for name in ("attn_implementation", "_attn_implementation"):
        if (code := config.get(name)) not in (None, *ATTENTIONS):
            yield (
                file,
                f"{name} is {code!r:.60}, but bertkit does not fetch code that a model names",
                "Remove the key.",
            )
    for name in ("transformers_weights", "configuration_files"):
        if named := config.get(name):
            yield file, f"{name} names {named!r:.60}, which bertkit does not follow", REMOVE
    if config.get("quantization_config"):
        fix = "If you trust it, save it once in fp32 or bf16."
        yield file, "its weights are quantised, which is not supported", fix
    if str(config.get("position_embedding_type")).startswith("relative"):
        yield file, "has relative positions, which transformers 5 does not compute", "Use another encoder."
    widest = max(chain.from_iterable(shape for shape in shapes if 0 not in shape), default=0)
    sizes = _read_by_transformers(config) if shapes else {}
    for name, number in chain(sizes.items(), _lengths(sizes)):
        if "layers" in name and isinstance(number, str | float):
            yield file, f"{name} is {number!r:.60}, not a whole number", ADVICE
        if type(number) is not int or name.endswith(("_id", "_index")) or not SIZE.search(name):
            continue
        least = -math.inf
        most = max(MAX_NUMBER, widest)
        if name.startswith("the length"):
            most = min(most, LONGEST)
        elif "layers" in name:
            least = 0
            most = max(100, len(shapes))  # layers may share their weights, as in ALBERT
        elif "position" in name:
            most = POSITIONS
        if not least <= number <= most:
            what = (
                f"{name} is {number:,}, but the weights are {len(shapes):,} tensors of dimensions up to "
                f"{widest:,}"
            )
            yield file, what, ADVICE


def _read_by_transformers(config: Record) -> Json:
    """What the architecture declares, and bertkit's section; not what nothing reads, such as notes on a
    training.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    name = str(config.get("model_type"))
    if name not in CONFIG_MAPPING:
        return dict(config)
    kind = CONFIG_MAPPING[name]
    declared = {"bertkit", "num_labels", *kind.attribute_map, *(field.name for field in fields(kind))}
    return {key: value for key, value in config.items() if key in declared}


def _lengths(config: Record) -> Iterator[tuple[str, int]]:
    """The length of each list and object in a config, such as id2label."""
    values = list(config.items())
    while values:
        name, value = values.pop()
        if isinstance(value, dict | list):
            yield f"the length of {name}", len(value)
            values += value.items() if isinstance(value, dict) else [(name, item) for item in value]


def _exploding(folder: Path) -> Iterator[Fault]:
    """More tokens than transformers adds in seconds, and normalizers that make a long text of a short one."""
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    for file in filter(Path.is_file, map(folder.joinpath, names)):
        settings = read_object(file, LARGEST_VOCABULARY)
        for name, value in settings.items():  # such as extra_ids and extra_special_tokens
            number = (
                len(value)
                if isinstance(value, list | dict) and not name.startswith("added_tokens")
                else value
            )
            if (
                type(number) is int
                and number > MAX_NUMBER
                and not name.endswith(("_id", "len", "length", "size"))
            ):
                yield file, f"{name}: {number:,}; at most {MAX_NUMBER:,} are allowed", ADVICE
        if named := settings.get("fast_tokenizer_files"):
            yield file, f"fast_tokenizer_files names {named!r:.60}, which bertkit does not follow", REMOVE
        if _explodes(settings.get("normalizer")):
            what = (
                f"its normalizer makes more than {GROWTH} characters of one, or has over "
                f"{NORMALIZERS:,} steps"
            )
            yield file, what, ADVICE


def _explodes(normalizer: Any) -> bool:
    """Whether a normalizer has more than NORMALIZERS steps, or makes more than GROWTH characters of one.

    Replacements multiply where one may match what those before it insert.
    """
    growth = 1
    inserted = ""
    steps = deque([normalizer])
    for _ in range(NORMALIZERS):
        if growth > GROWTH or not steps:
            return growth > GROWTH
        if not isinstance(step := steps.popleft(), dict):
            continue
        if isinstance(parts := step.get("normalizers"), list):
            steps.extendleft(reversed(parts))
        text = str(step.get("content") or step.get("prepend") or "")
        pattern = step.get("pattern")
        literal = str(pattern.get("String") or "") if isinstance(pattern, dict) else ""
        longest = len(text) + (not literal)  # an expression may match between two characters, and only insert
        again = not literal or any(character in inserted for character in literal)
        growth = growth * max(longest, 1) if again else max(growth, longest)
        inserted += text
    return True


def shapes_of(file: Path) -> list[list[int]]:
    """The shapes in the header of a safetensors file. Raises ModelError: it is damaged, or has too many
    tensors.
    """
    try:
        with safe_open(file, framework="numpy") as weights:
            shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(
            file, f"is damaged, or not safetensors: {error}", "Download it again, or train the model again."
        ) from error
    if len(shapes) > TENSORS:
        raise ModelError(file, f"has {len(shapes):,} tensors; at most {TENSORS:,} are allowed", ADVICE)
    return shapes


def require_model(folder: Path, *, exports: bool = False) -> None:
    """Raises ModelError unless the folder has a config and weights in safetensors, all of them inside of it.

    exports: whether a folder that `bertkit export` wrote will do, too.
    """
    _require_none(_unopenable(folder))
    config = folder / "config.json"
    section = read_object(config).get("bertkit") if config.is_file() else None
    if isinstance(section, dict) and section.get("onnx") is not None:
        if exports:
            return
        raise ModelError(
            folder,
            "is an exported model, whose weights are in an ONNX graph",
            "Use the run that it was exported from.",
        )
    _require_none(_adapter(folder))
    if not config.is_file():
        raise ModelError(
            folder,
            "is neither a run nor a model folder: it has no config.json",
            "Use the folder with config.json and the weights.",
        )
    if not any(chain(folder.glob("*.safetensors"), folder.glob("*.safetensors.index.json"))):
        raise ModelError(
            folder,
            "has no *.safetensors; bertkit supports no other weights, and does not unpickle a .bin",
            CONVERT,
        )
