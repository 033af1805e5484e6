"""The `training:` section, checked against the TrainingArguments of the installed transformers.

The class is read from its source, because importing transformers takes seconds. Only the fields that bertkit decides
itself, and those of transformers 4 with their replacement, are listed here.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.errors import UserError
from bertkit.text import short_repr
from bertkit.validation import KeyProblem, describe, did_you_mean, spelling_hint, unknown_key

_SECRET = "; never write secrets into a recipe"
_HUB = "remove it; `bertkit push RUN` uploads a run"
_PUSH = "remove it; `bertkit push RUN OWNER/NAME` names the repository"


def _by_name(answers: Mapping[str, str]) -> Mapping[str, str]:
    return {name: answer for answer, names in answers.items() for name in names.split()}


# fields of TrainingArguments that a recipe cannot set: what to do instead -> fields
DECIDED = _by_name(
    {
        "remove it, and name the folder on the command line: --output-dir RUN": "output_dir",
        "remove it, and resume on the command line: --output-dir RUN --resume": "resume_from_checkpoint",
        "remove it; a resumed run repeats the uninterrupted one bit for bit": "ignore_data_skip",
        "remove it; the commands `bertkit train`, `evaluate` and `predict` decide it": "do_train do_eval do_predict",
        _HUB: "push_to_hub hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
        _HUB + _SECRET: "hub_token",
        "remove it, and write `seeds: [{value}]` at the top of the recipe": "seed data_seed",
        "remove it; bertkit batches rows of similar length": "train_sampling_strategy length_column_name",
        "remove it; the task decides which columns the model gets": "remove_unused_columns label_names",
        "remove it; evaluation keeps only what decoding needs of each batch": (
            "prediction_loss_only batch_eval_metrics include_for_metrics eval_do_concat_batches eval_accumulation_steps"
        ),
        "remove it; bertkit drops no row": "dataloader_drop_last",
        "write activation_checkpointing: {value}": "gradient_checkpointing",
        "write activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
        "remove it; it takes a Python object, which a recipe cannot name": "parallelism_config",
        "remove it; torchrun sets it": "local_rank",
    }
)

# fields of transformers 4 that version 5 does not have: what to write instead -> fields
REMOVED = _by_name(
    {
        "remove it": "mp_parameters past_index ray_scope use_legacy_prediction_loop",
        "write optim: adafactor": "adafactor",
        "write accelerator_config: {{name}: {value}}": "dispatch_batches split_batches",
        "write eval_strategy: {value}": "evaluation_strategy",
        "write fp16: true or bf16: true; there is one backend": "fp16_backend half_precision_backend",
        "write fp16: true or bf16: true; Apex is no longer supported": "fp16_opt_level",
        "write fsdp_config: {min_num_params: {value}}": "fsdp_min_num_params",
        "write fsdp_config: {transformer_layer_cls_to_wrap: [{value}]}": "fsdp_transformer_layer_cls_to_wrap",
        "remove it; bertkit always batches by length": "group_by_length",
        "remove it; evaluation keeps only what decoding needs of each batch": "include_inputs_for_metrics",
        "write include_num_input_tokens_seen: {value}": "include_tokens_per_second",
        "write torch_compile: true": "jit_mode_eval",
        "remove it; metrics.jsonl of the run is the log, and the environment variable TENSORBOARD_LOGGING_DIR "
        "sets TensorBoard's folder": "logging_dir",
        "write use_cpu: {value}": "no_cuda",
        "remove it; bertkit never overwrites a run: use another --output-dir, or --resume": "overwrite_output_dir",
        "write per_device_train_batch_size: {value}": "per_gpu_train_batch_size",
        "write per_device_eval_batch_size: {value}": "per_gpu_eval_batch_size",
        _PUSH: "push_to_hub_model_id push_to_hub_organization",
        _PUSH + _SECRET: "push_to_hub_token",
        "remove it; models are always saved as safetensors": "save_safetensors",
        "write fsdp and fsdp_config": "sharded_ddp",
        "write torch_compile_backend: {value}": "torchdynamo",
        "write debug: tpu_metrics_debug": "tpu_metrics_debug",
        "remove it; the launcher sets the number of cores": "tpu_num_cores",
        "remove it; PyTorch itself has these kernels": "use_ipex",
        "remove it; an Apple GPU is used if there is one": "use_mps_device",
        "write warmup_steps: {value}; a number below 1 is a fraction of all steps": "warmup_ratio",
    }
)

_POSITIVE = (
    *("learning_rate", "num_train_epochs", "per_device_train_batch_size", "per_device_eval_batch_size"),
    *("gradient_accumulation_steps", "adam_epsilon", "logging_steps", "save_steps", "eval_steps", "save_total_limit"),
    "torch_empty_cache_steps",
)
_SHARE = ("label_smoothing_factor", "adam_beta1", "adam_beta2")
_NOT_NEGATIVE = (*_SHARE, "weight_decay", "warmup_steps", "max_grad_norm", "dataloader_num_workers", "eval_delay")

# type of an annotation -> its name in messages, and in JSON Schema
_TYPES = {
    "int": ("a whole number", "integer"),
    "float": ("a number", "number"),
    "bool": ("true or false", "boolean"),
    "False": ("false", "boolean"),
    "str": ("text", "string"),
    "list": ("a list of texts", "array"),
    "dict": ("a mapping", "object"),
    "None": ("null", "null"),
}


class TrainingField(NamedTuple):
    """A field of TrainingArguments. types: keys of _TYPES; choices: the texts it accepts, if they are fixed."""

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
    values = [each.value for each in node.body if isinstance(each, ast.Assign)]
    return tuple(each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str))


def _read_field(node: ast.stmt, enums: Mapping[str, tuple[str, ...]]) -> Iterator[TrainingField]:
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.value is None:
        return
    default, about = ast.unparse(node.value), ""
    if isinstance(node.value, ast.Call):
        words = {word.arg: word.value for word in node.value.keywords if word.arg}
        default = ast.unparse(words["default"]) if "default" in words else ""
        about = _help(words.get("metadata"))
    # such as `SchedulerType | str`, Optional[int], Literal[False], list[str]; the items of a list have no type here
    annotation = ast.unparse(node.annotation)
    names = re.findall(r"\w+", re.sub(r"\b(list|dict)\[.*?\]", r"\1", annotation))
    types = ("None" if name == "Optional" else "str" if enums.get(name) else name for name in names)
    choices = tuple(value for name in re.findall(r"\w+", annotation) for value in enums.get(name, ()))
    yield TrainingField(node.target.id, tuple(dict.fromkeys(t for t in types if t in _TYPES)), choices, default, about)


def _help(node: ast.expr | None) -> str:
    try:
        metadata = ast.literal_eval(node) if node is not None else {}
    except ValueError:  # the help text is computed
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
    wanted = [_TYPES[name][0] for name in field.types]
    texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    known = f"known here: {', '.join(field.choices)}" if field.choices else ""
    if not _fits(value, field.types):
        what = f"expected {' or '.join(wanted)}, found {describe(value)}"
        yield KeyProblem(path, what, known or spelling_hint(value, wanted))
    elif known and (wrong := [text for text in texts if text and text not in field.choices]):
        what = f"unknown value {short_repr(wrong[0])}{did_you_mean(wrong[0], field.choices)}"
        yield KeyProblem(path, what, known)
    elif isinstance(value, int | float) and (bound := _bound(field.name, value)):
        yield KeyProblem(path, f"{bound}, found {value}")


def _fits(value: Any, types: Sequence[str]) -> bool:
    if not types:  # the annotation has none of the types of YAML
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
    properties = {field.name: _schema(field) for field in training_fields().values() if field.name not in DECIDED}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _schema(field: TrainingField) -> dict[str, Any]:
    more: dict[str, dict[str, Any]] = {"array": {"items": {"type": "string"}}}
    if field.choices:
        more["string"] = {"enum": [*field.choices]}
    kinds = [{"type": kind, **more.get(kind, {})} for kind in (_TYPES[name][1] for name in field.types)]
    shape = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return {**shape, "description": field.about} if field.about else shape
