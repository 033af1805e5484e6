"""Load a model folder into a Predictor: the single inference path."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from operator import add
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from pydantic import ValidationError

from bertkit.data.problems import Problems, WrongType
from bertkit.data.python_rows import column_names, frame_like, frame_rows, is_frame
from bertkit.data.rows import Columns
from bertkit.data.schema import Answer, Source, columns_of
from bertkit.data.values import has_columns, read_inputs, replace_surrogates
from bertkit.encoding.padding import BatchSize
from bertkit.errors import DataError, ModelError, RowsError, UserError
from bertkit.files import not_a_run
from bertkit.inference.decisions import Rule, decisions, identity
from bertkit.inference.display import EXAMPLES, flat
from bertkit.inference.runner import Runner
from bertkit.inference.settings import damaged_settings, read_settings, resolve_max_length
from bertkit.models.device import ModelPrecision, Precision, best_device, resolve_precision
from bertkit.models.encoder import Encoder, load_config, load_tokenizer, resolve_encoder
from bertkit.models.untrusted import read_object, require_model, vet
from bertkit.sections import ModelSpec
from bertkit.tasks.base import Task
from bertkit.tasks.vector_task import stacked
from bertkit.text import Json, Record, beginning, short_repr, unique

logger = logging.getLogger(__name__)

Row = str | Record
T = TypeVar("T")


@dataclass(frozen=True)
class Predictor:
    """A trained model and its task: answers for texts, rows and streams of rows.

    device: None where the model runs in ONNX Runtime.
    columns: canonical column -> column of the user's rows, as the recipe maps them.
    rule: changes the task's answers; see `with_decisions`. rules: the arguments that it was called with.

    >>> model = bertkit.load("runs/quickstart")
    >>> sum(1 for answer in model.stream(f"text {n}" for n in range(100)))
    100
    """

    task: Task
    model: Any  # transformers' PreTrainedModel, or OnnxModel
    device: Any  # torch.device | None
    precision: ModelPrecision
    batch_size: BatchSize
    columns: Mapping[str, Source]
    rule: Rule = identity
    rules: Record = field(default_factory=dict)

    def __repr__(self) -> str:
        encoder = "ONNX Runtime" if self.device is None else f"{self.model.config.model_type}, {self.device}"
        return (
            f"Predictor({beginning(f'{self.task.name}: {self.task.describe()}', 200)}; {encoder}, "
            f"{self.precision})"
        )

    def with_decisions(
        self, *, threshold: float | None = None, coverage: float | None = None, top_k: int | None = None
    ) -> Predictor:
        """This model with other decision rules, for calls, `stream` and `frame`. Rules of several calls add
        up.

        threshold: single-label: the probability below which `label` is None; multi-label, two labels by
        cosine, and no answer (log odds): used in place of the fitted one.
        coverage: single-label: each answer has a prediction set, `set`, which contains the gold label with
        this probability; `label` is None unless the set has exactly one member. Regression: `interval`.
        top_k: how many `scores` to return, best first.
        Raises UserError where one does not apply to the model, two contradict each other, or there are too
        few calibration rows.
        """
        arguments = {"threshold": threshold, "coverage": coverage, "top_k": top_k}
        rules = {**self.rules, **{name: value for name, value in arguments.items() if value is not None}}
        task, rule = decisions(self.task, **rules)
        return replace(self, task=task, rule=rule, rules=rules)

    @property
    def predict_features(self) -> Runner:
        """Features -> the task's items, in the features' order."""
        return Runner(self.task, self.model, self.device, self.precision, self.batch_size)

    @property
    def backend(self) -> Literal["torch", "onnx"]:
        """The library that computes the model's outputs; everything else is the same."""
        return "onnx" if self.device is None else "torch"

    def __call__(self, rows: Row | Sequence[Row] | None = None, /, **row: Any) -> Answer | list[Answer]:
        """The answer to one text or row, or the list of answers to several; or to `question=…, context=…`.

        rows: as for `rows_of`. `frame` returns answers as a table.
        """
        if row and rows is not None:
            raise DataError(f"pass rows, or the columns of one row ({', '.join(row)}), not both")
        rows = row if rows is None else rows
        return next(self.stream([rows])) if isinstance(rows, str | Mapping) else list(self.stream(rows))

    def encode(self, texts: Iterable[str], side: Literal["text", "query", "document"] = "text") -> np.ndarray:
        """The vectors of these texts, `(texts, size)` fp32, with the model's own prefix for queries or
        documents.

        Raises UserError where the model's task gives no vectors.
        """
        task: Any = self.task
        if not task.gives("vector"):
            raise UserError(
                "the model",
                f"a model for {task.name} does not compute vectors of texts",
                "Use bertkit.Features, which takes vectors from the layers of any encoder.",
            )
        if side not in ("text", "query", "document"):
            raise UserError("side", f"no side {short_repr(side)}", "Choose text, query or document.")
        checked = _texts(texts)
        read = checked or ["a"]  # without texts, any text shows the size
        parts = list[np.ndarray]()
        cut = 0
        for start in range(0, len(read), task.chunk_size):
            chunk = [replace_surrogates(text) for text in read[start : start + task.chunk_size]]
            features = task.encode_sides({side: chunk})
            cut += sum(lost > 0 for lost in features["lost"])
            parts.append(stacked(self.predict_features(features)))
        if cut:
            logger.warning("%d of %d texts are truncated at %d tokens", cut, len(read), task.max_length)
        return np.concatenate(parts)[: len(checked)]

    def stream(self, rows: Iterable[Row], start: int = 0) -> Iterator[Answer]:
        """Answers in the rows' order, in constant memory. Raises DataError on a row that lacks a column.

        Documents are ranked among those of all rows, which are then in memory.
        rows: as for `rows_of`. start: number of rows before these, for messages.
        """

        def answers(chunk: Sequence[Row], start: int) -> Iterable[Answer]:
            return map(self.rule, self.task.answer(self.canonical(chunk, start), self.predict_features))

        read = self.rows_of(rows)
        size = self.task.chunk_size
        if self.task.schema.together:
            first = [*islice(read, 1)]
            read = chain(first, read)
            if any(isinstance(row, Mapping) and has_columns(row, ["query"], self.columns) for row in first):
                size = sys.maxsize
        return in_chunks(read, size, answers, start)

    def rows_of(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows, one at a time. Raises DataError on what has no rows.

        rows: texts or dicts, or one of them; or a pandas or polars DataFrame, pyarrow.Table or Dataset, which
            is converted as a whole.
        """
        if is_frame(rows):
            return frame_rows(rows, self.reads)
        if isinstance(rows, str | Mapping):
            return iter([rows])
        return _iterator(rows)

    def frame(self, rows: Iterable[Row]) -> Any:
        """The answers as a table of the library that `rows` is of, or of pandas for a list; pandas keeps its
        index.

        Columns are the answer's fields, such as `label` and `score`, and one per label with its probability.
        Nested answers have the columns of csv output, such as `entities`, as JSON. The columns do not depend
        on the rows: a score that `top_k` leaves out is missing. Raises DataError as
        `stream` does.
        """
        others = self.rows_of(rows)
        first = list(islice(others, 1))
        answers = [dict(self.cells(answer)) for answer in self.stream(chain(first, others))]
        columns: Iterable[str] = ["text"]
        if is_frame(rows):
            columns = column_names(rows)
        elif first and isinstance(first[0], Mapping):
            columns = first[0]
        names = dict.fromkeys(chain(self.answer_columns(columns), *answers))
        # `scores.positive` is called `positive`, unless answers have a column of that name
        titles = dict[str, str]()
        for name in names:
            short = name.removeprefix("scores.")
            titles[name] = name if short in names else short
        cells = [
            dict(zip(map(titles.__getitem__, answer), answer.values(), strict=True)) for answer in answers
        ]
        return frame_like(rows, cells, titles.values())

    @property
    def reads(self) -> set[str]:
        """The columns that rows may have for the model: by their canonical names, and as they are mapped."""
        read = self.task.reads
        return read.union(*(columns_of(self.columns.get(name, name)) for name in read))

    def any_row(self, names: Iterable[str]) -> Json:
        """A row that the model answers, with the inputs and the context that are among these columns."""
        columns = {*names}
        schema = self.task.schema
        readable = {
            name
            for name in schema.columns
            if name in columns or columns.issuperset(columns_of(self.columns.get(name, name)))
        }
        inputs = next(filter(readable.issuperset, self.task.inputs), self.task.inputs[0])
        read = inputs | readable.intersection(schema.context)
        kinds = {name: schema.columns[name].holds for name in read}
        return {name: EXAMPLES.get(kind, "a") for name, kind in kinds.items()}

    def any_answers(self, names: Iterable[str]) -> Iterator[Answer]:
        """Answers to any row with these columns, without decisions and with them.

        Together they have the columns of all answers to such rows.
        """
        rows = [self.any_row(names)]
        if self.task.schema.corpus:  # pretraining, where answers to texts with masks have other columns
            rows.append({"text": str(self.task.tokenizer.mask_token)})
        for answer in replace(self, rule=identity).stream(rows):
            yield answer
            yield self.rule(answer)

    def answer_columns(self, names: Iterable[str]) -> list[str]:
        """The columns of a table of answers to rows with these columns, as `flat` calls them, whatever the
        rows are.
        """
        return unique(name for answer in self.any_answers(names) for name, _ in self.cells(answer))

    def cells(self, answer: Answer, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """An answer as `flat` columns; where the model learned `labels` from a column of 0 and 1 for each,
        such columns come after them, named by the labels.
        """
        sources = self.columns.get("labels", "")
        marks = () if isinstance(sources, str) or "labels" not in answer else sources
        names = self.task.schema_of(self.task.options).columns["labels"].names if marks else {}
        for name, value in flat(answer, prefix):
            yield name, value
            for mark in marks if name == f"{prefix}labels" else ():
                label = names.get(mark, mark)
                title = f"labels.{label}" if label in answer else label
                yield f"{prefix}{title}", int(label in answer["labels"])

    def canonical(self, rows: Sequence[Row], start: int) -> Columns:
        """The task's input and context columns of these rows, under their canonical names.

        start: number of rows before these, for messages. Raises DataError on rows without the columns.
        """
        return Columns(read_inputs(rows, self.task.schema, self.task.inputs, self.columns, start))


def in_chunks(
    rows: Iterator[Row], size: int, answers: Callable[[Sequence[Row], int], Iterable[T]], start: int
) -> Iterator[T]:
    """The answers to chunks of `size` rows. answers: of a chunk, and the number of rows before it.

    start: number of rows before the first.
    """
    while chunk := list(islice(rows, size)):
        try:
            yield from answers(chunk, start)
        except RowsError as error:
            raise error.renumbered(partial(add, start)) from None
        start += len(chunk)


def _iterator(rows: Iterable[T]) -> Iterator[T]:
    try:
        return iter(rows)
    except TypeError:  # such as an array without a dimension
        raise DataError(
            "", f"expected texts or rows, found {rows!r:.60}", "Pass a text, a row, or a list."
        ) from None


def _texts(texts: Iterable[Any]) -> list[str]:
    if is_frame(texts) or isinstance(texts, Mapping):
        raise DataError("", "expected texts, found columns", 'Pass one of them: encode(frame["text"]).')
    if isinstance(texts, str):
        raise DataError("", "expected several texts, found one", "Pass a list: encode([text]).")
    values = list(_iterator(texts))
    problems = Problems()
    for number, text in enumerate(values, 1):
        if not isinstance(text, str):
            problems.add_error(f"row {number}", WrongType(text, "text"))
    problems.raise_if_any()
    return values


def model_folder(source: str | Path, revision: str | None = None) -> Path:
    """The model folder of a run folder, a model folder, or a Hub id; not yet vetted. Raises ModelError."""
    name = str(source)
    path = Path(source).expanduser()
    for folder in (path / "model", path):
        if (folder / "config.json").is_file():
            if revision:
                raise ModelError(source, f"is a folder, without revision {revision!r}", "Leave it out.")
            require_model(folder, exports=True)
            return folder
    if (path / "recipe.yaml").is_file():
        if tasks := sorted(str(file.parents[1]) for file in path.glob("*/model/config.json")):
            raise ModelError(
                source,
                "is a run of several tasks",
                f"Use one of them, {', '.join(tasks)}; in Python, bertkit.load_tasks loads all.",
            )
        raise ModelError(not_a_run(path, "model"))
    if path.is_dir():
        require_model(path)
    if path.exists():
        raise ModelError(source, "is a file", "Use the folder of the run or model.")
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise ModelError(not_a_run(path))
    try:
        return resolve_encoder(ModelSpec(name=name, revision=revision)).folder
    except ModelError as error:
        if error.problems[0].where != "model.name":
            raise
        local = [not_a_run(path)] if path.parent.is_dir() else []
        problems = (problem._replace(where=name) for problem in error.problems)
        raise ModelError([*local, *problems]) from error


def load(
    source: str | Path,
    *,
    revision: str | None = None,
    task: str | None = None,
    precision: Precision | None = None,
    batch_size: int | None = None,
) -> Predictor:
    """The predictor of a run folder, a model folder, an exported folder or a Hub id.

    task: for an external model, the task whose documented defaults it gets.
    precision: by default what this machine computes fastest in. batch_size: by default the run's.
    Raises ModelError where the model cannot be loaded safely, UserError for another precision.

    >>> model = bertkit.load("runs/quickstart")
    >>> answers = model(["Not bad at all.", "It broke after a day."])
    >>> [key for key in answers[0] if key in ("label", "score", "truncated")]
    ['label', 'score', 'truncated']
    """
    if precision not in (None, *get_args(Precision)):
        raise UserError(
            "precision",
            f"expected fp32, bf16 or fp16, found {precision!r}",
            "Leave it out: the fastest on this machine is the default.",
        )
    folder = vet(model_folder(source, revision))
    settings = read_settings(folder, task, str(source))
    kind = settings.kind(str(source))
    exported = settings.onnx is not None
    tokenizer = load_tokenizer(folder, split_special_tokens=not kind.schema.special_tokens, exported=exported)
    encoder = Encoder(str(source), folder, "folder")
    limit = resolve_max_length(encoder, tokenizer, settings.max_length)
    if settings.version is None:
        options, longest = kind.from_config(load_config(folder), tokenizer)
        limit = min(limit, longest or limit)
    else:
        options = settings.task
    try:
        restored = kind(kind.Options.model_validate({**options, "name": kind.name}), tokenizer, limit)
    except ValidationError as error:
        raise damaged_settings(folder, error, "bertkit.task") from error
    size = batch_size or settings.batch_size
    if settings.onnx is not None:
        if precision not in (None, "fp32"):
            raise ModelError(
                source,
                f"an exported model cannot run in {precision}",
                "Leave out the precision: it was chosen when the model was exported.",
            )
        from bertkit.inference.onnx_session import open_model

        graph = open_model(folder, settings.onnx, [*tokenizer.model_input_names, *restored.reduce_inputs])
        of_export: ModelPrecision = "int8" if settings.precision == "int8" else "fp32"
        return Predictor(restored, graph, None, of_export, size, settings.columns)
    device = best_device()
    model: Any = restored.model(encoder, new_head=False)
    precision = precision or resolve_precision(settings.precision, device)
    return Predictor(restored, model.to(device).eval(), device, precision, size, settings.columns)


def load_as(
    task: str, source: str | Path, *, revision: str | None = None, precision: Precision | None = None
) -> Predictor:
    """`load`, for rows with canonical columns; a model not trained by bertkit gets `task`, others keep their
    own.
    """
    section = read_object(model_folder(source, revision) / "config.json").get("bertkit")
    return replace(
        load(source, revision=revision, task=None if section else task, precision=precision), columns={}
    )


def require_torch_model(predictor: Predictor, source: str | Path) -> Predictor:
    """The predictor itself. Raises ModelError for an exported model, whose weights and gradients are not
    accessible.
    """
    if predictor.backend == "onnx":
        raise ModelError(source, "is an exported model", "Use the run that it was exported from.")
    return predictor
