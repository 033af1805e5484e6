"""/search gives the documents that `bertkit search` gives, of the store as it is now."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import transformers
from serving import KEPT, SECRET, alike, make_app, predictor_of, said
from small import write_rows as write
from starlette.testclient import TestClient

from bertkit.cli.main import main
from bertkit.errors import ModelError
from bertkit.inference.predictor import Predictor, load
from bertkit.retrieval.commands import index_file, searcher
from bertkit.retrieval.store import Store
from bertkit.retrieval.vector_models import dual_encoder
from bertkit.serve.limits import Limits
from bertkit.serve.store_search import MAX_SEARCHES

DOCUMENTS = [
    {"id": "a", "title": "Cats", "text": "the cat sat on a mat", "year": 2020, "tags": ["red"]},
    {"id": "b", "text": "the dog ran up and the dog ran down " * 5, "year": 2024, "tags": ["red", "blue"]},
    {"id": "c", "text": "a bad bad dog", "year": 2023},
    {"id": "d", "text": "one two three four five"},
]
QUERIES = ["the cat", "not very good", "two dog"]


def retriever(tiny_encoder: Path, folder: Path, prefix: str = "yes ") -> str:
    """A model folder for retrieval, whose queries have a prefix."""
    config = transformers.AutoConfig.from_pretrained(tiny_encoder)
    task = {"name": "retrieval", "query_prefix": prefix}
    config.bertkit = {"version": "0.1.0", "task": task, "precision": "fp32", "max_length": 24}
    transformers.AutoModel.from_pretrained(tiny_encoder, config=config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def room(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model, and of a store of DOCUMENTS that nobody changes."""
    folder = tmp_path_factory.mktemp("search")
    model = retriever(tiny_encoder, folder / "model")
    index_file(model, str(folder / "store"), write(folder / "documents.jsonl", DOCUMENTS))
    return folder


@pytest.fixture(scope="module")
def predictor(room: Path) -> Predictor:
    return load(str(room / "model"))


@pytest.fixture(scope="module")
def client(room: Path, predictor: Predictor) -> Iterator[TestClient]:
    """Of what `bertkit serve MODEL --store STORE` serves."""
    with TestClient(make_app(predictor, "small", Limits(), store=Store.open(room / "store"))) as made:
        yield made


@pytest.fixture
def own(room: Path, tmp_path: Path) -> Store:
    """A copy of the store, to be changed."""
    return Store.open(shutil.copytree(room / "store", tmp_path / "store"))


@pytest.fixture
def own_client(predictor: Predictor, own: Store) -> Iterator[TestClient]:
    with TestClient(make_app(predictor, "small", Limits(), store=own)) as made:
        yield made


def test_the_documents_of_the_command(client: TestClient, room: Path) -> None:
    conditions = {"year": "year>2020", "tags": "tags=red"}
    for options in (
        {},
        {"top_k": 2},
        {"filter": {"year": {"gt": 2020}}},
        {"filter": {"tags": "red"}, "hybrid": True},
    ):
        theirs = {**options, "filter": [conditions[name] for name in options.get("filter", ())]}
        expected = [list(map(asdict, hits)) for hits in searcher(str(room / "store"), **theirs)(QUERIES)]
        assert len({json.dumps(hits) for hits in expected}) == len(QUERIES)  # so that swapped answers would be seen
        alike(said(client, "/search", query=QUERIES[0], **options), {"hits": expected[0]})
        alike(said(client, "/search", queries=QUERIES, **options), {"hits": expected})


def test_the_schema_that_is_promised(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    operation, components = document["paths"]["/search"]["post"], {"components": document["components"]}
    answered = components | operation["responses"]["200"]["content"]["application/json"]["schema"]
    for body in ({"query": "the cat"}, {"queries": QUERIES}):
        jsonschema.validate(body, components | operation["requestBody"]["content"]["application/json"]["schema"])
        found = said(client, "/search", **body)
        jsonschema.validate(found, answered)
    found["hits"][0][0]["neither"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, answered)


SQL = "1) OR (1=1"
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({}, 422, "either `query`, a text, or `queries`"),
    ({"query": "a", "queries": ["a"]}, 422, "either `query`, a text, or `queries`"),
    ({"queries": []}, 400, "`queries` is empty"),
    ({"query": " "}, 422, "query: is empty"),
    ({"query": 5}, 422, "query"),
    ({"query": "a", "top_k": 0}, 422, "top_k"),
    ({"query": "a", "top_k": 1001}, 422, "top_k"),
    ({"queries": ["a"] * 11, "top_k": 1000}, 413, "more than 10,000 in all"),
    ({"queries": ["a"] * 257}, 413, "257 items; 256 are allowed"),
    ({"query": "a b " * 20_000}, 413, "`query`, item 1: about 20,002 tokens"),
    ({"query": "a", "filter": {"yeer": 2020}}, 422, "there is no column 'yeer'; there are id (text)"),
    ({"query": "a", "filter": {"year": "2020"}}, 422, "`year` holds whole numbers"),
    ({"query": "a", "filter": {str(n): n for n in range(101)}}, 422, "more than 100 values"),
    ({"query": "a", "filter": {"year": list(range(200))}}, 422, "more than 100 values"),
    ({"query": "a", "filter": []}, 422, "filter"),
    *(({"query": "a", "filter": {"year": wrong}}, 422, "`year` holds whole numbers") for wrong in ({"gt": SQL}, [SQL])),
    ({"query": "a", "filter": {SQL: 1}}, 422, "filter: there is no column"),
    ({"query": "a", "filter": SQL}, 422, "filter"),
    ({"query": "a", "rerank": "b"}, 422, "rerank: Extra inputs"),
]


