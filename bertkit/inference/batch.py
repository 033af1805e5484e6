"""Answers and vectors of batches of rows, as Ray Data, Spark and Dask hand them over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from bertkit.data.python_rows import Rows, column_names, frame_rows, is_a, is_frame, with_added
from bertkit.errors import DataError
from bertkit.inference.predict_file import with_columns
from bertkit.inference.predictor import Predictor, load, load_as
from bertkit.models.device import Precision
from bertkit.text import Json, Record, short_repr

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

VECTOR = "vector"  # the added column


@dataclass(frozen=True, eq=False)
class batch:
    """A function of batches of rows that can be sent to other processes, such as Ray's `map_batches`.

    A batch is a dict of columns, a DataFrame of pandas or polars or a pyarrow.Table, and so is what is
    returned: the batch's own columns and the answers, under the names of csv output, such as `answer.label`
    and `answer.scores.positive`. With `side`, the answers are replaced by one column, `vector`, in fp32.

    Batches with the same columns get the same columns with the same types, also without rows. Fields that an
    answer does not have are missing values, such as the scores that `top_k` leaves out.

    The model is loaded for the first batch. A pickled copy has the arguments alone, and loads it again.
    Several threads may share a copy, which answers one batch after the other.

    source: as for `load`. side: of a model that gives vectors, whether texts get the prefix of queries, of
    documents or neither. columns: canonical column -> column of the batches. decisions: arguments of
    `Predictor.with_decisions`. A call raises what `load`, `with_decisions` and a predictor raise. It also
    raises DataError if the batch already has such a column, or if the model is for retrieval, whose answers
    rank the documents of all rows. With `context: document` a sentence is read with its neighbours in the
    batch, so a batch should hold whole documents.

    >>> answer = bertkit.batch("runs/quickstart")  # ray.data.read_csv(…).map_batches(answer)
    >>> list(answer({"text": ["Not bad at all."]}))[:2]
    ['text', 'answer.label']
    """

    source: str | Path
    _: KW_ONLY
    side: Literal["text", "query", "document"] | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    task: str | None = None
    revision: str | None = None
    precision: Precision | None = None
    batch_size: int | None = None
    decisions: Record = field(default_factory=dict)

    def __post_init__(self) -> None:
        vars(self).update(lock=Lock(), types=cache(self._types_of))  # no fields: Dask hashes fields

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **{option.name: getattr(self, option.name) for option in fields(self)}), ()

    def __call__(self, rows: Rows) -> Rows:
        if not isinstance(rows, Mapping) and (not is_frame(rows) or is_a(rows, "datasets.Dataset")):
            raise DataError(
                "",
                f"expected a batch, a dict of columns or a frame, found {short_repr(rows)}",
                "Pass texts and lists of rows to bertkit.load(…), a Dataset to its `frame`.",
            )
        with vars(self)["lock"]:
            return self._with_vectors(rows) if self.side else self._with_answers(rows)

    @cached_property
    def _predictor(self) -> Predictor:
        options: Json = {"revision": self.revision, "precision": self.precision}
        if self.side:
            loaded = load_as(self.task or "sentence-similarity", self.source, **options)
        else:
            loaded = with_columns(load(self.source, task=self.task, **options), self.columns)
        return replace(loaded, batch_size=self.batch_size or loaded.batch_size).with_decisions(
            **self.decisions
        )

    def _types_of(self, names: tuple[str, ...]) -> Mapping[str, pa.DataType]:
        """Column -> type of the answers to rows with these columns, whatever the rows are."""
        import pyarrow as pa

        shown: Json = {}
        for answer in self._predictor.any_answers(names):
            for name, value in self._predictor.cells(answer, "answer."):
                if shown.get(name) is None:
                    shown[name] = value
        # with a threshold, a label may be None in all of them
        return {
            name: pa.string() if value is None else pa.scalar(value).type for name, value in shown.items()
        }

    def _with_answers(self, rows: Rows) -> Rows:
        import pyarrow as pa

        predictor = self._predictor
        if predictor.task.schema.together:  # other processes may have them
            raise DataError(
                "the model",
                f"a model for {predictor.task.name} ranks the documents of all rows together, and a batch "
                "has only some of them",
                "Compute vectors instead: bertkit embed, or batch(…, side='document').",
            )
        names = column_names(rows)
        if absent := [name for name in self.columns.values() if name not in names]:
            what = f"no column {', '.join(map(repr, absent))}; found {', '.join(names)}"
            raise DataError("columns", what, "Correct it.")
        answers = [
            dict(predictor.cells(answer, "answer."))
            for answer in predictor.stream(frame_rows(rows, predictor.reads))
        ]
        columns = {}
        for name, kind in vars(self)["types"](tuple(names)).items():
            columns[name] = pa.array([answer.get(name) for answer in answers], kind)
        return self._added(rows, columns)

    def _with_vectors(self, rows: Rows) -> Rows:
        if unknown := sorted(self.columns.keys() - {"text"}):
            what = f"with `side` the model reads texts, not {', '.join(unknown)}"
            raise DataError("columns", what, "columns={'text': NAME}")
        column = self.columns.get("text", "text")
        names = column_names(rows)
        if column not in names:
            raise DataError("", f"no column {column!r}; found {', '.join(names)}", "columns={'text': NAME}")
        texts = [row[column] for row in frame_rows(rows, {column})]
        return self._added(rows, {VECTOR: self._predictor.encode(texts, self.side or "text")})

    def _added(self, rows: Rows, columns: Mapping[str, pa.Array | np.ndarray]) -> Rows:
        if taken := [name for name in column_names(rows) if name in columns]:
            raise DataError("", f"the rows have a column `{taken[0]}` already", "Rename it.")
        return with_added(rows, columns)
