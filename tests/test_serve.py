"""The HTTP server: its answers are the predictor's own, whoever else asks; and nothing that comes in brings it down."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest
import small
import torch
import transformers
from cases import CASES, DRAWN, TEXTS, Case, encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from bertkit.cli.main import main
from bertkit.errors import DataError, Problem, UserError
from bertkit.inference.predictor import Predictor, load
from bertkit.serve.app import make_app
from bertkit.serve.batcher import Batcher, estimated_tokens
from bertkit.serve.limits import Limits, Refused
from bertkit.serve.metrics import Metrics
from bertkit.serve.middleware import LimitsMiddleware
from bertkit.serve.rows import RowReader
from bertkit.serve.server import listen, make_server, serve

SECRET = "the-cat-is-a-secret"
KEPT = {case.id: case for case in [*CASES, *DRAWN]}


def predictor_of(case: Case, folder: Path, **columns: str) -> Predictor:
    """A predictor with an untrained head: what it says is arbitrary, but always the same."""
    task = case.task(folder)
    torch.manual_seed(1)
    model = task.model(encoder(folder)).eval()
    return Predictor(task, model, torch.device("cpu"), "fp32", 4, columns)


def rows_of(case: Case, predictor: Predictor) -> list[dict[str, Any]]:
    """The case's rows without what they should be answered with."""
    form = next(names for names in predictor.task.inputs if names <= case.columns.keys())
    names = [name for name in case.columns if name in {*form, *predictor.task.schema.context}]
    return [dict(zip(names, row, strict=True)) for row in zip(*(case.columns[n] for n in names), strict=True)]


