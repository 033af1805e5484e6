"""The `training:` section: bertkit's own keys, and the TrainingArguments of the installed transformers.

That class is read from its source, because importing transformers takes seconds. Only the fields that bertkit decides
itself are listed here.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import Field, create_model

from bertkit.errors import UserError
from bertkit.sections import Section, TrainingKeys
from bertkit.text import short_repr
from bertkit.validation import KeyProblem, unknown_key, validate

_SECRET = "; never write secrets into a recipe"
_HUB = "remove it; `bertkit push RUN` uploads a run"


# fields of TrainingArguments that a recipe cannot set -> what to do instead
DECIDED = {
    name: answer
    for answer, names in {
        "remove it, and name the folder on the command line: --output-dir RUN": "output_dir",
        "remove it, and resume on the command line: --output-dir RUN --resume": "resume_from_checkpoint",
        "remove it; the commands `bertkit train`, `evaluate` and `predict` decide it": "do_train do_eval do_predict",
        _HUB: "push_to_hub hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
        _HUB + _SECRET: "hub_token",
        "remove it, and write `seeds: [{value}]` at the top of the recipe": "seed data_seed",
        "remove it, or write checkpoints: best or none; no run resumes without the optimizer": "save_only_model",
        "remove it; the task, the device and bertkit's trainer settle it": (
            "train_sampling_strategy length_column_name remove_unused_columns label_names prediction_loss_only "
            "batch_eval_metrics include_for_metrics eval_do_concat_batches eval_accumulation_steps "
            "eval_use_gather_object dataloader_drop_last dataloader_in_order dataloader_persistent_workers "
            "dataloader_multiprocessing_context accelerator_config average_tokens_across_devices bf16_full_eval "
            "fp16_full_eval enable_jit_checkpoint debug logging_nan_inf_filter use_liger_kernel liger_kernel_config "
            "use_cache parallelism_config local_rank ignore_data_skip"
        ),
        "remove it, and start the run with torchrun, which trains on every GPU": "deepspeed fsdp fsdp_config",
    }.items()
    for name in names.split()
}

# fields that the installed transformers may lack or deprecate -> today's; others get the most similar name
_RENAMED = {
    "evaluation_strategy": "training.eval_strategy",
    "gradient_checkpointing": "training.activation_checkpointing",
    "gradient_checkpointing_kwargs": "training.activation_checkpointing_kwargs",
    "no_cuda": "training.use_cpu",
    "warmup_ratio": "training.warmup_steps",
}
_ALL = "`bertkit show --schema` lists the keys, those of the installed transformers.TrainingArguments"

_SHARE = ("label_smoothing_factor", "adam_beta1", "adam_beta2")
# bound of pydantic -> fields
_BOUNDS = {
    ("gt", 0): (
        *("learning_rate", "num_train_epochs", "per_device_train_batch_size", "per_device_eval_batch_size"),
        *("gradient_accumulation_steps", "adam_epsilon", "logging_steps", "save_steps", "eval_steps"),
        *("save_total_limit", "torch_empty_cache_steps"),
    ),
    ("ge", 0): (*_SHARE, "weight_decay", "warmup_steps", "max_grad_norm", "dataloader_num_workers", "eval_delay"),
    ("lt", 1): _SHARE,
}


class TrainingField(NamedTuple):
    """A field of TrainingArguments: annotation, default and help as in the source, "" where they are computed."""

    annotation: str
    default: str
    about: str


@functools.cache
def training_fields() -> Mapping[str, TrainingField]:
    """Name -> field of the installed transformers.TrainingArguments, without importing it, and bertkit's own keys.

    Without those that transformers is going to remove. Raises UserError if transformers is not installed.
    """
    own = {
        name: TrainingField(str(field.annotation), repr(field.default), field.description or "")
        for name, field in TrainingKeys.model_fields.items()
    }
    stated = {
        node.target.id: TrainingField(ast.unparse(node.annotation), *_default_and_help(node.value))
        for node in _classes()["TrainingArguments"].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }
    return own | {name: field for name, field in stated.items() if "will be removed in v" not in field.about}


@functools.cache
def _classes() -> Mapping[str, ast.ClassDef]:
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        raise UserError("transformers is not installed; install bertkit with pip, which brings it")
    files = ("trainer_utils.py", "debug_utils.py", "training_args.py")
    bodies = [ast.parse(Path(spec.origin).with_name(file).read_text(encoding="utf-8")).body for file in files]
    return {node.name: node for body in bodies for node in body if isinstance(node, ast.ClassDef)}


def _default_and_help(value: ast.expr) -> tuple[str, str]:
    if not isinstance(value, ast.Call):
        return ast.unparse(value), ""
    words = {word.arg: word.value for word in value.keywords}
    try:
        about = " ".join(ast.literal_eval(words["metadata"])["help"].split())
    except (KeyError, ValueError):
        about = ""
    return ast.unparse(words["default"]) if "default" in words else "", about


@functools.cache
def _section() -> type[Section]:
    """The fields that a recipe may set, as a model."""
    fields: dict[str, Any] = {
        name: (_type(name, field), Field(None, description=field.about or None))
        for name, field in training_fields().items()
        if name not in {*DECIDED, *TrainingKeys.model_fields}
    }
    return create_model("Training", __base__=TrainingKeys, **fields)


def _type(name: str, field: TrainingField) -> Any:
    """What YAML may hold for an annotation such as `SchedulerType | str`, Optional[int] or list[str]."""
    words = re.findall(r"\w+", field.annotation)
    choices = [choice for word in words for choice in _enum_values(word)] + ["muon"] * (name == "optim")
    text: Any = cast(Any, Literal)[("", *choices) if field.default == "''" else tuple(choices)] if choices else str
    bounds: dict[str, Any] = {bound: value for (bound, value), names in _BOUNDS.items() if name in names}
    types: dict[str, Any] = {
        **{"int": Annotated[int, Field(**bounds)], "float": Annotated[float, Field(**bounds)], "bool": bool},
        **{"str": text, "list": cast(Any, list)[text], "dict": dict[str, Any]},
        **{"None": None, "Optional": None, "False": Literal[False]},
        **{word: text for word in words if _enum_values(word)},
    }
    outer = re.findall(r"\w+", re.sub(r"\b(list|dict)\[.*?\]", r"\1", field.annotation))
    return reduce(or_, [types[word] for word in outer if word in types] or [Any])


def _enum_values(name: str) -> list[str]:
    """The texts of an enum of transformers; of other names, none."""
    node = _classes().get(name)
    if node is None or not any(isinstance(base, ast.Name) and base.id.endswith("Enum") for base in node.bases):
        return []
    values = [each.value for each in node.body if isinstance(each, ast.Assign)]
    return [str(value.value) for value in values if isinstance(value, ast.Constant)]


def check_training(values: Mapping[str, Any], homes: Mapping[str, str]) -> Iterator[KeyProblem]:
    """What is wrong with the names and values of a `training:` section. homes: key -> the section it belongs to."""
    fields, section = training_fields(), _section()
    for name, value in values.items():
        path, text = ("training", name), str(value).lower() if isinstance(value, bool) else short_repr(value)
        if name in DECIDED and name in fields and isinstance(value, bool) and fields[name].default == str(value):
            continue  # push_to_hub: false asks for nothing
        if name in DECIDED:
            yield KeyProblem(path, "bertkit decides this", DECIDED[name].replace("{value}", text))
        elif name not in fields:
            problem = unknown_key(path, section.model_fields, {**homes, **_RENAMED})
            yield problem._replace(fix=problem.fix or _ALL)
    known = {name: value for name, value in values.items() if name in section.model_fields}
    yield from (each._replace(path=("training", *each.path)) for each in validate(section, known))


def training_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the `training:` section."""
    schema = _section().model_json_schema()
    fields = {
        name: {k: v for k, v in field.items() if k not in ("default", "title")}
        for name, field in schema["properties"].items()
    }
    return {"type": "object", "properties": fields, "additionalProperties": False}
