"""What bertkit reads from a model's config.json, and how many tokens the model reads."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bertkit.errors import ModelError, RecipeError
from bertkit.models.encoder import Encoder, unused_positions
from bertkit.models.untrusted import read_object
from bertkit.sections import Batching
from bertkit.tasks import get_task, task_names
from bertkit.tasks.base import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MIN_LENGTH = 8  # tokens of a window
EDITED = "It was edited, or written by another version of bertkit: restore the file, or train again."
LOWER = "Lower it. Tasks with `overflow: window` read longer texts in several windows."


class Settings(BaseModel):
    """The section `bertkit` of a model's config.json. version: None for a model not trained by bertkit."""

    model_config = ConfigDict(frozen=True, strict=True)
    version: str | None = None
    task: dict[str, Any]
    max_length: Annotated[int, Field(ge=MIN_LENGTH)] | None = None
    precision: Literal["auto", "fp32", "int8"] = "auto"  # int8: of an exported model
    batch_size: Annotated[int, Field(gt=0)] | Batching = 32
    columns: dict[str, str | list[str]] = {}
    onnx: Annotated[list[str], Field(min_length=1)] | None = (
        None  # an exported model: the outputs the task reads
    )
    package: str | None = None  # name and version, of a task that is not ours

    def kind(self, source: str) -> type[Task]:
        """The class of the task. Raises ModelError where it is missing. source: as for `read_settings`."""
        try:
            return get_task(self.task["name"], self.package)
        except RecipeError as error:
            raise ModelError(problem._replace(where=source) for problem in error.problems) from None


def read_settings(folder: Path, task: str | None, source: str) -> Settings:
    """The settings of a model folder; for a model not trained by bertkit, the defaults of `task`. Raises
    ModelError.

    source: what the model is called in messages, as the user named it.
    """
    section = read_object(folder / "config.json").get("bertkit")
    if section is None:
        if task is None:
            fix = f"Pass its task, one of {', '.join(task_names())}."
            raise ModelError(source, "was not trained by bertkit", fix)
        return Settings(task={"name": task})
    try:
        settings = Settings.model_validate(section)
    except ValidationError as error:
        raise damaged_settings(folder, error) from error
    name = settings.task.get("name")
    if not isinstance(name, str) or settings.version is None:
        missing = "task" if settings.version else "version"
        raise ModelError(f"{folder}/config.json", f"its section `bertkit` has no {missing}", EDITED)
    if task is not None and task != name:
        raise ModelError(source, f"the model was trained for {name}, not {task}", "Leave out the task.")
    return settings


def damaged_settings(folder: Path, error: ValidationError, section: str = "bertkit") -> ModelError:
    """What to raise where this section of config.json is not valid."""
    first = error.errors()[0]
    path = ".".join([section, *map(str, first["loc"])])
    return ModelError(
        f"{folder}/config.json",
        f"{path}: {first['msg']}",
        EDITED,
    )


def resolve_max_length(encoder: Encoder, tokenizer: PreTrainedTokenizerBase, requested: int | None) -> int:
    """Tokens per window: as requested, or as many as model and tokenizer allow.

    Raises ModelError, also where the tokenizer has or adds tokens that the model cannot read.
    """
    folder = str(encoder.folder)
    config = encoder.config.to_dict() if encoder.config else read_object(encoder.folder / "config.json")
    # of an encoder–decoder, both configs; otherwise the one
    parts = map(config.get, ("encoder", "decoder"))
    halves = [part for part in parts if isinstance(part, dict)] or [config]
    config = halves[0]
    # A post-processor has rules of its own for single texts and for pairs, and may add tokens that no
    # vocabulary has.
    read = {
        name: tokenizer(*texts, verbose=False)["input_ids"]
        for name, texts in {"the text `a`": ["a"], "the pair `a`, `a`": ["a", "a"]}.items()
    }
    rows = config.get("vocab_size")
    last = max(chain(tokenizer.get_vocab().values(), *read.values()))
    if isinstance(rows, int) and last >= rows:
        raise ModelError(
            folder,
            f"its tokenizer has token ids up to {last:,}, but the model has embeddings for {rows:,}",
            "Use the tokenizer saved with these weights.",
        )
    try:
        positions = min(
            int(half.get("max_position_embeddings", 512)) - unused_positions(half) for half in halves
        )
        limit = int(min(positions, tokenizer.model_max_length))
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(
            folder,
            f"max_position_embeddings, pad_token_id or model_max_length is not a number of tokens: {error}",
            "Correct it, or download the model again.",
        ) from error
    if limit < MIN_LENGTH:
        raise ModelError(
            folder, f"it reads at most {limit} tokens; at least {MIN_LENGTH} are needed", "Use another model."
        )
    if requested is not None and requested > limit:
        raise ModelError("model.max_length", f"{requested}, but {folder} reads at most {limit} tokens", LOWER)
    for name, ids in read.items():
        if len(ids) > (requested or limit):
            raise ModelError(
                folder,
                f"its tokenizer makes {len(ids):,} tokens of {name}; a window holds {requested or limit}",
                "Its post-processor is damaged or hostile; download the model again.",
            )
    return requested or limit
