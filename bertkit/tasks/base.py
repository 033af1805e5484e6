"""The contract of a task: what training, evaluation and prediction need to know of one use of an encoder.

A task is an immutable class in one file, of this folder or of another package. It turns rows (the user's
examples, in canonical columns) into features (model inputs), and model outputs into answers and scores. What
other programs need for a task (explanations, report, HTTP schemas, soft targets) is an optional member, or
for ours a table in their folder.

Heavy libraries are imported inside the methods that need them, so that recipes can be read without them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import add
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias

import numpy as np
from typing_extensions import TypeVar

from bertkit.data.disk_list import DiskList
from bertkit.data.on_disk import first_features, numbers, on_disk, release
from bertkit.data.problems import MAX_PROBLEMS
from bertkit.data.schema import Answer, Finding, Schema
from bertkit.data.table import Checked, RowRules, Table
from bertkit.data.word_spans import Unit
from bertkit.encoding.padding import Arrays, model_inputs
from bertkit.encoding.texts import length_findings
from bertkit.errors import RowsError
from bertkit.evaluation.graded import Graded, all_scores
from bertkit.evaluation.intervals import Scores
from bertkit.models.encoder import Encoder
from bertkit.sections import Section
from bertkit.tasks.fields import AnswerForm, Decision, Role, Usage
from bertkit.text import Json, Record

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset
    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Batch: TypeAlias = "dict[str, Tensor]"
PAIRS = "a loss of pairs", "smoothing is for labels"  # `unsmoothed` of tasks that learn from pairs alone
HeldOut: TypeAlias = "Sequence[tuple[Dataset, Dataset]]"  # rows learned from, and others, which `fit` reads
Baselines: TypeAlias = "dict[str, Scores]"  # name -> scores
OptionValues: TypeAlias = Json  # option -> value
Restored: TypeAlias = tuple[OptionValues, int | None]  # and the longest input, in tokens
Reduced: TypeAlias = "dict[str, Tensor]"  # what decoding needs of the outputs
Predict: TypeAlias = "Callable[[Dataset], Sequence[Any]]"  # features -> one item per feature, in order


class TaskOptions(Section):
    """The `task:` section of a recipe. Each task adds its own fields and fixes `name` with a Literal."""

    name: str
    metrics: ClassVar[frozenset[str]] = frozenset()  # every name that `metric_for_best_model` may have
    unsmoothed: ClassVar[tuple[str, str] | None] = None  # what label smoothing has no meaning for, and why
    head_settings: ClassVar[tuple[str, ...]] = ()  # keys of `model` that the head reads
    untrained: ClassVar[tuple[str, ...]] = ()  # values of `method` that transformers' Trainer does not run


O = TypeVar("O", bound=TaskOptions, default=Any)  # noqa: E741
T = TypeVar("T", bound="Task")


@dataclass(frozen=True)
class Task(ABC, Generic[O]):
    """One use of an encoder. Immutable: `calibrate` returns a new task."""

    Options: ClassVar[type[TaskOptions]]
    name: ClassVar[str]  # the Hub's pipeline tag, where it has one
    schema: ClassVar[Schema]  # columns, inputs, targets, context, groups
    forms: ClassVar[Sequence[AnswerForm]]  # of answers, which depend on the row and on the options
    # token-level columns besides the tokenizer's -> padding value
    padding: ClassVar[Mapping[str, int | float]] = {}
    reduce_inputs: ClassVar[Sequence[str]] = ()  # batch columns that `reduce` reads
    chunk_size: ClassVar[int] = (
        4096  # rows answered at a time; the same everywhere, so that batches are the same
    )
    shares_encoder: ClassVar[bool] = False  # whether it may be trained with other tasks, over one encoder
    pipeline: ClassVar[str] = (
        ""  # that of transformers whose clients a server answers, of those in serving/shapes.py
    )
    usage: ClassVar[Usage | None] = None  # see `usage_of`
    no_graph: ClassVar[tuple[str, str] | None] = None  # why it cannot be exported, and what to do instead
    no_words: ClassVar[str] = "there is nothing to explain"  # of an answer that depends on no word
    # Methods that another package's task may have; for ours these are tables.
    explained: ClassVar[Any] = (
        None  # (read), see explanations/targets.py -> what, unit and parts of each number behind it
    )
    mistake: ClassVar[Any] = (
        None  # (options, a row with its `answer`) -> gold, answer, how far off; None where right
    )
    soft_targets: ClassVar[Any] = None  # () -> the values of `SoftTargets`, see attachments/soft_targets.py

    options: O
    tokenizer: PreTrainedTokenizerBase
    max_length: int

    def __post_init__(self) -> None:
        """Raises UserError where the tokenizer or the options are not for this task. Default: nothing."""

    # --- from a recipe, or from a model not trained by bertkit

    @classmethod
    def validate_rows(cls, options: O, table: Table, split: str) -> Checked:
        """The rows of a split as they were read -> rows checked against each other, and what was found.

        Targets may be None: rows without a target are handled later. Raises DataError with file and line.
        """
        return table, []

    @classmethod
    def decide_options(cls, options: O, tables: Mapping[str, Table]) -> tuple[O, list[Finding]]:
        """The options with what the training rows decide, as they were read: before `validate_rows`. Default:
        as given.

        tables: the rows by split; train may be missing where a trained model is scored.
        """
        return options, []

    @classmethod
    def rules(cls, options: O) -> RowRules:
        """How rows are read with these options."""
        return RowRules(options, cls.decide_options, cls.validate_rows)

    @classmethod
    def schema_of(cls, options: O) -> Schema:
        """The schema, with what these options say about columns. Default: nothing."""
        return cls.schema

    @classmethod
    def usage_of(cls, options: O) -> Usage:
        """How the model card shows it in use. Default: `usage`; where there is none, with bertkit alone."""
        schema = cls.schema
        if cls.usage or {"text"} in schema.inputs:
            return cls.usage or Usage('"your text"')
        row = {
            name: ["your", "words"] if schema.columns[name].holds == "words" else "your text"
            for name in sorted(schema.inputs[0])
        }
        return Usage(repr(row))

    @classmethod
    @abstractmethod
    def infer_options(cls, options: O, rows: Dataset, class_names: Sequence[str]) -> OptionValues:
        """What the training rows decide (labels, kind, weights): option -> value.

        class_names: names and order of the target in the data set itself (ClassLabel). Raises DataError where
        rows and options contradict each other.
        """

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: Any) -> Restored:
        """For a model not trained by bertkit: options that are not defaults, and its limit in tokens, if it
        has one.

        Raises ModelError.
        """
        return {}, None

    @abstractmethod
    def describe(self) -> str:
        """One line, such as `single texts, single-label, 2 labels: negative, positive`."""

    @property
    def inputs(self) -> Sequence[frozenset[str]]:
        """The alternatives of `schema.inputs` that this model was trained on."""
        return self.schema.inputs

    @property
    def reads(self) -> set[str]:
        """The columns that a row may have for this model."""
        return {*self.schema.context}.union(*self.inputs)

    @property
    def answers(self) -> Sequence[AnswerForm]:
        """Those of `forms` that this model's answers have."""
        return self.forms

    @classmethod
    def gives(cls, role: Role) -> bool:
        """Whether an answer may have a field of this role."""
        return any(field.role == role for form in cls.forms for field in form.fields)

    def always_has(self, name: str) -> bool:
        """Whether every answer of this model has the field."""
        return all(form.always_has(name) for form in self.answers)

    @property
    def decision(self) -> Decision:
        """How answers follow from scores. Default: there is nothing to decide otherwise."""
        return Decision()

    @property
    def unit(self) -> Unit:
        """What explanations divide texts into: `words`, `characters`, or tokens where rows give them."""
        return "given"

    @property
    def ranks(self) -> bool:
        """Whether it reads a query and a document together, so that it can reorder what a search found."""
        return frozenset({"query", "document"}) in self.inputs and not self.gives("vector")

    @property
    def method(self) -> str | None:
        """The method that fits the model, in `training/seed.py`. Default: it is trained by steps."""
        return None

    @property
    def known_labels(self) -> frozenset[str] | None:
        """The values that a target column may hold; None where targets are not labels."""
        return None

    # --- rows -> features

    @abstractmethod
    def encode(self, rows: Dataset) -> Dataset:
        """A chunk of rows -> features. A row may give several; `row` says which, `length` counts tokens, and
        `unread` is that of `encoding.pieces`, where there are texts; `lost` counts the tokens of a row that
        no feature holds, where texts are truncated. Of tasks that generate a text,
        `target_length` counts the tokens of the target.

        Rows and features are Datasets, or `Columns`, which have the methods of Dataset that tasks use.
        Columns named in `tokenizer.model_input_names` go to the model. Raises RowsError for rows that cannot
        be read.
        """

    def features(self, rows: Dataset) -> Dataset:
        """`encode` of all rows, at least one, on disk, in the order of training: those of a unit are
        adjacent.

        `row` is counted from the first. Raises RowsError with what is wrong in all chunks, and DataError
        where the disk is full.
        """
        import pyarrow as pa
        from datasets import Features

        chunks = _chunks(self, rows)
        first = next(chunks)
        schema = pa.schema([(name, _settled(values.type)) for name, values in first.items()])
        return on_disk(chain([first], chunks), Features.from_arrow_schema(schema), token_hex())

    def examples(
        self, features: Dataset, indices: Sequence[int], draw: tuple[int, int] | None = None
    ) -> dict[str, list[Any]]:
        """Model inputs of these features. draw: (seed, epoch), for tasks that sample again in each epoch
        (masking).
        """
        columns: dict[str, list[Any]] = features[indices]
        return columns

    def units(self, features: Dataset) -> np.ndarray:
        """For each feature, the unit that must not be split between batches. Default: the feature itself."""
        return np.arange(len(features))

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        """Problems of these features. Default: the distribution of lengths, and what was truncated."""
        yield from length_findings(features, split, self.max_length)

    # --- features -> model -> loss

    @abstractmethod
    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        """The pretrained encoder with this task's head, in fp32; without `new_head` every tensor must be
        saved.
        """

    def extra_modules(self, model: Any) -> Mapping[str, Module]:
        """Modules that transformers does not save (a CRF, a dense layer): name -> module."""
        return {}

    def extra_tensors(self, model: Any) -> Mapping[str, Tensor]:
        """Tensors that model.safetensors has beside the model's own: name -> tensor."""
        return {}

    def extra_files(self, model: Any) -> Record:
        """Configuration files of other libraries: file name -> JSON."""
        return {}

    @property
    def learning_rate_factors(self) -> Mapping[str, float]:
        """Part of a parameter's name -> factor on the learning rate."""
        return {}

    def scheduled(self, batch: Batch, progress: float) -> Batch:
        """A collated micro-batch, on the CPU, as it is trained on at this progress of the training, from 0 to
        1.

        Called once per micro-batch, before `count`. Default: unchanged.
        """
        return batch

    def forward(self, model: Any, batch: Batch) -> Any:
        """Run the model on the tokenizer's inputs of this batch."""
        return model(**model_inputs(self.tokenizer, batch))

    @abstractmethod
    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The SUM of the losses of this batch, in nats, fp32, `()`; the trainer divides by the whole step's
        `count`.

        Where a task adds up several losses, each with its own count: `(losses,)`.
        """

    @abstractmethod
    def count(self, batch: Batch) -> float | tuple[float, ...]:
        """The number of terms in `loss` for this batch; one number per loss."""

    def loss_inputs(self, outputs: Any, batch: Batch) -> tuple[Any, Tensor] | None:
        """Outputs and labels as a user's `compute_loss_func` gets them: labels to compare with outputs one by
        one.

        Default: None, where the loss is of another form.
        """
        return None

    def finished(self: T, model: Any) -> T:
        """The task of a model whose training is over: what only the training needed goes into the model's
        weights.

        Called once, before the model is calibrated and saved. Default: nothing.
        """
        return self

    def with_options(self: T, values: OptionValues) -> T:
        """This task with these options in place of its own."""
        return replace(self, options=self.options.model_copy(update=values))

    # --- outputs -> answers

    @abstractmethod
    def reduce(self, outputs: Any, batch: Batch) -> Reduced:
        """On the device: the small part of the outputs that decoding needs; an exported graph ends with it.

        The first dimension is the features', except for what all features share.
        """

    def extra_outputs(self, reduced: Reduced) -> Reduced:
        """Further outputs of an exported graph, for its readers without bertkit: name -> tensor. Default:
        none.
        """
        return {}

    def items(self, arrays: Arrays) -> Sequence[Any]:
        """What `reduce` returned, as one item per feature. Default: the rows of the only array."""
        (only,) = arrays.values()
        return list(only)

    @property
    def sizes(self) -> Sequence[int]:
        """Lengths of the prefixes of vectors that are scored by themselves too. Default: none."""
        return ()

    @abstractmethod
    def decode(self, items: Sequence[Any], features: Dataset, rows: Dataset) -> list[Answer]:
        """One answer per row, in order. Raises ModelError where the model's outputs are not finite.

        features: as `encode` returned them.
        """

    def answer(self, rows: Dataset, predict: Predict) -> Iterator[Answer]:
        """The one path of training, evaluation and prediction: encode, predict, decode, a chunk of rows at a
        time.
        """
        for items, features, part in predicted(self, rows, predict):
            yield from with_input_flags(self.decode(items, features, part), features)

    # --- answers -> scores

    @property
    @abstractmethod
    def metrics(self) -> Sequence[str]:
        """Metrics that may select the checkpoint, the default first. Higher is better."""

    def fit(self, rows: Dataset, predict: Predict) -> OptionValues:
        """Temperature and thresholds fitted on validation rows: option -> value. Default: nothing to fit."""
        return {}

    @abstractmethod
    def grade(self, answers: Sequence[Answer], rows: Dataset) -> Graded:
        """The answers compared with the targets. Raises DataError where the rows have none."""

    def baselines(self, train: Dataset, rows: Dataset, held_out: HeldOut = ()) -> Baselines:
        """Scores of baselines that this model must beat, by name. held_out: what their `fit` is for, as the
        model's.
        """
        return {}


def prepare(
    kind: type[Task],
    options: Any,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    rows: Dataset,
    class_names: Sequence[str] = (),
) -> Task:
    """The task that a recipe's options and the training rows describe. Raises DataError."""
    settled = options.model_copy(update=kind.infer_options(options, rows, class_names))
    return kind(settled, tokenizer, max_length)


