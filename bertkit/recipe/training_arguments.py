"""The `training:` section, checked against the TrainingArguments of the installed transformers.

The class is read from its source, because importing transformers takes seconds. bertkit does not mirror it:
only names that bertkit decides itself, and names of transformers 4 with their answer, stand here.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.errors import UserError
from bertkit.text import short_repr
from bertkit.validation import KeyProblem, describe, did_you_mean, spelling_hint, unknown_key

_HUB = "remove it; `bertkit push RUN` uploads a run when you ask for it"
_SEEDS = "remove it, and write `seeds: [{value}]` at the top of the recipe"
_BUCKETS = "remove it; batches come from bertkit's length buckets"
_COLUMNS = "remove it; the task decides what the model is given"
_EVALUATION = "remove it; evaluation keeps of every batch only what decoding needs"
_COMMANDS = "remove it; `bertkit train`, `evaluate` and `predict` say what is done"

# fields of TrainingArguments that a recipe can not set -> what to do instead
DECIDED: Mapping[str, str] = {
    "output_dir": "remove it, and say where on the command line: --output-dir RUN",
    "resume_from_checkpoint": "remove it, and resume on the command line: --output-dir RUN --resume",
    "ignore_data_skip": "remove it; a resumed run repeats the uninterrupted one bit for bit",
    "do_train": _COMMANDS,
    "do_eval": _COMMANDS,
    "do_predict": _COMMANDS,
    "push_to_hub": _HUB,
    "hub_token": _HUB + ", and a recipe is no place for secrets",
    "hub_private_repo": _HUB,
    "hub_model_id": _HUB,
    "hub_strategy": _HUB,
    "hub_always_push": _HUB,
    "hub_revision": _HUB,
    "seed": _SEEDS,
    "data_seed": _SEEDS,
    "train_sampling_strategy": _BUCKETS,
    "length_column_name": _BUCKETS,
    "remove_unused_columns": _COLUMNS,
    "label_names": _COLUMNS,
    "prediction_loss_only": _EVALUATION,
    "batch_eval_metrics": _EVALUATION,
    "include_for_metrics": _EVALUATION,
    "eval_do_concat_batches": _EVALUATION,
    "eval_accumulation_steps": _EVALUATION,
    "dataloader_drop_last": "remove it; bertkit drops no row",
    "gradient_checkpointing": "write activation_checkpointing: {value}",
    "gradient_checkpointing_kwargs": "write activation_checkpointing_kwargs",
    "parallelism_config": "remove it; it takes a Python object, and a recipe can not name one",
    "local_rank": "remove it; torchrun sets it",
}

_PUSH = "remove it; `bertkit push RUN OWNER/NAME` names the repository"
_ACCELERATOR = "write accelerator_config: {{name}: {value}}"
_GONE = "remove it"

# fields of transformers 4 that are gone -> what to write in 5
REMOVED: Mapping[str, str] = {
    "adafactor": "write optim: adafactor",
    "dispatch_batches": _ACCELERATOR,
    "split_batches": _ACCELERATOR,
    "evaluation_strategy": "write eval_strategy: {value}",
    "fp16_backend": "write fp16: true or bf16: true; there is one backend",
    "half_precision_backend": "write fp16: true or bf16: true; there is one backend",
    "fp16_opt_level": "write fp16: true or bf16: true; Apex is gone",
    "fsdp_min_num_params": "write fsdp_config: {min_num_params: {value}}",
    "fsdp_transformer_layer_cls_to_wrap": "write fsdp_config: {transformer_layer_cls_to_wrap: [{value}]}",
    "group_by_length": "remove it; bertkit always batches by length",
    "include_inputs_for_metrics": _EVALUATION,
    "include_tokens_per_second": "write include_num_input_tokens_seen: {value}",
    "jit_mode_eval": "write torch_compile: true",
    "logging_dir": "remove it; metrics.jsonl of the run holds the log, "
    "and the environment variable TENSORBOARD_LOGGING_DIR moves TensorBoard's",
    "mp_parameters": _GONE,
    "no_cuda": "write use_cpu: {value}",
    "overwrite_output_dir": "remove it; bertkit never overwrites a run: use another --output-dir, or --resume",
    "past_index": _GONE,
    "per_gpu_train_batch_size": "write per_device_train_batch_size: {value}",
    "per_gpu_eval_batch_size": "write per_device_eval_batch_size: {value}",
    "push_to_hub_model_id": _PUSH,
    "push_to_hub_organization": _PUSH,
    "push_to_hub_token": _PUSH + "; a recipe is no place for secrets",
    "ray_scope": _GONE,
    "save_safetensors": "remove it; models are always saved as safetensors",
    "sharded_ddp": "write fsdp and fsdp_config",
    "torchdynamo": "write torch_compile_backend: {value}",
    "tpu_metrics_debug": "write debug: tpu_metrics_debug",
    "tpu_num_cores": "remove it; the launcher sets the number of cores",
    "use_ipex": "remove it; PyTorch itself has these kernels",
    "use_legacy_prediction_loop": _GONE,
    "use_mps_device": "remove it; an Apple GPU is used when there is one",
    "warmup_ratio": "write warmup_steps: {value}; a number below 1 is a share of all steps",
}

_POSITIVE = (
    *("learning_rate", "num_train_epochs", "per_device_train_batch_size", "per_device_eval_batch_size"),
    *("gradient_accumulation_steps", "adam_epsilon", "logging_steps", "save_steps", "eval_steps", "save_total_limit"),
    "torch_empty_cache_steps",
)
_SHARE = ("label_smoothing_factor", "adam_beta1", "adam_beta2")
_NOT_NEGATIVE = (*_SHARE, "weight_decay", "warmup_steps", "max_grad_norm", "dataloader_num_workers", "eval_delay")

_IN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "False": "false",
    "str": "text",
    "list": "a list of texts",
    "dict": "a mapping",
    "None": "null",
}
_IN_JSON = {
    "int": "integer", "float": "number", "bool": "boolean", "False": "boolean",
    "str": "string", "list": "array", "dict": "object", "None": "null",
}  # fmt: skip


class TrainingField(NamedTuple):
    """A field of TrainingArguments. types: keys of the tables above; choices: what its text may be, if fixed."""

    name: str
    types: tuple[str, ...]
    choices: tuple[str, ...]
    default: str
    about: str


@functools.cache
def training_fields() -> Mapping[str, TrainingField]:
    """Name -> field of the installed transformers.TrainingArguments, without importing it.

    Raises UserError if transformers is not installed.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        raise UserError("transformers is not installed; install bertkit with pip, which brings it")
    folder = Path(spec.origin).parent
    files = ("trainer_utils.py", "debug_utils.py", "training_args.py")
    bodies = [ast.parse((folder / file).read_text(encoding="utf-8")).body for file in files]
    classes = {node.name: node for body in bodies for node in body if isinstance(node, ast.ClassDef)}
    enums = {name: _enum_values(node) for name, node in classes.items()}
    arguments = classes["TrainingArguments"].body
    return {field.name: field for node in arguments for field in _read_field(node, enums)}


