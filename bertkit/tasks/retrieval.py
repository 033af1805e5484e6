"""Retrieval: a query's vector is near to those of the documents that answer it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, final

from bertkit.data.beir import check_pairs
from bertkit.errors import DataError, Problem, UserError
from bertkit.evaluation import baselines as simple
from bertkit.evaluation import ranking
from bertkit.tasks import vectors
from bertkit.tasks.base import Answer, Batch, Column, Finding, Predict, Task, TaskOptions, Usage
from bertkit.tasks.labels import length_findings

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from bertkit.data.table import Table
    from bertkit.encoder import Encoder
    from bertkit.evaluation.ranking import PerQuery
    from bertkit.explain.targets import Read, Target
    from bertkit.padding import Arrays
    from bertkit.report.facts import Facts
    from bertkit.report.mistakes import Found

DEPTH = 100  # documents that are kept of what a query finds; what stands further down counts as not found
WORST = 20  # queries that results.json names
KS = (1, 5, 10, 100)


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
    usage: ClassVar[Usage] = Usage(
        """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH_OR_HUB_ID")
model.encode_query("your question") @ model.encode_document(["a text", "another"]).T""",
        '[{"query": "your question", "document": "a text"}]',
        "cosines and ranks, and telling what was cut off",
    )
    columns: ClassVar[Mapping[str, Column]] = {
        "text": Column("text", "a text, to be given its vector"),
        "query": Column("text", "what is asked", unchecked=True),
        "document": Column("text", "what may answer it"),
        "query_id": Column("name", "the query's id; without it, its text"),
        "document_id": Column("name", "the document's id; without it, its text"),
        "grade": Column("number", "how well the document answers: 0 not, 1 and up the better", unchecked=True),
        "negative": Column("text", "a document that does not answer"),
    }
    inputs: ClassVar[Sequence[frozenset[str]]] = (frozenset({"query", "document"}), frozenset({"text"}))
    embeds: ClassVar[bool] = True
    targets: ClassVar[Sequence[str]] = ("grade",)
    context: ClassVar[Sequence[str]] = ("query_id", "document_id")
    torn: ClassVar[Mapping[str, str]] = {"query_id": "a query's documents may be in several splits, or in none"}

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
        kept = [row for row, grade in enumerate(grades) if grade is None or (grade > 0 and queries[row])]
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

    def units(self, features: Dataset) -> Sequence[int]:
        """The texts of a row are learned together."""
        rows: Sequence[int] = features["row"][:]
        return rows

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        return vectors.build(encoder, self.options, new_head=new_head)

    def beside(self, model: Any) -> Mapping[str, Module]:
        return vectors.beside(model)

    def files(self, model: Any) -> Mapping[str, Any]:
        return vectors.files(self.options, model.config.hidden_size, self.max_length)

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
        queries, documents = _named(rows, "query"), _named(rows, "document")
        queries.pop("", None)
        asked = self._vectors("query", list(queries.values()), predict)
        there = self._vectors("document", list(documents.values()), predict)
        yield from searched(rows, list(queries), list(documents), asked, there)

    def _vectors(self, side: str, texts: list[str], predict: Predict) -> Any:
        """Unit vectors of these texts, `(texts, size)` fp32, a chunk at a time."""
        import numpy as np
        from datasets import Dataset

        parts = []
        for start in range(0, len(texts), self.chunk):
            features = self.encode(Dataset.from_dict({side: texts[start : start + self.chunk]}))
            parts.append(vectors.stacked(predict(features)))
        table = np.concatenate(parts) if parts else np.empty((0, 1), dtype=np.float32)
        return table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)

    def fit(self, rows: Dataset, predict: Predict) -> Self:
        """Nothing is fitted."""
        return self

    def score(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        return dict(ranking.means(_measured(answers, rows)))

    def intervals(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, tuple[float, float] | None]:
        return dict(ranking.intervals(_measured(answers, rows)))

    def details(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, Any]:
        """The queries with the lowest nDCG@10: what was found, and what should have been."""
        scores, judged, run = _measured(answers, rows)["ndcg@10"], _judged(rows), _run(answers, rows)
        texts = _named(rows, "query")
        worst = sorted(scores, key=scores.__getitem__)[:WORST]
        return {
            "queries": len(scores),
            "worst": [
                {
                    "query": texts[name],
                    "ndcg@10": scores[name],
                    "relevant": [document for document, grade in judged[name].items() if grade],
                    "found": list(run[name])[:3],
                }
                for name in worst
            ],
        }

    def baselines(self, train: Dataset, rows: Dataset) -> dict[str, dict[str, float | None]]:
        """The same search by the cosine of TF-IDF vectors, learned on the split's own documents."""
        queries, documents = _named(rows, "query"), _named(rows, "document")
        queries.pop("", None)
        sides = simple.tfidf_vectors(list(documents.values()), [list(queries.values()), list(documents.values())])
        if sides is None:
            return {}
        answers = list(searched(rows, list(queries), list(documents), sides[0], sides[1]))
        return {"tf-idf cosine": self.score(answers, rows)}

    @property
    def answer_type(self) -> Any:
        from bertkit.serve import answers

        return answers.Vector | answers.Ranked

    def explained(self, read: Read) -> Sequence[Target]:
        from bertkit.explain import targets

        return targets.pair(read)

    @classmethod
    def mistakes(cls, facts: Facts) -> Found | None:
        from bertkit.report import mistakes

        return mistakes.searches(facts)