def test_requests_that_are_refused(client: TestClient) -> None:
    for body, status, part in REFUSED:
        error = said(client, "/search", status=status, **body)
        assert part in error["error"]
        assert error.keys() == {"error", "error_type"}
        assert len(said(client, "/search", query="the cat")["hits"]) == 4


def test_a_store_that_is_written_emptied_removed_or_replaced_while_it_is_served(
    own_client: TestClient, own: Store, room: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    new = {"id": "new", "text": "the cat", "lang": "en"}
    index_file(str(room / "model"), own.uri, write(tmp_path / "more.jsonl", [new]), delete=["d"])
    own.table.checkout_latest()  # which LanceDB does by itself once 5 seconds have passed
    hits = {hit["id"]: hit for hit in said(own_client, "/search", query="the cat")["hits"]}
    assert hits.keys() == {"a", "b", "c", "new"}
    assert hits["new"]["metadata"] == {"lang": "en"}
    (hit,) = said(own_client, "/search", query="the cat", filter={"lang": "en"})["hits"]
    alike(hit, hits["new"])
    own.delete(list(hits))
    own.table.checkout_latest()
    assert "the store is empty" in said(own_client, "/search", status=500, query="the cat")["error"]
    index_file(str(room / "model"), own.uri, room / "documents.jsonl")
    own.table.checkout_latest()
    assert len(said(own_client, "/search", query="the cat")["hits"]) == 4
    shutil.rmtree(own.uri)
    assert said(own_client, "/search", status=500, query="the cat")["error_type"] == "Backend"
    index_file(retriever(tiny_encoder, tmp_path / "other", prefix="no "), own.uri, room / "documents.jsonl")
    own.table.checkout_latest()
    assert "is another model" in said(own_client, "/search", status=500, query="the cat")["error"]


def test_a_search_that_fails(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise BaseException(SECRET)  # as a panic in Rust

    with monkeypatch.context() as patched:
        patched.setattr("bertkit.retrieval.search.search", fails)
        assert "the search failed" in said(client, "/search", status=500, query="the cat")["error"]
    assert "in fails" in caplog.text
    assert SECRET not in caplog.text
    assert said(client, "/search", query="the cat")["hits"]


def test_late_searches_stop_no_other_answer(room: Path, predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count until they end: when all threads are busy, a search is late too, and other paths answer."""
    may, busy = threading.Event(), threading.Semaphore(0)

    def slow(*_: Any, **__: Any) -> Any:
        busy.release()
        assert may.wait(60)
        return []

    monkeypatch.setattr("bertkit.retrieval.search.search", slow)
    app = make_app(predictor, "small", Limits(timeout=1), store=Store.open(room / "store"))
    with TestClient(app) as client:
        for _ in range(MAX_SEARCHES):
            late = said(client, "/search", status=504, query="the cat")
            assert late["error"] == "the search did not end in time"
        assert all(busy.acquire(timeout=60) for _ in range(MAX_SEARCHES))
        assert said(client, "/search", status=504, query="the cat")["error"] == "the search did not end in time"
        assert not busy.acquire(blocking=False)
        assert said(client, "/predict", rows=[{"text": "the cat"}])["answers"]
        assert client.get("/health").status_code == 200
        may.set()
        while client.post("/search", json={"query": "the cat"}).status_code == 504:
            pass
        assert said(client, "/search", query="the cat") == {"hits": []}


@pytest.mark.parametrize("name", ["retrieval", "single-label"])
def test_without_a_store(name: str, tiny_encoder: Path) -> None:
    with TestClient(make_app(predictor_of(KEPT[name], tiny_encoder), "small", Limits())) as client:
        assert "--store" in said(client, "/search", status=424, query="a")["error"]
        assert "/search" not in client.get("/openapi.json").json()["paths"]


def test_the_command_refuses_a_store_of_another_model(
    room: Path, tiny_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = retriever(tiny_encoder, tmp_path / "other", prefix="no ")
    for where, message in ((f"{room}/store", "is another model"), (str(tmp_path), "is not a store of bertkit")):
        assert main(["serve", other, "--store", where, "--port", "0"]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(ModelError, match="gives no vectors"):
        dual_encoder("small", predictor=predictor_of(KEPT["single-label"], tiny_encoder))
