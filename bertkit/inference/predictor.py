"""From a model folder to answers: the only way to answer, whatever asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bertkit.data.schema import Answer
from bertkit.data.values import read_inputs, replace_surrogates
from bertkit.encoding.padding import BatchSize, Tokens, batches_by_length, fills, pad
from bertkit.errors import DataError, ModelError, Problem, RowsError, UserError
from bertkit.files import read_json
from bertkit.inference.onnx_session import OnnxModel, open_model
from bertkit.models.device import Precision, best_device, resolve_precision
from bertkit.models.encoder import Encoder, find, load_config, load_tokenizer
from bertkit.tasks import TASKS, get_task, vectors
from bertkit.tasks.base import Task

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from bertkit.encoding.padding import Arrays
    from bertkit.tasks.base import Batch, Predict

logger = logging.getLogger(__name__)

SHORTEST = 8  # word pieces of a window
Row = str | Mapping[str, Any]
Spread = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


def predictor(
    task: Task,
    device: torch.device,
    precision: Precision,
    batch_size: BatchSize,
    *,
    keep: Callable[[Any, Batch], Sequence[Any]] | None = None,
    spread: Spread = map,
) -> Callable[[Any], Predict]:
    """A model -> the function that `Task.answer` is given: features -> what the task keeps of them, in their order.

    keep: outputs and batch -> what else to keep than the task's own, an item per feature.
    spread: who runs which batch; `map`: this process runs all, `training.sharding.spread`: each process a part.
    Features are batched by length, longest first, so that memory runs out at once or never.
    """
    import torch

    def predict_with(model: Any) -> Predict:
        def run(arrays: Arrays) -> Any:
            batch = {name: torch.from_numpy(values).to(device) for name, values in arrays.items()}
            outputs = task.forward(model, batch)
            return keep(outputs, batch) if keep else task.reduced(outputs, batch)

        def predict(features: Dataset) -> Sequence[Any]:
            model.eval()
            with (
                torch.inference_mode(),
                torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"),
            ):
                return in_batches(task, batch_size, run, task.kept if keep is None else list, spread)(features)

        return predict

    return predict_with


def in_batches(
    task: Task,
    batch_size: BatchSize,
    run: Callable[[Arrays], Any],
    kept: Callable[[Any], Sequence[Any]],
    spread: Spread = map,
) -> Predict:
    """Features -> an item of each: `kept` of what `run` makes of their batches."""
    fill = fills(task.tokenizer, task.padding)

    def predict(features: Dataset) -> Sequence[Any]:
        items: list[Any] = [None] * len(features)
        inputs = features.select_columns([c for c in features.column_names if c not in ("labels",)])
        batches = batches_by_length(features["length"][:], batch_size)
        found = spread(lambda rows: run(pad(task.examples(inputs, rows.tolist()), fill)), batches)
        for rows, own in zip(batches, found, strict=True):
            for row, item in zip(rows, kept(own), strict=True):
                items[row] = item
        return items

    return predict


@dataclass(frozen=True)
class Predictor:
    """A trained model and its task: answers for texts, rows, streams of rows, and scores for labelled rows.

    device: None where the model runs in ONNX Runtime.
    columns: canonical column -> column of the user's rows, as the recipe mapped them.
    spread: who runs which batch, as for `predictor`.
    """

    task: Task
    model: Any  # transformers' PreTrainedModel, or OnnxModel
    device: Any  # torch.device | None
    precision: Precision
    batch_size: BatchSize
    columns: Mapping[str, str]
    spread: Spread = map

    @property
    def predict_features(self) -> Predict:
        """Features -> what the task keeps of them, in their order."""
        if isinstance(self.model, OnnxModel):
            exported = self.model
            return in_batches(self.task, self.batch_size, exported, self.task.kept, self.spread)
        return predictor(self.task, self.device, self.precision, self.batch_size, spread=self.spread)(self.model)

    @property
    def backend(self) -> Literal["torch", "onnx"]:
        """What computes the model's outputs; all else is the same."""
        return "onnx" if isinstance(self.model, OnnxModel) else "torch"

    def __call__(self, rows: Row | Sequence[Row] | None = None, /, **row: Any) -> Answer | list[Answer]:
        """The answer to one text or row, or the list of answers to several; or to `question=…, context=…`."""
        if row or rows is None:
            if rows is not None:
                raise DataError(Problem("", f"rows, or the columns of one ({', '.join(row)}), but not both"))
            rows = row
        if isinstance(rows, str | Mapping):
            return next(self.stream([rows]))
        return list(self.stream(rows))

    def encode(self, texts: Sequence[str], side: Literal["text", "query", "document"] = "text") -> np.ndarray:
        """The vectors of these texts, `(texts, size)` fp32, with the model's own prefix for queries or documents.

        Raises UserError where the model's task gives no vectors.
        """
        import numpy as np
        from datasets import Dataset

        if not self.task.gives_embeddings:
            what = f"a model for {self.task.name} gives no vectors of texts"
            raise UserError(Problem("the model", what, "bertkit.Features takes the vectors of any encoder's layers."))
        parts, cut = [np.empty((0, 0), dtype=np.float32)], 0
        for start in range(0, len(texts), self.task.chunk_size):
            part: dict[str, list[str]] = {
                side: [replace_surrogates(text) for text in texts[start : start + self.task.chunk_size]]
            }
            features = Dataset.from_dict(
                vectors.encode_sides(self.task.tokenizer, part, self.task.options, self.task.max_length)
            )
            cut += sum(lost > 0 for lost in features["lost"])
            parts.append(vectors.stacked(self.predict_features(features)))
        if cut:
            logger.warning("%d of %d texts are cut at %d word pieces", cut, len(texts), self.task.max_length)
        return np.concatenate(parts[1:] or parts)

    def stream(self, rows: Iterable[Row]) -> Iterator[Answer]:
        """Answers in the rows' order, in constant memory. Raises DataError on a row without the task's columns."""
        if type(rows).__name__ == "DataFrame":  # it would be read as the names of its columns
            raise DataError(Problem("", "a DataFrame, where rows are expected", 'Write frame.to_dict("records").'))
        if not isinstance(rows, Iterable):
            raise DataError(Problem("", f"expected texts or rows, found {rows!r:.60}"))
        source, start = iter(rows), 0
        while chunk := list(islice(source, self.task.chunk_size)):
            try:
                yield from self.task.answer(self.canonical(chunk, start), self.predict_features)
            except RowsError as error:
                raise error.renumbered(partial(add, start)) from None
            start += len(chunk)

    def canonical(self, rows: Sequence[Row], start: int) -> Dataset:
        """The task's input columns of these rows, under their canonical names.

        start: how many rows came before, for messages. Raises DataError on rows without the columns.
        """
        from datasets import Dataset

        return Dataset.from_dict(read_inputs(rows, self.task.schema, self.task.inputs, self.columns, start))