def searched(
    rows: Dataset, queries: Sequence[str], documents: Sequence[str], asked: Any, there: Any
) -> Iterator[Answer]:
    """One answer a row, as `Retrieval.answer` says, from unit vectors of the named queries and documents."""
    import numpy as np

    named = {"query_id", "document_id"} <= set(rows.column_names)
    place = {name: index for index, name in enumerate(documents)}
    wanted: dict[str, list[tuple[int, str]]] = {}
    for row, (query, document) in enumerate(zip(_ids(rows, "query"), _ids(rows, "document"), strict=True)):
        wanted.setdefault(query, []).append((row, document))
    answers: dict[int, Answer] = {row: {} for row, _ in wanted.get("", ())}
    for index, query in enumerate(queries):
        scores = asked[index : index + 1] @ there.T
        scores = (scores if isinstance(scores, np.ndarray) else scores.toarray())[0].astype(np.float64)
        if named and query in place and all(document != query for _, document in wanted[query]):
            scores[place[query]] = -np.inf  # the query itself, as BEIR leaves it out (ArguAna, Quora)
        order = np.argsort(-scores, kind="stable")
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(1, len(order) + 1)
        for row, document in wanted[query]:
            answers[row] = {"score": float(scores[place[document]]), "rank": int(ranks[place[document]])}
        first = wanted[query][0][0]
        best = [i for i in order[:DEPTH].tolist() if scores[i] > -np.inf]
        answers[first]["found"] = [{"id": documents[i], "score": float(scores[i])} for i in best]
    for row in range(len(rows)):
        yield answers[row]


def _ids(rows: Dataset, side: str) -> list[str]:
    """The id of each row's query or document, or its text; "" where there is no query."""
    texts = rows[side][:]
    names = rows[f"{side}_id"][:] if f"{side}_id" in rows.column_names else texts
    return [
        (text if name is None else str(name)) if text or side == "document" else ""
        for name, text in zip(names, texts, strict=True)
    ]


def _named(rows: Dataset, side: str) -> dict[str, str]:
    """Id -> text. Raises DataError: one id has several texts."""
    found: dict[str, str] = {}
    for row, (name, text) in enumerate(zip(_ids(rows, side), rows[side][:], strict=True)):
        if found.setdefault(name, text) != text:
            raise DataError(Problem(f"row {row + 1}", f"the {side} {name!r} has another text in an earlier row"))
    return found


def _judged(rows: Dataset) -> dict[str, dict[str, int]]:
    """Query -> document -> grade."""
    if "grade" not in rows.column_names:
        raise DataError(Problem("column `grade`", f"not in the rows, which have {', '.join(rows.column_names)}"))
    found: dict[str, dict[str, int]] = {}
    for query, document, grade in zip(_ids(rows, "query"), _ids(rows, "document"), rows["grade"][:], strict=True):
        if query:
            found.setdefault(query, {})[document] = int(grade)
    return found


def _run(answers: Sequence[Answer], rows: Dataset) -> dict[str, dict[str, float]]:
    """Query -> document -> score, of what was found, best first."""
    ids = _ids(rows, "query")
    found = {ids[row]: answer["found"] for row, answer in enumerate(answers) if "found" in answer}
    # Scores of the order: two documents of one score stay as they were found.
    return {query: {each["id"]: -float(place) for place, each in enumerate(hits)} for query, hits in found.items()}


def _measured(answers: Sequence[Answer], rows: Dataset) -> PerQuery:
    return ranking.measures(_run(answers, rows), _judged(rows), KS)