def alike(found: Any, expected: Any) -> None:
    """Equal, numbers to rounding: other rows in a batch mean other padding."""
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            alike(found[name], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            alike(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-5)
    else:
        assert found == expected


@pytest.fixture
def client(request: pytest.FixtureRequest, tiny_encoder: Path) -> Iterator[TestClient]:
    """A client of the case's server."""
    with TestClient(make_app(predictor_of(KEPT[request.param], tiny_encoder), "small", Limits())) as made:
        yield made


def served(name: str) -> Any:
    """The decorator for tests of one case's server."""
    return pytest.mark.parametrize("client", [name], indirect=True)


def said(client: TestClient, path: str, status: int = 200, **body: Any) -> Any:
    """What the server says to this body."""
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


# --- answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_the_predictors_own_answers_in_the_schemas_that_are_promised(case: Case, tiny_encoder: Path) -> None:
    predictor = predictor_of(case, tiny_encoder)
    rows = rows_of(case, predictor)
    with TestClient(make_app(predictor, "small", Limits())) as client:
        found = said(client, "/predict", rows=rows)
        schemas = client.get("/openapi.json").json()
    alike(found["answers"], predictor(rows))
    operation, components = schemas["paths"]["/predict"]["post"], {"components": schemas["components"]}
    for schema, value in (
        (operation["requestBody"]["content"], {"rows": rows}),
        (operation["responses"]["200"]["content"], found),
    ):
        schema = components | schema["application/json"]["schema"]
        jsonschema.validate(value, schema)
        with pytest.raises(jsonschema.ValidationError):  # so that the schema does not allow just anything
            jsonschema.validate({name: [{"neither": 1}] for name in value}, schema)


def test_texts_and_columns_by_the_recipes_names_and_by_their_own(tiny_encoder: Path) -> None:
    predictor = predictor_of(KEPT["single-label"], tiny_encoder, text="sentence")
    with TestClient(make_app(predictor, "small", Limits())) as client:
        for rows in (TEXTS, [{"sentence": text, "text": "no"} for text in TEXTS], [{"text": text} for text in TEXTS]):
            alike(said(client, "/predict", rows=rows)["answers"], predictor(TEXTS))


@pytest.mark.parametrize("name", ["ner-document", "retrieval", "similarity-in-batch", "mlm"])
def test_rows_whose_answers_depend_on_each_other_share_no_call(name: str, tiny_encoder: Path) -> None:
    predictor = predictor_of(KEPT[name], tiny_encoder)
    rows = rows_of(KEPT[name], predictor)
    if "positive" in rows[0]:  # of other anchors, so that some are not the nearest
        rows = [row | {"positive": other["positive"]} for row, other in zip(rows, rows[3:] + rows[:3], strict=True)]
    together, apart = predictor(rows), [*predictor(rows[:3]), *predictor(rows[3:])]
    with pytest.raises(AssertionError):  # so that it matters
        alike(together, apart)
    assert RowReader(predictor.task, {}, Limits()).key(rows) is None


@pytest.mark.parametrize("name", ["single-label", "pair", "qa", "ner-crf", "similarity-mse", "ranking-graded-windows"])
def test_rows_that_stand_alone_share_calls(name: str, tiny_encoder: Path) -> None:
    predictor = predictor_of(KEPT[name], tiny_encoder)
    rows = rows_of(KEPT[name], predictor)
    alike(predictor(rows[:4]), [*predictor(rows[:2]), *predictor(rows[2:4])])
    reader = RowReader(predictor.task, {}, Limits())
    assert reader.key(rows[:2]) == reader.key(rows[2:4]) is not None


def test_rows_with_other_columns_share_no_call(tiny_encoder: Path) -> None:
    reader = RowReader(predictor_of(KEPT["ner-crf"], tiny_encoder).task, {}, Limits())
    assert reader.key([{"text": "a cat"}]) != reader.key([{"tokens": ["a", "cat"]}])


# --- text-embeddings-inference -----------------------------------------------------------------------------------


@served("retrieval")
def test_embed(client: TestClient, tiny_encoder: Path) -> None:
    predictor = predictor_of(KEPT["retrieval"], tiny_encoder)
    sides = {"query": "query", "document": "document", None: "text"}
    for prompt, side in sides.items():
        expected = predictor.encode(TEXTS, side)  # type: ignore[arg-type]
        np.testing.assert_allclose(said(client, "/embed", inputs=TEXTS, prompt_name=prompt), expected, atol=1e-5)
    assert not np.allclose(predictor.encode(TEXTS, "query"), predictor.encode(TEXTS), atol=1e-3)
    np.testing.assert_allclose(said(client, "/embed", inputs=TEXTS[0]), predictor.encode(TEXTS[:1]), atol=1e-5)


@served("similarity-nli")  # of vectors that are not brought to length 1
def test_embed_normalizes_unless_told(client: TestClient, tiny_encoder: Path) -> None:
    own = predictor_of(KEPT["similarity-nli"], tiny_encoder).encode(TEXTS)
    lengths = np.linalg.norm(own, axis=1, keepdims=True)
    assert abs(lengths - 1).min() > 0.1
    np.testing.assert_allclose(said(client, "/embed", inputs=TEXTS, normalize=False), own, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(said(client, "/embed", inputs=TEXTS), own / lengths, atol=1e-5)


@served("retrieval")
def test_openai_embeddings(client: TestClient, tiny_encoder: Path) -> None:
    predictor = predictor_of(KEPT["retrieval"], tiny_encoder)
    expected = predictor.encode(TEXTS)
    found = said(client, "/v1/embeddings", input=TEXTS, model="whatever")
    np.testing.assert_allclose([each["embedding"] for each in found["data"]], expected, atol=1e-5)
    assert [each["index"] for each in found["data"]] == list(range(8))
    pieces = sum(len(predictor.task.tokenizer(text)["input_ids"]) for text in TEXTS)
    assert found["usage"] == {"prompt_tokens": pieces, "total_tokens": pieces}
    coded = said(client, "/v1/embeddings", input=TEXTS[1], encoding_format="base64")["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(coded), "<f4"), expected[1], atol=1e-5)


@pytest.mark.parametrize(
    ("client", "activation"), [("ranking-binary", "sigmoid"), ("ranking-listwise", "identity")], indirect=["client"]
)
def test_rerank(client: TestClient, activation: str, tiny_encoder: Path) -> None:
    name = "ranking-binary" if activation == "sigmoid" else "ranking-listwise"
    predictor = predictor_of(KEPT[name], tiny_encoder)
    own = [answer["score"] for answer in predictor([{"query": "one cat", "document": text} for text in TEXTS])]
    logits = np.log(own) - np.log1p(-np.array(own)) if activation == "sigmoid" else np.array(own)
    order = np.argsort(-logits).tolist()
    found = said(client, "/rerank", query="one cat", texts=TEXTS)
    assert [rank["index"] for rank in found] == order
    assert [rank["score"] for rank in found] == pytest.approx((1 / (1 + np.exp(-logits)))[order], abs=1e-5)
    assert "text" not in found[0]
    raw = said(client, "/rerank", query="one cat", texts=TEXTS, raw_scores=True, return_text=True)
    assert [rank["score"] for rank in raw] == pytest.approx(logits[order], abs=1e-4)
    assert [rank["text"] for rank in raw] == [TEXTS[index] for index in order]


@pytest.mark.parametrize("client", ["single-label", "multi-label", "regression"], indirect=True)
def test_predict_with_inputs(client: TestClient, tiny_encoder: Path, request: pytest.FixtureRequest) -> None:
    predictor = predictor_of(KEPT[request.node.callspec.params["client"]], tiny_encoder)
    expected = []
    for answer in predictor(TEXTS):
        scores = answer.get("scores", {"score": answer.get("score")})
        expected.append([{"label": n, "score": s} for n, s in sorted(scores.items(), key=lambda pair: -pair[1])])
    alike(said(client, "/predict", inputs=[[text] for text in TEXTS]), expected)
    alike(said(client, "/predict", inputs=TEXTS[0]), expected[0])
    alike(said(client, "/predict", inputs=[TEXTS[0]]), expected[0])
    error = said(client, "/predict", status=422, inputs=TEXTS[:2])["error"]  # which is one pair, and no batch
    assert "[[text], …]" in error


@served("pair")
def test_predict_with_inputs_of_pairs(client: TestClient, tiny_encoder: Path) -> None:
    predictor = predictor_of(KEPT["pair"], tiny_encoder)
    best = [a["label"] for a in predictor([{"text_a": t, "text_b": "no"} for t in TEXTS])]
    found = said(client, "/predict", inputs=[[text, "no"] for text in TEXTS])
    assert [each[0]["label"] for each in found] == best
    assert said(client, "/predict", inputs=[TEXTS[0], "no"])[0]["label"] == best[0]
    assert "reads pairs" in said(client, "/predict", status=422, inputs=[["a", "no"], ["a"]])["error"]


@served("retrieval")
def test_a_text_that_is_too_long_is_cut_unless_that_is_forbidden(client: TestClient, tiny_encoder: Path) -> None:
    long = "the cat " * 100
    for path, inputs in (("/embed", ["yes", long]), ("/similarity", {"source_sentence": "yes", "sentences": [long]})):
        forbidden = {"truncate": False} if path == "/embed" else {"parameters": {"truncate": False}}
        error = said(client, path, status=413, inputs=inputs, **forbidden)["error"]
        assert "input 2" in error
        assert "32 tokens" in error
    own = predictor_of(KEPT["retrieval"], tiny_encoder).encode([long])
    np.testing.assert_allclose(said(client, "/embed", inputs=long), own, atol=1e-5)
    np.testing.assert_allclose(said(client, "/embed", inputs=long, truncate=True), own, atol=1e-5)
    found = said(client, "/v1/embeddings", input=long)
    np.testing.assert_allclose(found["data"][0]["embedding"], own[0], atol=1e-5)
    assert found["usage"]["prompt_tokens"] == 32
    assert said(client, "/predict", rows=[long])["answers"][0]["truncated"] is True
    assert client.get("/info").json()["auto_truncate"] is True
    assert "bertkit_truncated_rows_total 6.0" in client.get("/metrics").text


@served("ner-softmax")
def test_tokenize(client: TestClient, tiny_encoder: Path) -> None:
    tokenizer, text = predictor_of(KEPT["ner-softmax"], tiny_encoder).task.tokenizer, "the é cat 😀 [SEP] sat"
    found = said(client, "/tokenize", inputs=[text, "yes"])
    assert [[token["id"] for token in tokens] for tokens in found] == tokenizer([text, "yes"])["input_ids"]
    first, *middle, last = found[0]
    names = tokenizer.cls_token, tokenizer.sep_token
    for token, name in zip((first, last), names, strict=True):
        number = tokenizer.convert_tokens_to_ids(name)
        assert token == {"id": number, "text": name, "special": True, "start": None, "stop": None}
    for token in middle:
        assert text.encode()[token["start"] : token["stop"]].decode() == token["text"]
        assert token["special"] is False
    assert "".join(token["text"] for token in middle) == text.replace(" ", "")
    assert said(client, "/tokenize", inputs=text, add_special_tokens=False) == [middle]
    schemas = client.get("/openapi.json").json()
    promised = schemas["paths"]["/tokenize"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(found, {"components": schemas["components"]} | promised)
    assert "empty" in said(client, "/tokenize", status=400, inputs=[])["error"]
    assert "257 items" in said(client, "/tokenize", status=413, inputs=["a"] * 257)["error"]
    assert "item 1" in said(client, "/tokenize", status=413, inputs="a b " * 20_000)["error"]
    assert "prompt_name: Extra inputs" in said(client, "/tokenize", status=422, inputs="a", prompt_name="q")["error"]


@served("single-label")
def test_paths_that_the_task_has_not(client: TestClient) -> None:
    for path in ("/embed", "/embed_all", "/similarity", "/v1/embeddings", "/rerank"):
        error = said(client, path, status=424, inputs="a")["error"]
        assert "text-classification" in (error["message"] if path.startswith("/v1/") else error)
        assert path not in client.get("/openapi.json").json()["paths"]


def test_no_redirect(classifier: TestClient) -> None:
    response = classifier.post("/predict/", json={"rows": ["a"]}, headers={"Host": "evil"}, follow_redirects=False)
    assert response.status_code == 404
    assert response.json()["error"] == "Not Found"
    assert "location" not in response.headers


# --- what is not answered ----------------------------------------------------------------------------------------

BAD: list[tuple[str, int, str]] = [
    ("", 422, "the body"),
    ("{", 400, "not JSON"),
    ("null", 422, "rows"),
    ("[]", 422, "rows"),
    ('"rows"', 422, "rows"),
    ('{"rows": []}', 400, "`rows` is empty"),
    ('{"inputs": []}', 400, "`inputs` is empty"),
    ('{"rows": null}', 422, "expected a list, found None"),
    ('{"rows": {"text": "a"}}', 422, "expected a list"),
    ('{"rows": "a"}', 422, "expected a list, found 'a'"),
    ('{"rows": ["a", 5]}', 422, "row 2: expected a text, or columns such as"),
    ('{"rows": [NaN]}', 422, "row 1: expected a text, or columns such as"),
    ('{"rows": [{"txt": "a"}]}', 422, "row 1: no text in this row; it has txt"),
    ('{"rows": [{}]}', 422, "it has nothing"),
    ('{"rows": [{"text": "a"}, {"txt": "a"}]}', 422, "row 2: no text in this row; it has txt"),
    ('{"rows": [{"text": null}]}', 422, "row 1: `text` is null"),
    ('{"rows": [{"text": ["a"]}]}', 422, "row 1: `text` holds ['a'], where text is expected"),
    ('{"rows": ["a"], "top": 3}', 422, "top: Extra inputs"),
    ('{"row": ["a"]}', 422, "rows: Field required"),
    ('{"inputs": 5}', 422, "inputs"),
    ('{"inputs": "a", "raw_scores": true}', 422, "raw_scores"),
    ('{"rows": [{"\\ud800": "a"}]}', 422, "no text in this row"),
    ("[" * 100_000, 400, "parsing"),
    ('{"rows": [' + "9" * 5000 + "]}", 400, "parsing"),
    ('{"rows": [' + ",".join(['"a"'] * 257) + "]}", 413, "257 items; 256 are allowed"),
    ('{"rows": ["a", "' + "a b " * 16_384 + '"]}', 413, "`rows`, item 2: about 16,385 tokens; 16,384 are allowed"),
    ('{"rows": ["' + "a" * 2_000_000 + '"]}', 413, "larger than 2,000,000 bytes"),
]


@pytest.fixture(scope="module")
def classifier(tiny_encoder: Path) -> Iterator[TestClient]:
    with TestClient(make_app(predictor_of(KEPT["single-label"], tiny_encoder), "small", Limits())) as made:
        yield made


@pytest.mark.parametrize(("body", "status", "part"), BAD, ids=[body[:40] for body, _, _ in BAD])
def test_bad_bodies(classifier: TestClient, body: str, status: int, part: str) -> None:
    response = classifier.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == status
    assert part in response.json()["error"]
    assert len(response.content) < 3000
    assert said(classifier, "/predict", rows=["a"])["answers"]


def test_rows_are_counted_before_they_are_read(classifier: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading half a million of them would keep the event loop from everyone else for seconds."""
    monkeypatch.setattr("bertkit.serve.rows.read_inputs", lambda *_: pytest.fail("they were read"))
    assert said(classifier, "/predict", status=413, rows=[5] * 257)["error"] == "`rows` has 257 items; 256 are allowed"


@pytest.mark.parametrize(
    ("client", "path", "body", "kinds"),
    [
        ("retrieval", "/embed", {"inputs": [5] * 300}, 2),  # neither a string nor a list of strings
        ("ranking-binary", "/rerank", {"query": "a", "texts": [5] * 300}, 1),
        ("single-label", "/predict", {"inputs": [[5]] * 300}, 2),
    ],
    indirect=["client"],
)
def test_one_error_for_a_list(client: TestClient, path: str, body: Any, kinds: int) -> None:
    assert said(client, path, status=422, **body)["error"].count("valid string") == kinds


def test_json_must_be_said_to_be_json(classifier: TestClient) -> None:
    response = classifier.post("/predict", content='{"rows": ["a"]}', headers={"Content-Type": "text/plain"})
    assert response.status_code == 415
    assert classifier.get("/predict").status_code == 405


def test_a_body_of_unknown_length_is_refused_while_it_is_read(classifier: TestClient) -> None:
    read = 0

    def body() -> Iterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield b"a" * 100_000

    response = classifier.post("/predict", content=body(), headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert said(classifier, "/predict", rows=["a"])["answers"]


def test_lone_surrogates_are_read_as_the_predictor_reads_them(classifier: TestClient, tiny_encoder: Path) -> None:
    own = predictor_of(KEPT["single-label"], tiny_encoder)(["cat \ud800 dog"])
    response = classifier.post(
        "/predict", content='{"rows": ["cat \\ud800 dog"]}', headers={"Content-Type": "application/json"}
    )
    alike(response.json()["answers"], own)


@served("ner-softmax")
def test_a_body_that_is_not_utf8_shifts_no_offsets(client: TestClient) -> None:
    body = '{"rows": [{"text": "\ud83d\ude00 cat"}]}'.encode("utf-8", "surrogatepass")  # CESU-8
    response = client.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert response.json()["error"].startswith("row 1: `text` holds a character as a pair of surrogates")
    answer = said(client, "/predict", rows=[{"text": "😀 cat"}])["answers"][0]
    assert answer["words"][1]["word"] == "cat"


def test_too_long_for_a_model_that_cuts_nothing(tiny_encoder: Path) -> None:
    case = Case("", {"name": "text-classification", "overflow": "error"}, KEPT["single-label"].columns, max_length=8)
    predictor = predictor_of(Case("", case.options, case.columns, max_length=8), tiny_encoder)
    with TestClient(make_app(predictor, "small", Limits(max_batch_tokens=41))) as client:
        error = said(client, "/predict", status=422, rows=["yes", "no", "the cat " * 20, "no"])["error"]
    assert error.startswith("row 3: 42 tokens, 8 are allowed")  # its own row, though it is called alone


def test_own_pages(classifier: TestClient) -> None:
    assert classifier.get("/health").json() == {"status": "ok"}
    about = classifier.get("/info").json()
    assert about["model_type"] == {
        "classifier": {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}}
    }
    assert (about["max_input_length"], about["payload_limit"], about["task"]) == (32, 2_000_000, "text-classification")
    page = classifier.get("/docs").text
    assert "/predict" in page
    assert "http" not in re.sub(r"https?://127\.0\.0\.1", "", page)  # nothing comes from elsewhere
    metrics = classifier.get("/metrics").text
    assert 'bertkit_requests_total{path="/health",status="200"}' in metrics
    classifier.get("/nobody/knows/this")
    assert "nobody" not in classifier.get("/metrics").text


def test_unhealthy_without_the_models_thread(tiny_encoder: Path) -> None:
    client = TestClient(make_app(predictor_of(KEPT["single-label"], tiny_encoder), "small", Limits()))
    assert client.get("/health").status_code == 503  # not entered: nothing was started


def test_a_tokenizer_that_panics_fails_one_request(tiny_encoder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A panic in Rust is a BaseException, which would end the task that answers requests."""
    predictor = predictor_of(KEPT["single-label"], tiny_encoder)
    small.panic_on_bytes_beyond_ascii(predictor.task.tokenizer)
    with pytest.raises(BaseException, match="index out of bounds") as panic:
        predictor("好")
    assert not isinstance(panic.value, Exception)
    with TestClient(make_app(predictor, "small", Limits())) as client:
        assert "see the server's log" in said(client, "/predict", status=500, rows=["yes", f"好 {SECRET}"])["error"]
        alike(said(client, "/predict", rows=["yes"])["answers"], predictor(["yes"]))
        assert client.get("/health").status_code == 200
    assert "PanicException" in caplog.text
    assert SECRET not in caplog.text


def bug(batcher: Batcher) -> None:
    """Stands for any in the batcher's own code."""
    raise ZeroDivisionError(SECRET)


def test_a_server_that_no_longer_answers_ends(
    tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Batcher, "_next_batch", bug)
    predictor = predictor_of(KEPT["single-label"], tiny_encoder)
    with pytest.raises(UserError, match=r"the server: requests are no longer answered \(ZeroDivisionError\)"):
        serve(predictor, "small", host="127.0.0.1", port=0, limits=Limits())
    assert "in bug" in caplog.text
    assert SECRET not in caplog.text


def test_whoever_waits_for_a_server_that_no_longer_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(batcher: Batcher, model: Model) -> None:
        first = asyncio.create_task(batcher.answers([row(0)], "same"))
        while not model.busy.is_set():
            await asyncio.sleep(0.001)
        second = asyncio.create_task(batcher.answers([row(1)], "same"))
        await asyncio.sleep(0)
        monkeypatch.setattr(Batcher, "_next_batch", bug)
        model.may.set()
        assert await first == [{"n": 0}]
        for waits in (second, batcher.answers([row(2)], "same")):
            with pytest.raises(Refused, match="no longer answers"):
                await waits

    batched(work)


# --- batches -----------------------------------------------------------------------------------------------------


class Model:
    """Answers rows with their number, when it may; remembers what it was given."""

    def __init__(self) -> None:
        self.may, self.busy = threading.Event(), threading.Event()
        self.calls: list[list[int]] = []

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        self.calls.append([row["n"] for row in rows])
        self.busy.set()
        assert self.may.wait(10)
        if any(row.get("bad") == "data" for row in rows):
            place = next(number for number, row in enumerate(rows, 1) if row.get("bad"))
            raise DataError(Problem(f"row {place}", "bad"))
        if any(row.get("bad") for row in rows):
            raise ZeroDivisionError(SECRET)
        return [{"n": row["n"]} for row in rows]


def row(number: int, size: int = 1, **more: Any) -> dict[str, Any]:
    """A row of so many tokens."""
    return {"n": number, "text": "x" * (4 * (size - 1)), **more}


def batched(work: Callable[[Batcher, Model], Any], model: Model | None = None, **limits: Any) -> Model:
    """Run `work` with a batcher around the model."""
    model = model or Model()

    async def run() -> None:
        async with Batcher(model, Limits(**limits), Metrics()) as batcher:
            try:
                await work(batcher, model)
            finally:
                model.may.set()

    asyncio.run(run())
    return model


async def waiting(batcher: Batcher, model: Model, *jobs: tuple[list[dict[str, Any]], Any]) -> list[Any]:
    """What each of these jobs gets that come while the model is busy with another."""
    first = asyncio.create_task(batcher.answers([row(-1)], "first"))
    while not model.busy.is_set():
        await asyncio.sleep(0.001)
    tasks = [asyncio.create_task(batcher.answers(rows, key)) for rows, key in jobs]
    await asyncio.sleep(0)
    model.may.set()
    await first
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_tokens_are_a_quarter_of_the_bytes() -> None:
    assert estimated_tokens({"text": "x" * 400}) == 101
    assert estimated_tokens({"tokens": ["abcd", "efgh"], "document": 3}) == 3
    assert estimated_tokens({"question": "été " * 10, "context": "好" * 10}) == 1 + 15 + 7 - 1 + 1
    assert estimated_tokens({"text": "\ud800"}) == 1


def test_what_waits_goes_together_up_to_the_budget() -> None:
    async def work(batcher: Batcher, model: Model) -> None:
        jobs = [([row(10 * job + n, size=10) for n in range(3)], "same") for job in range(4)]
        found = await waiting(batcher, model, *jobs)
        assert found == [[{"n": 10 * job + n} for n in range(3)] for job in range(4)]

    model = batched(work, max_batch_tokens=70)
    assert model.calls == [[-1], [0, 1, 2, 10, 11, 12, 20], [21, 22, 30, 31, 32]]


def test_rows_that_may_not_be_mixed_are_not_and_nobody_is_passed_over() -> None:
    async def work(batcher: Batcher, model: Model) -> None:
        jobs = [([row(0)], "a"), ([row(1), row(2)], None), ([row(3)], "b"), ([row(4)], "a"), ([row(5, 99)], "b")]
        assert await waiting(batcher, model, *jobs) == [[{"n": r["n"]} for r in rows] for rows, _ in jobs]

    assert batched(work, max_batch_tokens=20).calls == [[-1], [0, 4], [1, 2], [3], [5]]


def test_a_request_that_fails_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def work(batcher: Batcher, model: Model) -> None:
        jobs = [[row(0), row(1)], [row(2), row(3, bad="data")], [row(4, bad="bug")], [row(5)]]
        found = await waiting(batcher, model, *((rows, "same") for rows in jobs))
        assert found[0] == [{"n": 0}, {"n": 1}]
        assert found[3] == [{"n": 5}]
        assert str(found[1]) == "row 2: bad"
        assert (found[2].status, SECRET in str(found[2])) == (500, False)

    with caplog.at_level(logging.DEBUG):
        batched(work)
    assert "ZeroDivisionError" in caplog.text
    assert SECRET not in caplog.text


def test_a_part_that_fails_is_told_by_the_rows_of_its_request() -> None:
    async def work(batcher: Batcher, model: Model) -> None:
        model.may.set()
        with pytest.raises(DataError, match="row 5: bad"):
            await batcher.answers([*(row(n, 10) for n in range(4)), row(4, 10, bad="data")], "same")

    assert batched(work, max_batch_tokens=20).calls == [[0, 1], [2, 3], [4], [0, 1, 2, 3, 4]]


def test_a_function_that_fails_in_the_models_thread_is_refused() -> None:
    async def work(batcher: Batcher, model: Model) -> None:
        def panic() -> None:
            raise BaseException(SECRET)

        with pytest.raises(Refused, match="see the server's log") as refused:
            await batcher.call(panic)
        assert refused.value.status == 500
        model.may.set()
        assert await batcher.answers([row(0)], "same") == [{"n": 0}]

    batched(work)


def test_too_late() -> None:
    async def work(batcher: Batcher, model: Model) -> None:
        found = await asyncio.gather(
            batcher.answers([row(0)], "a"), batcher.answers([row(1)], "b"), return_exceptions=True
        )
        assert [(each.status, each.headers) for each in found if isinstance(each, Refused)] == [
            (504, None),
            (503, {"Retry-After": "1"}),
        ]
        model.may.set()
        await batcher.call(lambda: None)  # after the call that was too late
        assert await batcher.answers([row(2)], "c") == [{"n": 2}]

    assert batched(work, timeout=1).calls == [[0], [2]]  # what nobody waits for is not answered


def test_clients_that_leave_are_no_longer_counted_as_waiting() -> None:
    """Whether some of their rows were given to the model, or none."""

    async def work(batcher: Batcher, model: Model) -> None:
        def gauge() -> float | None:
            return batcher._metrics.registry.get_sample_value("bertkit_waiting_requests")

        begun = asyncio.create_task(batcher.answers([row(n, 10) for n in range(3)], "a"))
        while not model.busy.is_set():
            await asyncio.sleep(0.001)
        queued = asyncio.create_task(batcher.answers([row(3)], "b"))
        await asyncio.sleep(0)
        assert gauge() == 1
        begun.cancel()
        queued.cancel()
        await asyncio.wait([begun, queued])
        model.may.set()
        assert await batcher.answers([row(4)], "c") == [{"n": 4}]
        assert gauge() == 0

    assert batched(work, max_batch_tokens=10).calls == [[0], [4]]


def test_on_exit_what_was_taken_in_is_finished() -> None:
    model = Model()

    async def run() -> list[Any]:
        async with Batcher(model, Limits(), Metrics()) as batcher:
            tasks = [asyncio.create_task(batcher.answers([row(n)], n)) for n in range(5)]
            await asyncio.sleep(0)
            model.may.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(run()) == [[{"n": n}] for n in range(5)]


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from(["a", "b", None]), st.booleans()
        ),
        max_size=12,
    ),
    st.integers(1, 20),
)
def test_every_row_is_answered_to_whom_it_belongs(jobs: list[tuple[list[int], str | None, bool]], budget: int) -> None:
    numbered = [
        ([row(100 * job + n, size, bad="data" if bad else "") for n, size in enumerate(sizes)], key, bad)
        for job, (sizes, key, bad) in enumerate(jobs)
    ]

    async def work(batcher: Batcher, model: Model) -> None:
        found = await waiting(batcher, model, *((rows, key) for rows, key, _ in numbered))
        for (rows, _, bad), answers in zip(numbered, found, strict=True):
            assert isinstance(answers, DataError) if bad else answers == [{"n": r["n"]} for r in rows]

    model = batched(work, max_batch_tokens=budget)
    every = {r["n"]: (r, key) for rows, key, _ in numbered for r in rows}
    fails = any(bad for _, _, bad in numbered)
    for call in (call for call in model.calls if call != [-1]):
        keys = {every[n][1] for n in call}
        owners = {n // 100 for n in call}
        assert len(keys) == 1
        assert len(owners) == 1 or None not in keys
        alone = len(owners) == 1 and (None in keys or fails)
        assert alone or len(call) == 1 or sum(estimated_tokens(every[n][0]) for n in call) <= budget
    if not fails:  # then nothing is asked twice
        assert Counter(n for call in model.calls for n in call) == Counter([-1, *every])


# --- the whole application, with a model that waits ------------------------------------------------------------------


async def settled() -> None:
    """Let every task go on until it waits for the model."""
    for _ in range(100):
        await asyncio.sleep(0)


def stand_in(predictor: Predictor, model: Model) -> Any:
    """A predictor that waits until it may, and whose texts are numbers."""

    def stream(rows: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
        model([{"n": row["text"]} for row in rows])
        return predictor.stream(rows)

    return SimpleNamespace(task=predictor.task, columns={}, precision="fp32", stream=stream)


async def post(app: Any, text: str, leaves: asyncio.Event | None = None) -> list[dict[str, Any]]:
    """The messages of the response, by ASGI itself; the client goes away when `leaves` is set."""
    sent: list[dict[str, Any]] = []
    body = [{"type": "http.request", "body": json.dumps({"rows": [text]}).encode(), "more_body": False}]

    async def receive() -> Any:
        if body:
            return body.pop()
        await (leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/predict", "raw_path": b"/predict"}
    scope |= {
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "root_path": "",
        "scheme": "http",
    }
    await app({**scope, "client": None, "server": None, "state": {}, "asgi": {"version": "3.0"}}, receive, send)
    return sent


def test_a_full_house_and_clients_that_go_away(tiny_encoder: Path) -> None:
    model = Model()
    app = make_app(
        stand_in(predictor_of(KEPT["single-label"], tiny_encoder), model), "small", Limits(max_concurrent_requests=3)
    )

    async def run() -> None:
        leaves = asyncio.Event()
        async with app.router.lifespan_context(app):
            tasks = [asyncio.create_task(post(app, "zero"))]
            while not model.busy.is_set():
                await asyncio.sleep(0.001)
            tasks += [asyncio.create_task(post(app, "one", leaves)), asyncio.create_task(post(app, "two"))]
            await settled()
            full = await post(app, "three")
            assert full[0]["status"] == 429
            assert (b"retry-after", b"1") in full[0]["headers"]
            leaves.set()
            await tasks[1]
            tasks.append(asyncio.create_task(post(app, "four")))  # there is room again
            await settled()
            model.may.set()
            done = await asyncio.gather(*tasks)
        assert [messages[0]["status"] for messages in done] == [200, 499, 200, 200]

    asyncio.run(run())
    assert model.calls == [["zero"], ["two", "four"]]  # not what nobody waits for


def test_a_body_that_does_not_come(tiny_encoder: Path) -> None:
    app = make_app(predictor_of(KEPT["single-label"], tiny_encoder), "small", Limits(timeout=0.05))  # type: ignore[arg-type]
    sent = []

    async def run() -> None:
        async def never() -> Any:
            await asyncio.sleep(10)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/predict",
            "headers": [(b"content-type", b"application/json")],
        }
        async with app.router.lifespan_context(app):
            await app(scope | {"query_string": b""}, never, send)

    asyncio.run(run())
    assert sent[0]["status"] == 408


def test_the_limit_on_reading_a_body_ends_with_the_body() -> None:
    """An answer has its own limit: until then the client's disconnection is awaited."""
    received = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.append(await receive())
        received.append(await receive())

    async def run() -> None:
        messages = iter([{"type": "http.request", "body": b"{}", "more_body": False}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            if received:
                await asyncio.sleep(0.05)  # longer than the limit
            return next(messages)

        async def send(message: Any) -> None:
            raise AssertionError(message)

        limited = LimitsMiddleware(app, Limits(timeout=0.01), Metrics(), frozenset())
        headers = [(b"content-type", b"application/json")]
        await limited({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)

    asyncio.run(run())
    assert [message["type"] for message in received] == ["http.request", "http.disconnect"]


# --- a real server ---------------------------------------------------------------------------------------------------

HEADERS = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def model_folder(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small classifier, read in fp32 so that its answers tell requests apart to the fifth digit."""
    folder = tmp_path_factory.mktemp("serve") / "classifier"
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(tiny_encoder, num_labels=3, initializer_range=0.3)
    options = {
        "name": "text-classification",
        "kind": "single-label",
        "labels": [[n, n] for n in config.id2label.values()],
    }
    config.bertkit = {"version": "0.1.0", "task": options, "precision": "fp32"}
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(folder)
    return folder


@pytest.fixture
def server(model_folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`bertkit serve` as a process of its own, and its port."""
    command = [sys.executable, "-m", "bertkit", "serve", str(model_folder)]
    command += ["--port", "0", "--max-concurrent-requests", "6", "--max-batch-tokens", "64"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr
        try:
            line = process.stderr.readline()
            yield process, int(re.search(r"http://127\.0\.0\.1:(\d+)", line)[1])  # type: ignore[index]
        finally:
            process.kill()


def asked(port: int, body: Any, path: str = "/predict") -> tuple[int, Any, Any]:
    """Status, JSON and headers of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    content = body if isinstance(body, bytes) else json.dumps(body)
    connection.request("POST", path, content, HEADERS)
    response = connection.getresponse()
    found = response.status, json.loads(response.read()), response.headers
    connection.close()
    return found


def half_sent(port: int, body: bytes) -> http.client.HTTPConnection:
    """A connection on which half of a request has gone."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest("POST", "/predict")
    for name, value in {**HEADERS, "Content-Length": str(len(body))}.items():
        connection.putheader(name, value)
    connection.endheaders(body[: len(body) // 2])
    return connection


def metric(port: int, name: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return float(re.search(rf"^{name} (\S+)$", text, re.M)[1])  # type: ignore[index]


def until(true: Callable[[], bool]) -> None:
    """Wait, for at most 20 seconds."""
    for _ in range(2000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come true")


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return True
    return False


def test_a_server_under_load_that_is_stopped(server: Any, model_folder: Path) -> None:
    process, port = server
    oracle = load(model_folder)
    rng = np.random.default_rng(0)
    words = " ".join(TEXTS).split()
    requests = [
        [" ".join([*rng.choice(words, rng.integers(1, 40)), SECRET]) for _ in range(rng.integers(1, 9))]
        for _ in range(60)
    ]
    expected = [oracle(rows) for rows in requests]
    firsts = sorted(answers[0]["score"] for answers in expected)
    assert np.median(np.diff(firsts)) > 1e-4  # so that swapped answers would be seen

    def check(number: int) -> int:
        rows = requests[number]
        status, found, _ = asked(port, {"rows": rows} if number % 7 else {"rows": [*rows, 5]})
        if number % 7:
            alike(found["answers"], expected[number])
        return int(status)

    # As many clients as it takes at a time: none is refused, and all get what is theirs.
    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(check, range(60)))
    assert statuses == [200 if number % 7 else 422 for number in range(60)]
    assert metric(port, "bertkit_rows_total") == sum(len(rows) for n, rows in enumerate(requests) if n % 7)

    before = metric(port, "process_resident_memory_bytes")
    assert asked(port, b"a" * 100_000_000)[0] == 413
    assert metric(port, "process_resident_memory_bytes") < before + 20_000_000

    bodies = [json.dumps({"rows": rows}).encode() for rows in requests[:6]]
    connections = [half_sent(port, body) for body in bodies]
    until(lambda: metric(port, "bertkit_active_requests") == 6)
    status, _, headers = asked(port, {"rows": ["cat"]})
    assert (status, headers["Retry-After"]) == (429, "1")

    process.send_signal(signal.SIGTERM)
    until(lambda: refused(port))
    for body, connection, answers in zip(bodies, connections, expected, strict=False):
        connection.send(body[len(body) // 2 :])
        response = connection.getresponse()
        alike(json.loads(response.read())["answers"], answers)
        connection.close()
    assert process.wait(30) == 0
    said = process.stderr.read()
    assert "all accepted requests are answered" in said
    assert SECRET not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("failure", [None, "RuntimeError"])
def test_a_signal_is_not_lost_while_the_server_looks_for_a_failure(tiny_encoder: Path, failure: str | None) -> None:
    class Interrupted:
        """A batcher that is asked for its failure just when a signal comes."""

        @property
        def failure(self) -> str | None:
            server.should_exit = failure is None
            return failure

    app = make_app(predictor_of(KEPT["single-label"], tiny_encoder), "small", Limits())
    server = make_server(app, Limits())
    app.state.batcher = Interrupted()
    assert server.config.callback_notify
    asyncio.run(server.config.callback_notify())  # type: ignore[arg-type]
    assert server.should_exit


@pytest.fixture
def address(tiny_encoder: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """Where a server in a thread of this process listens; the parameter is its timeout in seconds."""
    limits = Limits(timeout=request.param)
    server = make_server(make_app(predictor_of(KEPT["single-label"], tiny_encoder), "small", limits), limits)
    server.config.timeout_keep_alive = 3600  # uvicorn's own, which would end an idle connection after 5 seconds
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()
        server.should_exit = True
        thread.join()


def sent(connection: socket.socket, *lines: str) -> str:
    """The status line and headers of the response to these lines; "" where the connection ends without one."""
    connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
    received = b""
    while b"\r\n\r\n" not in received and (part := connection.recv(4096)):
        received += part
    return received.decode().partition("\r\n\r\n")[0].lower()


def ended(connection: socket.socket) -> bool:
    """Whether the server closes the connection: within 20 seconds."""
    connection.settimeout(20)
    with suppress(ConnectionResetError):
        while connection.recv(4096):
            pass
    return True


HEALTH = ("GET /health HTTP/1.1", "Host: here", "")


@pytest.mark.parametrize("address", [0.2], indirect=True)
@pytest.mark.parametrize("before", [(), HEALTH], ids=["first", "second"])
@pytest.mark.parametrize("lines", [(), ("POST /predict HTTP/1.1", "Host: here")], ids=["nothing", "half"])
def test_headers_that_do_not_come(address: tuple[str, int], before: tuple[str, ...], lines: tuple[str, ...]) -> None:
    with socket.create_connection(address, timeout=20) as connection:
        assert not before or sent(connection, *before).startswith("http/1.1 200")
        connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
        assert ended(connection)


@pytest.mark.parametrize("address", [0.2], indirect=True)
def test_a_slow_body_has_its_own_timeout(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=20) as connection:
        lines = ("POST /predict HTTP/1.1", "Host: here", "Content-Type: application/json", "Content-Length: 9", "")
        assert sent(connection, *lines).startswith("http/1.1 408")


@pytest.mark.parametrize("address", [30.0], indirect=True)
@pytest.mark.parametrize("method", ["GET /health", "POST /predict"])
def test_a_body_of_two_lengths_ends_the_connection(address: tuple[str, int], method: str) -> None:
    """What follows it could be a request that a proxy before this server took for the body."""
    both = ("Host: here", "Content-Type: application/json", "Content-Length: 5", "Transfer-Encoding: chunked", "")
    with socket.create_connection(address, timeout=20) as connection:
        found = sent(connection, f"{method} HTTP/1.1", *both, "0", "", *HEALTH)
        assert found.startswith("http/1.1 400")
        assert "connection: close" in found
        assert ended(connection)


def test_an_address_that_can_not_be_had(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code = main(["serve", str(model_folder), "--port", port])
    assert code == 2
    assert f"error: 127.0.0.1:{port}: cannot listen on this address" in capsys.readouterr().err


def test_small_answers_are_sent_at_once() -> None:
    """Nagle's algorithm would hold a body back until its headers are acknowledged, 40 ms later."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