def model_folder(source: str | Path, revision: str | None = None) -> Path:
    """The model folder of a run folder, a model folder, or a Hub id. Raises ModelError."""
    path = Path(source).expanduser()
    for folder in (path / "model", path):
        if (folder / "config.json").is_file():
            return folder
    if path.exists():
        if (path / "recipe.yaml").is_file():
            what, fix = (
                "this run has no model yet",
                f"Finish it: bertkit train {path}/recipe.yaml --output-dir {path} --resume",
            )
            raise ModelError(Problem(str(source), what, fix))
        raise ModelError(Problem(str(source), "neither a run nor a model folder", "It has no config.json."))
    if str(source).count("/") > 1 or str(source).startswith((".", "/", "~")):
        raise ModelError(Problem(str(source), "no such folder"))
    from bertkit.sections import ModelSpec

    return find(ModelSpec(name=str(source), revision=revision)).folder


def load(
    source: str | Path,
    *,
    revision: str | None = None,
    task: str | None = None,
    precision: Precision | None = None,
    batch_size: int | None = None,
) -> Predictor:
    """The predictor of a run folder, a model folder, an exported folder or a Hub id.

    task: for a model that bertkit did not make, the task whose documented defaults it gets.
    precision: by default bf16 where this machine gains by it. batch_size: by default the run's.
    Raises ModelError when it can not be loaded safely.
    """
    folder = model_folder(source, revision)
    settings = _settings(folder, task)
    kind, tokenizer = get_task(settings.task["name"]), load_tokenizer(folder)
    encoder = Encoder(str(source), folder, "folder")
    limit = resolve_max_length(encoder, tokenizer, settings.max_length)
    if settings.version is None:
        built = kind.from_config(load_config(folder), tokenizer, limit)
    else:
        try:
            built = kind.restore(settings.task, tokenizer, limit)
        except ValidationError as error:
            raise _damaged(folder, error) from error
    own = settings.batch_size
    rows = batch_size or (Tokens(own.tokens) if isinstance(own, TokenBudget) else own)
    if settings.onnx is not None:
        if precision not in (None, "fp32"):
            what = f"an exported model can not be asked for {precision}"
            raise ModelError(Problem(str(folder), what, "It has the precision that it was exported with."))
        known = [*tokenizer.model_input_names, *built.reduce_inputs]
        return Predictor(built, open_model(folder, settings.onnx, known), None, "fp32", rows, settings.columns)
    device = best_device()
    model: Any = built.model(encoder, new_head=False)
    return Predictor(
        built,
        model.to(device).eval(),
        device,
        precision or resolve_precision(settings.precision, device),
        rows,
        settings.columns,
    )


