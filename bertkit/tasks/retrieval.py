"""Retrieval: a query's vector is near to those of the documents that answer it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, final

from bertkit.data.beir import check_pairs
from bertkit.data.disk_list import DiskList
from bertkit.data.schema import Answer, Column, Finding, Schema
from bertkit.data.table import numbers
from bertkit.errors import DataError, Problem, RowsError, UserError
from bertkit.evaluation import baselines as simple
from bertkit.evaluation.ranking import KS, GradedSearches, first_rows, searched
from bertkit.tasks import vectors
from bertkit.tasks.base import Batch, Predict, Task, TaskOptions
from bertkit.tasks.labels import length_findings

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from numpy.typing import ArrayLike
    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from bertkit.data.table import Table
    from bertkit.encoding.padding import Arrays
    from bertkit.models.encoder import Encoder


class RetrievalOptions(vectors.VectorOptions):
    """What a recipe may say under `task:`."""

    metrics: ClassVar[frozenset[str]] = frozenset({"ndcg@10", "mrr@10", "map", *(f"recall@{k}" for k in KS)})
    name: Literal["retrieval"]


@final
@dataclass(frozen=True)
class Retrieval(Task):
    """A dual encoder (Karpukhin et al. 2020) with one BERT for queries and documents.

    Learns from judged pairs, such as a BEIR folder's, by multiple-negatives ranking: every other document of
    the batch, and a row's `negative`, is one that does not answer. Scores are of an exact search over all
    documents of a split: its rows are not independent, and are answered together.
    """

    Options: ClassVar[type[TaskOptions]] = RetrievalOptions
    name: ClassVar[str] = "retrieval"
    tag: ClassVar[str] = "sentence-similarity"
    schema: ClassVar[Schema] = Schema(
        columns={
            "text": Column("text", "a text, to be given its vector"),
            "query": Column("text", "what is asked", unchecked=True),
            "document": Column("text", "what may answer it"),
            "query_id": Column("name", "the query's id; without it, its text"),
            "document_id": Column("name", "the document's id; without it, its text"),
            "grade": Column("number", "how well the document answers: 0 not, 1 and up the better", unchecked=True),
            "negative": Column("text", "a document that does not answer"),
        },
        inputs=(frozenset({"query", "document"}), frozenset({"text"})),
        targets=("grade",),
        context=("query_id", "document_id"),
        group_columns={"query_id": "a query's documents may be in several splits, or in none"},
    )
    gives_embeddings: ClassVar[bool] = True

    options: RetrievalOptions
    tokenizer: PreTrainedTokenizerBase
    max_length: int

    # --- before there is a model

    @classmethod
    def refine(cls, options: Any, table: Table, split: str) -> tuple[Table, list[Finding]]:
        """Train learns from pairs with a query and a grade above 0; the others are left out, and counted.

        Raises DataError: ids with two texts, pairs with two grades, grades that are not whole, nothing to learn from.
        """
        grades, queries = table.values.get("grade"), table.values.get("query")
        if queries is None:
            return table, []
        check_pairs(table)
        if split != "train" or grades is None:
            return table, []
        pairs = zip(grades, queries, strict=True)
        kept = [row for row, (grade, query) in enumerate(pairs) if grade is None or (grade > 0 and query)]
        if len(kept) == len(table):
            return table, []
        what = (
            f"train: {len(table) - len(kept):,} of {len(table):,} rows have the grade 0 or no query, and teach nothing"
        )
        if not kept:
            raise DataError(Problem("data", what, "Give documents that answer a grade of 1 or more."))
        return table.select(kept), [Finding("note", what)]

    @classmethod
    def prepare(
        cls,
        options: RetrievalOptions,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        rows: Dataset,
        class_names: Sequence[str],
    ) -> Self:
        """Raises UserError where the extra is missing, DataError where the rows are no pairs."""
        if importlib.util.find_spec("ir_measures") is None:
            raise UserError(Problem("", "retrieval is scored by ir-measures", 'pip install "bertkit[retrieval]"'))
        if "query" not in rows.column_names:
            raise DataError(Problem("data.columns", "retrieval learns from `query` and `document`", "Map them."))
        return cls(options, tokenizer, max_length)

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Self:
        """A foreign model: its own modules.json and prompts, or mean pooling and none."""
        options, longest = vectors.foreign(config, tokenizer, max_length)
        return cls(RetrievalOptions.model_validate({"name": cls.name, **options}), tokenizer, longest)

    @property
    def headline(self) -> str:
        return "ndcg@10"

    @property
    def emits(self) -> Sequence[str]:
        return sorted(self.options.metrics)

    def describe(self) -> str:
        """Such as `mean pooling, unit length`."""
        return self.options.described()

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        yield from length_findings(features, split, self.max_length, self.options.overflow)

    # --- text -> features -> model

    def encode(self, rows: Dataset) -> Dataset:
        from datasets import Dataset

        names = [name for name in ("text", "query", "document", "negative") if name in rows.column_names]
        texts = {name: rows[name][:] for name in names}
        return Dataset.from_dict(vectors.encode_sides(self.tokenizer, texts, self.options, self.max_length))

    def units(self, features: Dataset) -> ArrayLike:
        """The texts of a row are learned together."""
        return numbers(features, "row")

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        return vectors.build(encoder, self.options, new_head=new_head)

    def extra_modules(self, model: Any) -> Mapping[str, Module]:
        return vectors.extra_modules(model)

    def extra_files(self, model: Any) -> Mapping[str, Any]:
        return vectors.extra_files(self.options, model.config.hidden_size, self.max_length)

    def forward(self, model: Any, batch: Batch) -> Any:
        return vectors.forward(super().forward, model, batch, self.options.mini_batch)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """`vectors` are `(texts, size)`: query, document and, where there is one, negative of each row."""
        return vectors.in_batch(outputs, batch, self.options.scale)

    def count(self, batch: Batch) -> float:
        return float((batch["side"] == 0).sum())

    # --- teacher -> student

    @property
    def shared(self) -> Mapping[str, Any]:
        return vectors.shared(self.options)

    def soft(self, outputs: Any, batch: Batch) -> Tensor:
        """Vectors, `(texts, size)`."""
        return vectors.soft(outputs)

    def soft_loss(self, outputs: Any, batch: Batch, temperature: float) -> Tensor:
        """1 - cosine of each text's two vectors; there is no temperature."""
        return vectors.soft_loss(outputs, batch)

    # --- model -> answers

    def reduce(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`vectors`, `(texts, size)` fp32."""
        return vectors.reduce(outputs)

    def kept(self, arrays: Arrays) -> Sequence[Any]:
        """Each text's vector, fp32."""
        return vectors.kept(arrays)

    def decode(self, kept: Sequence[Any], features: Dataset, rows: Dataset) -> list[Answer]:
        """`vector` of a text."""
        return vectors.decode(kept, features, [], None, ranked=False)

    def answer(self, rows: Dataset, predict: Predict) -> Iterator[Answer]:
        """`vector` of a text; or `score` (cosine) and `rank` of a query's document among all documents of the rows.

        A query's first row also has what it `found`: ids and scores of the first 100 documents, best first,
        equals in the order of the rows. A row with an empty query only adds its document.
        """
        if "query" not in rows.column_names:
            yield from super().answer(rows, predict)
            return
        queries, documents = first_rows(rows, "query"), first_rows(rows, "document")
        queries.pop("", None)
        asked = self._vectors(rows, "query", list(queries.values()), predict)
        there = self._vectors(rows, "document", list(documents.values()), predict)
        yield from searched(rows, list(queries), list(documents), asked, there)

    def _vectors(self, rows: Dataset, side: str, places: list[int], predict: Predict) -> np.ndarray:
        """Unit vectors of the texts in these rows, `(texts, size)` fp32, a chunk at a time."""
        import numpy as np

        table, texts = np.empty((0, 1), dtype=np.float32), rows.select_columns([side])
        for start in range(0, len(places), self.chunk_size):
            own = places[start : start + self.chunk_size]
            try:
                features = self.encode(texts.select(own))
            except RowsError as error:
                raise error.renumbered(own.__getitem__) from None
            found = vectors.stacked(predict(features))
            if not start:
                table = np.empty((len(places), found.shape[1]), dtype=np.float32)
            table[start : start + len(found)] = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        return table

    def fit(self, rows: Dataset, predict: Predict) -> Self:
        """Nothing is fitted."""
        return self

    def score(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        return dict(GradedSearches(answers, rows).scores)

    def intervals(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, tuple[float, float] | None]:
        return GradedSearches(answers, rows).intervals()

    def details(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, Any]:
        return GradedSearches(answers, rows).details()

    def baselines(self, train: Dataset, rows: Dataset) -> dict[str, dict[str, float | None]]:
        """The same search by the cosine of TF-IDF vectors, learned on the split's own documents."""
        queries, documents = first_rows(rows, "query"), first_rows(rows, "document")
        queries.pop("", None)
        asked, there = (rows[list(s.values())][n] for n, s in (("query", queries), ("document", documents)))
        sides = simple.tfidf_vectors(there, [asked, there])
        if sides is None:
            return {}
        answers = DiskList(searched(rows, list(queries), list(documents), sides[0], sides[1]))
        return {"tf-idf cosine": self.score(answers, rows)}