def calibrate(task: T, rows: Dataset, predict: Predict) -> T:
    """The task with what `fit` found on these validation rows."""
    return task.with_options(task.fit(rows, predict))


def evaluate(
    task: Task, rows: Dataset, predict: Predict, *, fitted: bool = False, metrics: Sequence[Any] = ()
) -> Scores:
    """The scores of the model behind `predict` on these rows; fitted: after `Graded.after_fit` on these rows.

    metrics: a user's own, in addition to the task's. Raises UserError where one does not return names and
    numbers.
    """
    graded = task.grade(DiskList(task.answer(rows, predict)), rows)
    return all_scores(graded.after_fit() if fitted else graded, metrics)


def with_input_flags(answers: Sequence[Answer], features: Dataset) -> Iterator[Answer]:
    """The answers, `truncated` where features lack tokens of the row, `empty` where a text of it has no
    token, `unreadable` where one has only unknown tokens.
    """
    if "unread" not in features.column_names:
        yield from answers
        return
    starts = first_features(features)
    unread = np.maximum.reduceat(numbers(features, "unread"), starts)
    flags = {"empty": unread == 2, "unreadable": unread == 1}
    if "lost" in features.column_names:
        lost = np.maximum.reduceat(numbers(features, "lost"), starts)
        flags = {"truncated": lost > 0, **flags}
    for number, answer in enumerate(answers):
        yield {**answer, **{name: bool(values[number]) for name, values in flags.items()}}


