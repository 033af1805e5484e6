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
from starlette.testclient import TestClient

from bertkit.cli.main import main
from bertkit.errors import ModelError
from bertkit.inference.predictor import Predictor, load
from bertkit.retrieval.commands import index_file, search_store
from bertkit.retrieval.models import model_identity
from bertkit.retrieval.store import Store
from bertkit.serve.limits import Limits

DOCUMENTS = [
    {"id": "a", "title": "Cats", "text": "the cat sat on a mat", "year": 2020, "tags": ["red"]},
    {"id": "b", "text": "the dog ran up and the dog ran down " * 5, "year": 2024, "tags": ["red", "blue"]},
    {"id": "c", "text": "a bad bad dog", "year": 2023},
    {"id": "d", "text": "one two three four five"},
]
QUERIES = ["the cat", "not very good", "two dog"]


def write(file: Path, documents: list[dict[str, Any]]) -> Path:
    file.write_text("".join(f"{json.dumps(document)}\n" for document in documents))
    return file


def retriever(tiny_encoder: Path, folder: Path, prefix: str = "yes ") -> str:
    """A model folder for retrieval, whose queries have a prefix."""
    config = transformers.AutoConfig.from_pretrained(tiny_encoder)
    task = {"name": "retrieval", "query_prefix": prefix}
    config.bertkit = {"version": "0.1.0", "task": task, "precision": "fp32", "max_length": 24}
    transformers.AutoModel.from_pretrained(tiny_encoder, config=config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def model(tiny_encoder: Path, tmp_path: Path) -> str:
    return retriever(tiny_encoder, tmp_path / "model")


@pytest.fixture
def store(model: str, tmp_path: Path) -> str:
    """The URI of a store of DOCUMENTS."""
    uri = str(tmp_path / "store")
    index_file(model, uri, documents=write(tmp_path / "documents.jsonl", DOCUMENTS))
    return uri


@pytest.fixture
def served(model: str, store: str) -> tuple[Predictor, Store]:
    """What `bertkit serve MODEL --store STORE` serves."""
    predictor = load(model)
    return predictor, Store.open(store, model_identity(predictor, model))


@pytest.fixture
def client(served: tuple[Predictor, Store]) -> Iterator[TestClient]:
    with TestClient(make_app(served[0], "small", Limits(), store=served[1])) as made:
        yield made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 2},
        {"filter": "year > 2020"},
        {"filter": "array_has(tags, 'red')", "hybrid": True},
        {"exact": True},
    ],
    ids=str,
)
def test_the_documents_of_the_command(client: TestClient, store: str, options: dict[str, Any]) -> None:
    expected = [list(map(asdict, hits)) for hits in search_store(store, QUERIES, **options)]
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


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
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
        ({"query": "a", "filter": "yeer > 2020"}, 422, "Columns: id (text)"),
        ({"query": "a", "filter": "(" * 5000}, 422, "filter"),
        ({"query": "a", "filter": "x" * 10_001}, 422, "filter"),
        ({"query": "a", "rerank": "b"}, 422, "rerank: Extra inputs"),
    ],
)
def test_requests_that_are_refused(client: TestClient, body: dict[str, Any], status: int, part: str) -> None:
    error = said(client, "/search", status=status, **body)
    assert part in error["error"]
    assert error.keys() == {"error", "error_type"}
    assert len(said(client, "/search", query="the cat")["hits"]) == 4


def test_documents_that_are_written_while_it_serves(
    client: TestClient, served: tuple[Predictor, Store], model: str, store: str, tmp_path: Path
) -> None:
    new = {"id": "new", "text": "the cat", "lang": "en"}
    index_file(model, store, documents=write(tmp_path / "more.jsonl", [new]), delete=["d"])
    served[1].table.checkout_latest()  # which LanceDB does by itself once 5 seconds have passed
    hits = {hit["id"]: hit for hit in said(client, "/search", query="the cat")["hits"]}
    assert hits.keys() == {"a", "b", "c", "new"}
    assert hits["new"]["metadata"] == {"lang": "en"}
    (hit,) = said(client, "/search", query="the cat", filter="lang = 'en'")["hits"]
    assert hit == {**hits["new"], "score": pytest.approx(hits["new"]["score"], abs=1e-6)}


def test_a_store_that_is_emptied_removed_or_replaced(
    client: TestClient, served: tuple[Predictor, Store], model: str, store: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    index_file(model, store, delete=list("abcd"))
    served[1].table.checkout_latest()
    assert "the store is empty" in said(client, "/search", status=500, query="the cat")["error"]
    shutil.rmtree(store)
    error = said(client, "/search", status=500, query="the cat")
    assert error["error_type"] == "Backend"
    other = retriever(tiny_encoder, tmp_path / "other", prefix="no ")
    index_file(other, store, documents=tmp_path / "documents.jsonl")
    served[1].table.checkout_latest()
    assert "is another model" in said(client, "/search", status=500, query="the cat")["error"]


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


def test_a_search_that_takes_too_long(served: tuple[Predictor, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    may = threading.Event()
    monkeypatch.setattr("bertkit.retrieval.search.search", lambda *_, **__: may.wait(30))
    with TestClient(make_app(served[0], "small", Limits(timeout=1), store=served[1])) as client:
        error = said(client, "/search", status=504, query="the cat")["error"]
        may.set()
    assert error == "not found within 1 seconds"


def test_a_store_that_is_empty_at_the_start(served: tuple[Predictor, Store], model: str, tmp_path: Path) -> None:
    served[1].delete(list("abcd"))
    with TestClient(make_app(served[0], "small", Limits(), store=served[1])) as client:
        assert "the store is empty" in said(client, "/search", status=500, query="the cat")["error"]
        index_file(model, served[1].uri, documents=tmp_path / "documents.jsonl")
        served[1].table.checkout_latest()
        assert len(said(client, "/search", query="the cat")["hits"]) == 4


@pytest.mark.parametrize("name", ["retrieval", "single-label"])
def test_without_a_store(name: str, tiny_encoder: Path) -> None:
    with TestClient(make_app(predictor_of(KEPT[name], tiny_encoder), "small", Limits())) as client:
        assert "--store" in said(client, "/search", status=424, query="a")["error"]
        assert "/search" not in client.get("/openapi.json").json()["paths"]


def test_the_command_refuses_a_store_of_another_model(
    store: str, tiny_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = retriever(tiny_encoder, tmp_path / "other", prefix="no ")
    for where, message in ((store, "is another model"), (str(tmp_path), "is not a store of bertkit")):
        assert main(["serve", other, "--store", where, "--port", "0"]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(ModelError, match="gives no vectors"):
        model_identity(predictor_of(KEPT["single-label"], tiny_encoder), "small")
