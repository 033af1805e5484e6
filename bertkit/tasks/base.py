"""The contract of a task: everything bertkit has to know to train, score, predict and export it.

A task is a final, immutable class in one file of this folder. It turns rows (the user's examples, in
canonical columns) into features (model inputs), and what the model says about features into answers.
Training-time evaluation, `evaluate`, `predict` and export all go through the same `reduce`, `kept` and `decode`.

Heavy libraries are imported inside the methods that need them, so that recipes can be read without them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import add
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, final

from pydantic import BaseModel, ConfigDict

from bertkit.data.disk_list import DiskList
from bertkit.data.schema import Answer, Finding, Schema
from bertkit.data.table import MAX_PROBLEMS, on_disk
from bertkit.errors import Problem, RowsError, UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset
    from numpy.typing import ArrayLike
    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from bertkit.data.table import Table
    from bertkit.encoding.padding import Arrays
    from bertkit.models.encoder import Encoder


Batch: TypeAlias = "dict[str, Tensor]"
Predict: TypeAlias = "Callable[[Dataset], Sequence[Any]]"  # features -> what `keep` kept, in their order


class TaskOptions(BaseModel):
    """The `task:` section of a recipe. Each task adds its own fields and fixes `name` with a Literal."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    name: str
    metrics: ClassVar[frozenset[str]] = frozenset()  # what `score` may emit, for `metric_for_best_model`


