"""The `training:` section: bertkit's own keys, and the TrainingArguments of the installed transformers.

Importing that class takes seconds, so that what a recipe needs of it is cached. Only the fields that bertkit
decides itself are listed here.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import Field, create_model

from bertkit.cache import cache_root, sha256_of_json
from bertkit.errors import UserError
from bertkit.files import sha256, write_text
from bertkit.sections import Section, TrainingKeys
from bertkit.text import Json, Record, short_repr
from bertkit.validation import KeyProblem, unknown_key, validate

_SECRET = " Never write secrets into a recipe."
_HUB = "Remove it; `bertkit push RUN OWNER/MODEL` uploads a run."
WARMUP = "Use `training.warmup_steps`: a value below 1 is a share of all steps."


# fields of TrainingArguments that a recipe cannot set -> what to do instead
DECIDED = {
    name: answer
    for answer, names in {
        "Remove it; the folder is an argument of train.": "output_dir",
        "Remove it; whether to resume is an argument of train.": "resume_from_checkpoint",
        "Remove it; the command decides it: `bertkit train`, `evaluate` or `predict`.": (
            "do_train do_eval do_predict"
        ),
        _HUB: "push_to_hub hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
        _HUB + _SECRET: "hub_token",
        "Remove it, and write `seeds: [{value}]` at the top of the recipe.": "seed data_seed",
        (
            "Remove it, or write checkpoints: best or none; without the optimizer no run resumes."
        ): "save_only_model",
        "Remove it; the task, the device and bertkit's trainer settle it.": (
            "train_sampling_strategy length_column_name remove_unused_columns label_names "
            "prediction_loss_only batch_eval_metrics include_for_metrics eval_do_concat_batches "
            "eval_accumulation_steps eval_use_gather_object dataloader_drop_last dataloader_in_order "
            "dataloader_persistent_workers dataloader_multiprocessing_context accelerator_config "
            "average_tokens_across_devices bf16_full_eval fp16_full_eval enable_jit_checkpoint debug "
            "logging_nan_inf_filter use_liger_kernel liger_kernel_config use_cache parallelism_config "
            "local_rank ignore_data_skip save_on_each_node"
        ),
        "Remove it, and start with torchrun, which trains on every GPU.": "deepspeed fsdp fsdp_config",
    }.items()
    for name in names.split()
}

# field -> its name before transformers 5.23
EARLIER = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}

# fields that the installed transformers may lack or deprecate -> today's; others get the most similar name
_RENAMED = {
    "evaluation_strategy": "training.eval_strategy",
    "group_by_length": "Remove it; batches are always of rows of similar length.",
    **{before: f"training.{name}" for name, before in EARLIER.items()},
    "no_cuda": "training.use_cpu",
    "warmup_ratio": WARMUP,
}
_ALL = "The JSON Schema of recipes lists the keys, those of the installed transformers.TrainingArguments."

# bound of pydantic -> fields
_BOUNDS = {
    ("gt", 0): (
        "learning_rate num_train_epochs per_device_train_batch_size per_device_eval_batch_size "
        "gradient_accumulation_steps adam_epsilon logging_steps save_steps eval_steps "
        "save_total_limit torch_empty_cache_steps"
    ),
    ("ge", 0): (
        "label_smoothing_factor adam_beta1 adam_beta2 weight_decay warmup_steps max_grad_norm "
        "dataloader_num_workers eval_delay"
    ),
    ("lt", 1): "label_smoothing_factor adam_beta1 adam_beta2",
}


class TrainingField(NamedTuple):
    """A field of TrainingArguments. shape: its type as JSON, see `_shape`. about: its help."""

    shape: Any
    default: Any
    about: str


@functools.cache
def training_fields() -> Mapping[str, TrainingField]:
    """Name -> field of the installed transformers.TrainingArguments, and bertkit's own keys, without their
    shape.

    Without those that transformers is going to remove. Raises UserError if transformers is not installed.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        raise UserError("", "transformers is not installed", "pip install bertkit")
    sources = [Path(__file__), *sorted(Path(spec.origin).parent.glob("train*.py"))]
    libraries = [name for name in ("accelerate", "torch", "transformers") if importlib.util.find_spec(name)]
    key = [*map(sha256, sources), *map(version, libraries)]
    cached = cache_root() / f"training-arguments-{sha256_of_json(key)[:32]}.json"
    try:
        fields = _read(cached.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, AttributeError):  # it is not cached yet, or damaged
        text = json.dumps(_describe_class(), default=str)
        with suppress(OSError):  # the class is imported again next time
            write_text(cached, text)
        fields = _read(text)
    keys = TrainingKeys.model_fields.items()
    return {
        name: TrainingField(None, field.default, field.description or "") for name, field in keys
    } | fields