def load_as(
    task: str, source: str | Path, *, revision: str | None = None, precision: Precision | None = None
) -> Predictor:
    """`load`, where a model that bertkit did not make is one for `task`; one that it made keeps its own."""
    known = read_json(model_folder(source, revision) / "config.json").get("bertkit")
    return load(source, revision=revision, task=None if known else task, precision=precision)


def require_torch_model(predictor: Predictor, source: str | Path) -> Predictor:
    """The same predictor. Raises ModelError where it is of an exported model, which has no weights to look into."""
    if predictor.backend == "onnx":
        raise ModelError(Problem(str(source), "is an exported model", "Name the run that it was exported from."))
    return predictor


def resolve_max_length(encoder: Encoder, tokenizer: PreTrainedTokenizerBase, wanted: int | None) -> int:
    """Word pieces per window: what is wanted, or else all that model and tokenizer allow.

    Raises ModelError, also where the tokenizer has pieces that the model has no embeddings for.
    """
    config = encoder.config.to_dict() if encoder.config else read_json(encoder.folder / "config.json")
    rows, last = config.get("vocab_size"), max(tokenizer.get_vocab().values())
    if isinstance(rows, int) and last >= rows:
        what = f"its tokenizer numbers word pieces up to {last:,}, but it has embeddings for {rows:,}"
        raise ModelError(Problem(str(encoder.folder), what, "Tokenizer and weights are not of one model."))
    try:
        limit = int(min(int(config.get("max_position_embeddings", 512)), tokenizer.model_max_length))
    except (TypeError, ValueError, OverflowError) as error:
        what = f"max_position_embeddings or model_max_length is no number of word pieces: {error}"
        raise ModelError(Problem(str(encoder.folder), what)) from error
    if limit < SHORTEST:
        raise ModelError(Problem(str(encoder.folder), f"it reads {limit} word pieces at most, which is no text"))
    if wanted is not None and wanted > limit:
        what = f"{wanted}, but {encoder.folder} reads at most {limit} word pieces"
        raise ModelError(Problem("model.max_length", what))
    return wanted or limit


class TokenBudget(BaseModel):
    """Batches of answers by their slots, as the recipe's `batching` had it."""

    model_config = ConfigDict(frozen=True, strict=True)
    tokens: Annotated[int, Field(ge=8)]


class Settings(BaseModel):
    """The section `bertkit` of a model's config.json. version: None where bertkit did not make the model."""

    model_config = ConfigDict(frozen=True, strict=True)
    version: str | None = None
    task: dict[str, Any]
    max_length: Annotated[int, Field(ge=SHORTEST)] | None = None
    precision: Literal["auto", "fp32"] = "auto"
    batch_size: Annotated[int, Field(gt=0)] | TokenBudget = 32
    columns: dict[str, str] = {}
    # Of an exported model, the outputs that the task reads.
    onnx: Annotated[list[str], Field(min_length=1)] | None = None


def _settings(folder: Path, task: str | None) -> Settings:
    """What bertkit saved in this model's config.json, or the least that a foreign model needs."""
    try:
        section = read_json(folder / "config.json").get("bertkit")
    except UserError as error:
        raise ModelError(error.problems) from error
    except AttributeError as error:
        raise ModelError(Problem(f"{folder}/config.json", f"not a JSON object: {error}")) from error
    if section is None and task is None:
        known = ", ".join(t.name for t in TASKS)
        fix = f"Say what it is for: --task NAME, or load(…, task=NAME). Known: {known}."
        raise ModelError(Problem(str(folder), "bertkit did not make this model", fix))
    if section is None:
        return Settings(task={"name": task})
    try:
        settings = Settings.model_validate(section)
    except ValidationError as error:
        raise _damaged(folder, error) from error
    name = settings.task.get("name")
    if not isinstance(name, str) or settings.version is None:
        what = "its section `bertkit` names no task" if settings.version else "its section `bertkit` has no version"
        raise ModelError(Problem(f"{folder}/config.json", what))
    if task is not None and task != name:
        raise ModelError(Problem(str(folder), f"this model was trained for {name}, not {task}"))
    return settings


def _damaged(folder: Path, error: ValidationError) -> ModelError:
    first = error.errors()[0]
    place = ".".join(["bertkit", *map(str, first["loc"])])
    fix = "It was edited, or written by another version of bertkit."
    return ModelError(Problem(f"{folder}/config.json", f"{place}: {first['msg']}", fix))