@dataclass(frozen=True)
class Task(ABC):
    """One use of an encoder. Immutable: `fit` and friends return a new task.

    Subclasses are frozen dataclasses with exactly these three fields: options, tokenizer, max_length.
    """

    Options: ClassVar[type[TaskOptions]]
    name: ClassVar[str]  # the Hub's pipeline tag, where it has one
    tag: ClassVar[str] = ""  # the Hub's pipeline tag, where it is not the name
    schema: ClassVar[Schema]  # columns, inputs, targets, context, groups
    chunk_size: ClassVar[int] = 4096  # rows answered at a time; the same everywhere, so that batches are the same
    resampled: ClassVar[bool] = False  # does `examples` draw something anew in each epoch?
    gives_embeddings: ClassVar[bool] = False  # is each text read by itself, and made a vector?

    padding: ClassVar[Mapping[str, int]] = {}  # token-level columns besides the tokenizer's own -> what pads them
    reduce_inputs: ClassVar[Sequence[str]] = ()  # columns that `reduce` reads

    options: Any  # in a task, its own options
    tokenizer: PreTrainedTokenizerBase
    max_length: int

    # --- before there is a model

    @classmethod
    @abstractmethod
    def prepare(
        cls,
        options: Any,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        rows: Dataset,
        class_names: list[str],
    ) -> Task:
        """Settle from the training rows what the recipe left open (kind, labels, weights).

        Raises DataError where rows and options contradict each other.
        """

    @classmethod
    @abstractmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Task:
        """The task of a model that bertkit did not make, with this task's documented defaults."""

    @classmethod
    def restore(cls, options: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Task:
        """The task that a model's config.json describes. Raises pydantic's ValidationError on a damaged one."""
        return cls(cls.Options.model_validate(options), tokenizer, max_length)

    @classmethod
    def refine(cls, options: Any, table: Table, split: str) -> tuple[Table, list[Finding]]:
        """A split as it was read -> the rows that the task knows, checked against each other; and what was done.

        Targets may be None: rows without one are seen to later. Raises DataError with the places of bad rows.
        """
        return table, []

    @property
    @abstractmethod
    def headline(self) -> str:
        """The metric that picks the checkpoint: higher is better, always."""

    @abstractmethod
    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        """What is wrong with these features, before the accelerator is paid for."""

    @property
    @abstractmethod
    def emits(self) -> Sequence[str]:
        """The metrics that may pick the checkpoint, of those that `score` emits for these targets."""

    @abstractmethod
    def describe(self) -> str:
        """One line for people: what was inferred, such as `single-label, 2 labels: negative, positive`."""

    @property
    def inputs(self) -> Sequence[frozenset[str]]:
        """The alternatives of `schema.inputs` that this model was trained on."""
        return self.schema.inputs

    @property
    def known_labels(self) -> frozenset[str] | None:
        """The values that a target column may hold; None where targets are not labels."""
        return None

    # --- text -> features -> model -------------------------------------------------------------------------------

    @abstractmethod
    def encode(self, rows: Dataset) -> Dataset:
        """A chunk of rows -> features. A row may give several; column `row` says which row a feature came from.

        Columns named in `tokenizer.model_input_names` go to the model; `length` counts word pieces.
        Raises RowsError for rows that the model can not read.
        """

    def features(self, rows: Dataset) -> Dataset:
        """`encode` of any number of rows, as training reads them: on disk, those of a unit one after the other."""
        return encode_all(self, rows)

    def examples(
        self, features: Dataset, indices: Sequence[int], draw: tuple[int, int] | None = None
    ) -> dict[str, list[Any]]:
        """The columns of these features, as the model reads them.

        draw: in training (seed, epoch), of which whatever is drawn anew each epoch is a pure function.
        """
        columns: dict[str, list[Any]] = features[indices]
        return columns

    def units(self, features: Dataset) -> ArrayLike:
        """For each feature the unit that must not be torn apart between training batches (itself)."""
        return range(len(features))

    @abstractmethod
    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        """The pretrained encoder with this task's head, in fp32; without `new_head` every tensor must be there."""

    @property
    def learning_rate_factors(self) -> Mapping[str, float]:
        """Part of parameters' names -> what their learning rate is, times the recipe's."""
        return {}

    def extra_modules(self, model: Any) -> Mapping[str, Module]:
        """Modules of the model that transformers does not know: name -> module, saved as `name.safetensors`."""
        return {}

    def extra_files(self, model: Any) -> Mapping[str, Any]:
        """What other libraries want beside the model: file name -> its JSON."""
        return {}

    def forward(self, model: Any, batch: Batch) -> Any:
        """Run the model on what it knows of the batch."""
        return model(**{name: batch[name] for name in self.tokenizer.model_input_names if name in batch})

    @abstractmethod
    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The SUM of the losses of this batch, in nats, fp32, `()`; the trainer divides by the whole step's `count`.

        Where a task adds several losses up, each with a count of its own, `(losses,)`.
        """

    @abstractmethod
    def count(self, batch: Batch) -> float | tuple[float, ...]:
        """How many terms `loss` sums for this batch; one number per loss."""

    # --- teacher -> student ----------------------------------------------------------------------------------------

    @property
    def shared(self) -> Mapping[str, Any]:
        """What a teacher must have in common with its student: option -> its value."""
        return {}

    def soft(self, outputs: Any, batch: Batch) -> Tensor:
        """On the device: what a teacher says of each feature, `(features, numbers)`, padded at the end."""
        raise UserError(Problem("distillation", f"{self.name} can not be learned from a teacher"))

    def soft_loss(self, outputs: Any, batch: Batch, temperature: float) -> Tensor:
        """The SUM of the losses against the teacher's `batch["soft"]`, as `loss` sums and `count` counts.

        Hinton et al. 2015: both sides' logits are divided by the temperature, and the loss is multiplied by its square.
        """
        raise UserError(Problem("distillation", f"{self.name} can not be learned from a teacher"))

    # --- model -> answers ------------------------------------------------------------------------------------------

    @abstractmethod
    def reduce(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """On the device: the little that `decode` needs, of known rank; an exported graph ends with it.

        The first dimension is the feature's, but where something is the same for all features.
        """

    @abstractmethod
    def kept(self, arrays: Arrays) -> Sequence[Any]:
        """What `reduce` gave, whoever computed it -> what `decode` is given, one item per feature."""

    @final
    def reduced(self, outputs: Any, batch: Batch) -> Arrays:
        """What `reduce` gives, as NumPy arrays."""
        return {name: values.detach().cpu().numpy() for name, values in self.reduce(outputs, batch).items()}

    @final
    def keep(self, outputs: Any, batch: Batch) -> Sequence[Any]:
        """`kept` of `reduce`."""
        return self.kept(self.reduced(outputs, batch))

    @abstractmethod
    def decode(self, kept: Sequence[Any], features: Dataset, rows: Dataset) -> list[Answer]:
        """What was kept -> one answer per row, in the rows' order."""

    @abstractmethod
    def fit(self, rows: Dataset, predict: Predict) -> Task:
        """This task with what validation rows can settle (temperature, thresholds) and the recipe left open."""

    @abstractmethod
    def score(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        """Metrics of these answers against the rows' targets; None where one is not defined."""

    @abstractmethod
    def intervals(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, tuple[float, float] | None]:
        """Bootstrap 95 % intervals of `score`'s metrics."""

    def user_score(self, metric: Any, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        """Scores of a user's own metric object, which has `compute(predictions=…, references=…)`."""
        raise UserError(f"{self.name} takes no metrics of your own")

    def details(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, Any]:
        """What else results.json should say of these answers, such as a confusion matrix."""
        return {}

    def baselines(self, train: Dataset, rows: Dataset) -> dict[str, dict[str, float | None]]:
        """Scores of simple models that this one must beat, by name."""
        return {}

    def answer(self, rows: Dataset, predict: Predict) -> Iterator[Answer]:
        """Answers for any number of rows, a chunk at a time: the one path of training, evaluation and prediction."""
        for kept, features, part in self.chunks(rows, predict):
            yield from self.decode(kept, features, part)

    def chunks(self, rows: Dataset, predict: Predict) -> Iterator[tuple[Sequence[Any], Dataset, Dataset]]:
        """What was kept, features and rows, a chunk of rows at a time."""
        for start in range(0, len(rows), self.chunk_size):
            features, part = encode_chunk(self, rows, start)
            yield predict(features), features, part

    def evaluate(self, rows: Dataset, predict: Predict) -> dict[str, float | None]:
        """Score the model behind `predict`."""
        return self.score(DiskList(self.answer(rows, predict)), rows)

    # --- what people and programs are told of answers ----------------------------------------------------------------


def encode_all(task: Task, rows: Dataset) -> Dataset:
    """`task.encode` of all rows, a chunk at a time, over a memory-mapped file; `row` is counted from the first.

    rows: at least one. Raises RowsError with what is wrong in all chunks, and DataError where the disk is full.
    """
    import pyarrow as pa
    from datasets import Features

    chunks = _chunks(task, rows)
    first = next(chunks)
    schema = pa.schema([(name, _settled(values.type)) for name, values in first.items()])
    return on_disk(chain([first], chunks), Features.from_arrow_schema(schema), token_hex())


def encode_chunk(task: Task, rows: Dataset, start: int) -> tuple[Dataset, Dataset]:
    """The features of the chunk of rows that begins there, and these rows. Raises RowsError, numbered as `rows` is."""
    part = rows.select(range(start, min(start + task.chunk_size, len(rows))))
    try:
        return task.encode(part), part
    except RowsError as error:
        raise error.renumbered(partial(add, start)) from None


def _chunks(task: Task, rows: Dataset) -> Iterator[Mapping[str, pa.Array]]:
    import pyarrow.compute as pc

    found: list[tuple[int, str, str]] = []
    for start in range(0, len(rows), task.chunk_size):
        try:
            features, _ = encode_chunk(task, rows, start)
        except RowsError as error:
            found += error.found
            if len(found) >= MAX_PROBLEMS:
                break
            continue
        if not found:
            columns = {name: features.data.column(name).combine_chunks() for name in features.column_names}
            yield {**columns, "row": pc.add(columns["row"], start)}
    if found:
        raise RowsError(found[:MAX_PROBLEMS])


def _settled(kind: pa.DataType) -> pa.DataType:
    """The type of a column by its first chunk; lists of whole numbers, or of nothing so far, take 4 bytes each."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        of = kind.value_type
        return pa.list_(pa.int32() if pa.types.is_null(of) or pa.types.is_integer(of) else _settled(of))
    return pa.int64() if pa.types.is_null(kind) else kind