def _read(text: str) -> dict[str, TrainingField]:
    return {name: TrainingField(*field) for name, field in json.loads(text).items()}


def _describe_class() -> dict[str, TrainingField]:
    from transformers import TrainingArguments

    hints = get_type_hints(TrainingArguments)
    today = {before: name for name, before in EARLIER.items()}
    fields = dict[str, TrainingField]()
    for field in dataclasses.fields(TrainingArguments):
        about = " ".join(field.metadata.get("help", "").split())
        if field.init and "will be removed in v" not in about:
            factory: Any = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            name = today.get(field.name, field.name)
            fields[name] = TrainingField(_shape(hints[field.name]), default, about)
    return fields


def _shape(hint: Any) -> Any:
    """A type as JSON: the name of a plain one, or a list of a kind and its arguments, which are shapes or
    values.

    An enum is the choice of its values, and no other text where the type allows text too. "any": YAML cannot
    write it.
    """
    kind = get_origin(hint) or hint
    arguments = get_args(hint)
    if kind is Literal:
        return ["choice", *arguments]
    if kind in (Union, UnionType):
        enums = any(isinstance(part, type) and issubclass(part, Enum) for part in arguments)
        return ["union", *(_shape(part) for part in arguments if not (enums and part is str))]
    if kind in (bool, float, int, str, NoneType):
        return str(kind.__name__)
    if not isinstance(kind, type):
        return "any"
    if issubclass(kind, Enum):
        return ["choice", *(member.value for member in kind)]
    if issubclass(kind, Mapping):
        return ["dict", "str", _shape(arguments[-1] if arguments else Any)]
    return ["list", _shape(arguments[0] if arguments else Any)] if issubclass(kind, Collection) else "any"


@functools.cache
def _section() -> type[Section]:
    """The fields that a recipe may set, as a model."""
    fields: Json = {
        name: (_type(name, field.shape), Field(None, description=field.about or None))
        for name, field in training_fields().items()
        if name not in {*DECIDED, *TrainingKeys.model_fields}
    }
    return create_model("Training", __base__=TrainingKeys, **fields)


def _type(name: str, shape: Any) -> Any:
    """What YAML may hold for a field of this shape."""
    if isinstance(shape, str):
        bounds: Json = {bound: value for (bound, value), names in _BOUNDS.items() if name in names.split()}
        numbers = {"float": Annotated[float, Field(**bounds)], "int": Annotated[int, Field(**bounds)]}
        return {"bool": bool, "str": str, "NoneType": None, **numbers}.get(shape, Any)
    kind, *arguments = shape
    if kind == "choice":
        return _KINDS[kind][(*arguments, *["muon"] * (name == "optim"))]
    return _KINDS[kind][tuple(_type(name, argument) for argument in arguments)]


_KINDS: Json = {"choice": Literal, "union": Union, "list": list, "dict": dict}


def check_training(values: Record, homes: Mapping[str, str]) -> Iterator[KeyProblem]:
    """What is wrong with the names and values of a `training:` section. homes: key -> the section it belongs
    to.
    """
    fields = training_fields()
    section = _section()
    for name, value in values.items():
        path = ("training", name)
        text = str(value).lower() if isinstance(value, bool) else short_repr(value)
        if name in DECIDED and name in fields and isinstance(value, bool) and fields[name].default is value:
            continue  # push_to_hub: false asks for nothing
        if name in DECIDED:
            yield KeyProblem(path, "bertkit decides this", DECIDED[name].replace("{value}", text))
        elif name not in fields:
            problem = unknown_key(path, section.model_fields, {**homes, **_RENAMED})
            yield problem._replace(fix=problem.fix or _ALL)
    fitting = {name: value for name, value in values.items() if name in section.model_fields}
    for problem in validate(section, fitting):
        yield problem._replace(path=("training", *problem.path))


def training_schema() -> Json:
    """The JSON Schema (2020-12) of the `training:` section."""
    schema = _section().model_json_schema()
    fields = schema["properties"]
    for field in fields.values():
        field.pop("default", None)
        field.pop("title", None)
    return {"type": "object", "properties": fields, "additionalProperties": False}
