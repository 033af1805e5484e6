"""Requests and responses of /search: documents of a vector store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from bertkit.data.schema import Answer
from bertkit.serve.answer_schemas import described, list_of, schema
from bertkit.serve.limits import Refused
from bertkit.serve.pipelines import Request
from bertkit.serve.tei import Strings

if TYPE_CHECKING:
    from bertkit.retrieval.store import Store  # which imports pyarrow

MAX_HITS = 10_000  # documents in a response: they are in memory at once
MAX_SEARCHES = 4  # at a time, late ones included, which LanceDB ends: it uses all cores for one


class SearchRequest(Request):
    """One query or several, with the options of `bertkit search`."""

    query: str | None = None
    queries: Strings | None = None
    top_k: int = Field(10, ge=1, le=1000, description="documents per query")
    filter: dict[str, Any] | None = Field(None, description='such as `{"lang": "en", "year": {"gte": 2020}}`')
    hybrid: bool = Field(False, description="fuse the ranks with those of a full-text search")

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.query is None) == (self.queries is None):
            raise ValueError("expected either `query`, a text, or `queries`, a list of texts")
        return self

    @property
    def texts(self) -> Sequence[str]:
        """The queries. Raises Refused where their documents are too many."""
        texts = self.queries if self.query is None else [self.query]
        if len(texts or ()) * self.top_k > MAX_HITS:
            raise Refused(413, f"`top_k` documents for each query: more than {MAX_HITS:,} in all", "Validation")
        return texts or []


SearchHit = schema(
    "SearchHit",
    "A document, by its best passage: `text`, from `start` to `end` of the document's text.",
    id=str,
    score=described(float, "the cosine of the query and the passage"),
    relevance=described(float, "the sort key: the cosine, or with `hybrid` the fused ranks"),
    **dict.fromkeys(("passage", "start", "end"), int),
    **dict.fromkeys(("text", "title"), str),
    metadata=described(dict[str, Any], "its other columns"),
)
_hits = described(list_of(SearchHit) | list_of(list_of(SearchHit)), "best first; with `queries` a list per query")
SearchResponse = schema("SearchResponse", "Documents.", hits=_hits)


def search_all(store: Store, body: SearchRequest, answers: Sequence[Answer], timeout: float) -> dict[str, Any]:
    """The response. answers: the vectors of the queries. timeout: seconds for each. Raises as `search`."""
    from bertkit.retrieval.search import search

    options: dict[str, Any] = body.model_dump(include={"top_k", "filter", "hybrid"}) | {"timeout": timeout}
    hits = [search(store, text, answer["vector"], **options) for text, answer in zip(body.texts, answers, strict=True)]
    return {"hits": hits if body.query is None else hits[0]}