def _enum_values(node: ast.ClassDef) -> tuple[str, ...]:
    if not any(isinstance(base, ast.Name) and base.id.endswith("Enum") for base in node.bases):
        return ()
    values = [
        each.value.value for each in node.body if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
    ]
    return tuple(value for value in values if isinstance(value, str))


def _read_field(node: ast.stmt, enums: Mapping[str, tuple[str, ...]]) -> Iterator[TrainingField]:
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.value is None:
        return
    default, about = ast.unparse(node.value), ""
    if isinstance(node.value, ast.Call):
        words = {word.arg: word.value for word in node.value.keywords if word.arg}
        default = ast.unparse(words["default"]) if "default" in words else ""
        about = _help(words.get("metadata"))
    types = tuple(dict.fromkeys(name for name in _types(node.annotation, enums) if name in _IN_WORDS))
    mentioned = [each.id for each in ast.walk(node.annotation) if isinstance(each, ast.Name)]
    choices = tuple(value for name in mentioned for value in enums.get(name, ()))
    yield TrainingField(node.target.id, types, choices, default, about)


def _types(node: ast.expr, enums: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """The keys of _IN_WORDS in an annotation: `SchedulerType | str`, Optional[int], list[str], Literal[False]."""
    match node:
        case ast.BinOp(left=left, right=right):
            yield from _types(left, enums)
            yield from _types(right, enums)
        case ast.Tuple(elts=elements):
            for element in elements:
                yield from _types(element, enums)
        case ast.Constant(value=str() as text):
            yield from _types(ast.parse(text, mode="eval").body, enums)
        case ast.Constant(value=value):
            yield str(value)
        case ast.Subscript(value=outer, slice=inner):
            name = ast.unparse(outer).rpartition(".")[2].lower()
            if name == "optional":
                yield "None"
            if name in ("optional", "union", "literal"):
                yield from _types(inner, enums)
            yield name
        case _:
            name = ast.unparse(node).rpartition(".")[2]
            yield "str" if enums.get(name) else name


def _help(node: ast.expr | None) -> str:
    try:
        metadata = ast.literal_eval(node) if node is not None else {}
    except ValueError:  # the help text is put together by code
        return ""
    return " ".join(str(metadata.get("help", "")).split())


def check_training(values: Mapping[str, Any], homes: Mapping[str, str]) -> Iterator[KeyProblem]:
    """What is wrong with the names and values of a `training:` section. homes: key -> the section it belongs to."""
    fields = training_fields()
    for name, value in values.items():
        path = ("training", name)
        if name in DECIDED:
            # push_to_hub: false asks for nothing
            if not (value is False and name in fields and fields[name].default == "False"):
                yield KeyProblem(path, "bertkit decides this", _answer(DECIDED[name], name, value))
        elif name in fields:
            yield from _check_value(path, fields[name], value)
        elif name in REMOVED:
            yield KeyProblem(path, "the installed transformers has no such field", _answer(REMOVED[name], name, value))
        else:
            yield unknown_key(path, fields.keys() - DECIDED.keys(), homes)


def _answer(answer: str, name: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else short_repr(value)
    return answer.replace("{name}", name).replace("{value}", text)


def _check_value(path: tuple[str, str], field: TrainingField, value: Any) -> Iterator[KeyProblem]:
    wanted = [_IN_WORDS[name] for name in field.types]
    texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    if not _fits(value, field.types):
        what = f"expected {' or '.join(wanted)}, found {describe(value)}"
        yield KeyProblem(
            path, what, f"known here: {', '.join(field.choices)}" if field.choices else spelling_hint(value, wanted)
        )
    elif field.choices and (wrong := [text for text in texts if text and text not in field.choices]):
        meant = did_you_mean(wrong[0], field.choices)
        yield KeyProblem(
            path, f"unknown value {short_repr(wrong[0])}{meant}", f"known here: {', '.join(field.choices)}"
        )
    elif isinstance(value, int | float) and (bound := _bound(field.name, value)):
        yield KeyProblem(path, f"{bound}, found {value}")


def _fits(value: Any, types: Sequence[str]) -> bool:
    if not types:  # an annotation that holds none of the types that YAML has
        return True
    if value is None or (value is False and "bool" not in types):
        return str(value) in types
    if isinstance(value, list):
        return "list" in types and all(isinstance(each, str) for each in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" in types or "float" in types
    return type(value).__name__ in types


def _bound(name: str, value: float) -> str:
    if name in _POSITIVE and value <= 0:
        return "must be more than 0"
    if name in _NOT_NEGATIVE and value < 0:
        return "must be at least 0"
    return "must be less than 1" if name in _SHARE and value >= 1 else ""


def training_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the `training:` section."""
    fields = [field for field in training_fields().values() if field.name not in DECIDED]
    return {
        "type": "object",
        "properties": {f.name: _schema(f) for f in fields},
        "additionalProperties": False,
    }


def _schema(field: TrainingField) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [{"type": _IN_JSON[name]} for name in field.types]
    for kind in kinds:
        if kind["type"] == "string" and field.choices:
            kind["enum"] = [*field.choices]
        if kind["type"] == "array":
            kind["items"] = {"type": "string"}
    shape = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return {**shape, "description": field.about} if field.about else shape
