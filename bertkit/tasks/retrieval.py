"""Retrieval: a query's vector is near the vectors of the documents that answer it."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from bertkit.data.beir import check_pairs
from bertkit.data.disk_list import DiskList
from bertkit.data.schema import Answer, Column, Schema, note
from bertkit.data.table import Checked, Table
from bertkit.errors import DataError, RowsError, UserError
from bertkit.evaluation import baselines
from bertkit.evaluation.ranking import KS, GradedSearches, first_rows, searched
from bertkit.evaluation.similarity import unit
from bertkit.tasks.base import PAIRS, Baselines, HeldOut, OptionValues, Predict
from bertkit.tasks.fields import SCORE, Key, Usage, form
from bertkit.tasks.vector_task import VECTOR, VectorOptions, VectorTask, stacked

if TYPE_CHECKING:
    from datasets import Dataset

HIT = form("Hit", "A document of the request's rows.", Key("id", "label", str), SCORE)
RANKED = form(
    "Ranked",
    "The rank of a row's document among all documents of the request, for the row's query.",
    Key("score", "score", float, optional=True),
    Key("rank", "number", int, optional=True),
    Key(
        "found", "set", [HIT], "only in the answer to a query's first row: the best documents", optional=True
    ),
    line="{score}",
)


class RetrievalOptions(VectorOptions):
    """What a recipe may say under `task:`."""

    metrics = frozenset({"ndcg@10", "mrr@10", "map", *(f"recall@{k}" for k in KS)})
    unsmoothed = PAIRS
    name: Literal["retrieval"]


@final
class Retrieval(VectorTask[RetrievalOptions]):
    """A dual encoder (Karpukhin et al. 2020) with one BERT for queries and documents.

    Learns from judged pairs, such as a BEIR folder's, by multiple-negatives ranking: every other document of
    the batch, and a row's `negative`, counts as not relevant. Scores are of an exact search over all
    documents of a split: its rows are not independent, and are answered together.
    """

    Options = RetrievalOptions
    name = "retrieval"
    schema = Schema(
        columns={
            "text": Column("text", "a text, to be embedded"),
            "query": Column("text", "what is asked", unchecked=True, side="query"),
            "document": Column("text", "what may answer it", side="document"),
            "query_id": Column("name", "the query's id; without it, its text"),
            "document_id": Column("name", "the document's id; without it, its text"),
            "grade": Column(
                "number", "how well the document answers: 0 not, 1 and up the better", unchecked=True
            ),
            "negative": Column("text", "a document that does not answer", shown=False, side="document"),
        },
        inputs=(frozenset({"query", "document"}), frozenset({"text"})),
        targets=("grade",),
        context=("query_id", "document_id"),
        group_columns=dict.fromkeys(
            ("query", "query_id"), "a query's documents may be in several splits, or in none"
        ),
        together=True,
    )
    forms = (VECTOR, RANKED)
    no_words = "an explanation needs a query and a document: the cosine between them is explained"
    usage = Usage(
        '[{"query": "your question", "document": "a text"}]',
        """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH_OR_HUB_ID")
model.similarity(model.encode_query("your question"), model.encode_document(["a text", "another"]))""",
        "cosines and ranks",
        "sentence-similarity",
    )

    # --- from a recipe

    @classmethod
    def validate_rows(cls, options: Any, table: Table, split: str) -> Checked:
        """Train learns from pairs with a query and a grade above 0; the others are left out, and counted.

        Raises DataError: ids with two texts, pairs with two grades, grades that are not whole, nothing to
        learn from.
        """
        grades = table.values.get("grade")
        queries = table.values.get("query")
        if queries is None:
            return table, []
        check_pairs(table)
        if grades is not None:  # a document without a query needs none
            pairs = zip(grades, queries, strict=True)
            grades = DiskList(grade if query or grade is not None else 0.0 for grade, query in pairs)
            table = table.with_(grade=grades)
        if split != "train" or grades is None:
            return table, []
        pairs = zip(grades, queries, strict=True)
        kept = [row for row, (grade, query) in enumerate(pairs) if grade is None or (grade > 0 and query)]
        idle = len(table) - len(kept)
        what = f"train: {idle:,} of {len(table):,} rows are not used for training (grade 0 or no query)"
        if idle and not kept:
            raise DataError("data", what, "Grade relevant documents 1 or higher.")
        return (table.select(kept), [note(what)]) if idle else (table, [])

    @classmethod
    def infer_options(
        cls, options: RetrievalOptions, rows: Dataset, class_names: Sequence[str]
    ) -> OptionValues:
        """Raises UserError if the extra is missing, DataError if the rows are not pairs."""
        if importlib.util.find_spec("ir_measures") is None:
            raise UserError(
                "",
                "ir-measures, which scores retrieval, is not installed",
                'pip install "bertkit[retrieval]"',
            )
        if "query" not in rows.column_names:
            raise DataError("data.columns", "retrieval needs the columns `query` and `document`", "Map them.")
        return {}

    @property
    def metrics(self) -> Sequence[str]:
        return ["ndcg@10", *sorted(self.options.metrics - {"ndcg@10"})]

    def answer(self, rows: Dataset, predict: Predict) -> Iterator[Answer]:
        """`vector` of a text; or `score` (cosine) and `rank` of a query's document among all documents of the
        rows.

        The rank is the number of documents that score at least as high: of equals, the last place. A query's
        first row also has what it `found`: ids and scores of the first 100 documents, best first, equals by
        their ids. A row with an empty query only adds its document.
        """
        if "query" not in rows.column_names:
            yield from super().answer(rows, predict)
            return
        queries = first_rows(rows, "query")
        documents = first_rows(rows, "document")
        query_vectors = self._vectors(rows, "query", list(queries.values()), predict)
        document_vectors = self._vectors(rows, "document", list(documents.values()), predict)
        yield from searched(rows, list(queries), list(documents), query_vectors, document_vectors)

    def _vectors(self, rows: Dataset, side: str, places: list[int], predict: Predict) -> np.ndarray:
        """Unit vectors of the texts in these rows, `(texts, size)` fp32, a chunk at a time; in a temporary
        file.
        """
        table = np.empty((0, 1), dtype=np.float32)
        texts = rows.select_columns([side])
        for start in range(0, len(places), self.chunk_size):
            chunk = places[start : start + self.chunk_size]
            try:
                features = self.encode(texts.select(chunk))
            except RowsError as error:
                raise error.renumbered(chunk.__getitem__) from None
            vectors = stacked(predict(features))
            if not start:
                with tempfile.TemporaryFile() as file:  # which the map keeps open
                    table = np.memmap(file, np.float32, "w+", shape=(len(places), vectors.shape[1]))
            table[start : start + len(vectors)] = unit(vectors)
        return table

    def grade(self, answers: Sequence[Answer], rows: Dataset) -> GradedSearches:
        return GradedSearches(answers, rows)

    def baselines(self, train: Dataset, rows: Dataset, held_out: HeldOut = ()) -> Baselines:
        """Searches by random vectors, and by those of TF-IDF, learned on the split's own documents."""
        queries = first_rows(rows, "query")
        documents = first_rows(rows, "document")
        texts = [rows[list(queries.values())]["query"], rows[list(documents.values())]["document"]]
        vectors = {
            "random": baselines.random_vectors(texts),
            **baselines.tfidf_vectors(texts[1], texts),
        }
        searches = {n: searched(rows, list(queries), list(documents), *sides) for n, sides in vectors.items()}
        return {name: self.grade(DiskList(answers), rows).scores for name, answers in searches.items()}