def predicted(
    task: Task, rows: Dataset, predict: Predict
) -> Iterator[tuple[Sequence[Any], Dataset, Dataset]]:
    """Items, features and rows, a chunk of rows at a time."""
    for start in range(0, len(rows), task.chunk_size):
        features, part = encode_chunk(task, rows, start)
        yield predict(features), features, part
        release(rows)


def encode_chunk(task: Task, rows: Dataset, start: int) -> tuple[Dataset, Dataset]:
    """The features of the chunk of rows that begins there, and these rows. Raises RowsError, numbered as
    `rows` is.
    """
    part = rows.select(range(start, min(start + task.chunk_size, len(rows))))
    try:
        return task.encode(part), part
    except RowsError as error:
        raise error.renumbered(partial(add, start)) from None


def _chunks(task: Task, rows: Dataset) -> Iterator[Mapping[str, pa.Array]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    problems: list[tuple[int, str, str]] = []
    for start in range(0, len(rows), task.chunk_size):
        try:
            features, _ = encode_chunk(task, rows, start)
        except RowsError as error:
            problems += error.by_row
            if len(problems) >= MAX_PROBLEMS:
                break
            continue
        if not problems:
            columns = {name: pa.array(features[name]) for name in features.column_names}
            yield {**columns, "row": pc.add(columns["row"], start)}
    if problems:
        raise RowsError(problems[:MAX_PROBLEMS])


def _settled(kind: pa.DataType) -> pa.DataType:
    """The type of a column by its first chunk; lists of whole numbers, or of nothing so far, take 4 bytes
    each.
    """
    import pyarrow as pa

    if pa.types.is_list(kind):
        of = kind.value_type
        return pa.list_(pa.int32() if pa.types.is_null(of) or pa.types.is_integer(of) else _settled(of))
    return pa.int64() if pa.types.is_null(kind) else kind
