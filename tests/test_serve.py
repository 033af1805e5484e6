"""The HTTP server: its answers are those of predictor and store, whoever else asks; nothing that comes in
stops it.
"""

import gzip
import json
import math
import re
import shutil
import threading
from dataclasses import asdict

import jsonschema
import numpy as np
import pytest
import torch
import transformers
from cases import TEXTS, Case, every
from numpy.testing import assert_allclose
from serving import KEPT, SECRET, alike, client_of, make_app, predictor_of, said, schemas
from small import ROOT, panic_on_bytes_beyond_ascii, raised, refused
from small import write_rows as write
from starlette.testclient import TestClient

from bertkit.cli.main import main
from bertkit.errors import ModelError
from bertkit.inference.predictor import load
from bertkit.retrieval.commands import index, searcher
from bertkit.retrieval.store import Store
from bertkit.retrieval.vector_models import dual_encoder
from bertkit.serving import tei
from bertkit.serving.app import model_app
from bertkit.serving.limits import Limits
from bertkit.serving.prometheus import Metrics
from bertkit.serving.schemas import RowReader
from bertkit.serving.service import MAX_SEARCHES, Service


@pytest.fixture
def client(request, tiny_encoder):
    """A client of the case's server."""
    with client_of(predictor_of(KEPT[request.param], tiny_encoder)) as made:
        yield made


def served(name):
    """The decorator for tests of one case's server."""
    return pytest.mark.parametrize("client", [name], indirect=True)


# --- answers
# -----------------------------------------------------------------------------------------------------


@every([*KEPT.values()])
def test_the_predictors_own_answers_in_the_schemas_that_are_promised(case, tiny_encoder):
    predictor = predictor_of(case, tiny_encoder)
    rows = case.asked
    with client_of(predictor) as client:
        found = said(client, "/predict", rows=rows)
        path, item = next(iter(client.get("/openapi.json").json()["paths"].items()))
        assert path == "/predict"
        example = item["post"]["requestBody"]["content"]["application/json"]["example"]
        assert len(said(client, "/predict", **example)["answers"]) == 1
        sent, answered, _ = schemas(client, "/predict")
    alike(found["answers"], predictor(rows))
    for schema, value in ((sent, {"rows": rows}), (sent, example), (answered, found)):
        jsonschema.validate(value, schema)
        with pytest.raises(jsonschema.ValidationError):  # so that the schema does not allow just anything
            jsonschema.validate({name: [{"neither": 1}] for name in value}, schema)


def test_texts_and_columns_by_the_recipes_names_and_by_their_own(tiny_encoder):
    predictor = predictor_of(KEPT["single-label"], tiny_encoder, text="sentence")
    with client_of(predictor) as client:
        for rows in (
            TEXTS,
            [{"sentence": text, "text": "no"} for text in TEXTS],
            [{"text": text} for text in TEXTS],
        ):
            alike(said(client, "/predict", rows=rows)["answers"], predictor(TEXTS))


@pytest.mark.parametrize(
    "mapped", [{"text_a": "text_b", "text_b": "text_a"}, {"text_a": "text_b", "text_b": "more"}]
)
def test_columns_that_bear_the_names_of_others_are_mapped_once(mapped, tiny_encoder):
    predictor = predictor_of(KEPT["pair"], tiny_encoder, **mapped)
    torch.nn.init.normal_(predictor.model.classifier.weight)  # so that the order of the texts shows
    rows = [{"text_a": text, "text_b": "no", "more": "a dog"} for text in TEXTS]
    with client_of(predictor) as client:
        alike(said(client, "/predict", rows=rows)["answers"], predictor(rows))
        inputs = [[row[mapped["text_a"]], row[mapped["text_b"]]] for row in rows]
        scores = [each[0]["score"] for each in said(client, "/predict", inputs=inputs)]
    assert scores == pytest.approx([answer["score"] for answer in predictor(rows)], abs=1e-5)


@pytest.mark.parametrize("name", "ner-document retrieval similarity-in-batch mlm".split())
def test_rows_whose_answers_depend_on_each_other_share_no_call(name, tiny_encoder):
    predictor = predictor_of(KEPT[name], tiny_encoder)
    rows = KEPT[name].asked
    if "positive" in rows[0]:  # of other anchors, so that some are not the nearest
        rows = [
            row | {"positive": other["positive"]}
            for row, other in zip(rows, rows[3:] + rows[:3], strict=True)
        ]
    together = predictor(rows)
    apart = [*predictor(rows[:3]), *predictor(rows[3:])]
    with pytest.raises(AssertionError):  # so that it matters
        alike(together, apart)
    assert RowReader(predictor.task, {}).key(rows) is None


@pytest.mark.parametrize("name", "single-label pair qa ner-crf similarity-mse ranking-graded-windows".split())
def test_rows_that_stand_alone_share_calls(name, tiny_encoder):
    predictor = predictor_of(KEPT[name], tiny_encoder)
    rows = KEPT[name].asked
    alike(predictor(rows[:4]), [*predictor(rows[:2]), *predictor(rows[2:4])])
    reader = RowReader(predictor.task, {})
    assert reader.key(rows[:2]) == reader.key(rows[2:4]) is not None
    if name == "ner-crf":
        assert reader.key([{"text": "a cat"}]) != reader.key([{"tokens": ["a", "cat"]}])


# --- text-embeddings-inference
# -----------------------------------------------------------------------------------


@served("retrieval")
def test_embed(client, tiny_encoder):
    predictor = predictor_of(KEPT["retrieval"], tiny_encoder)
    sides = {"query": "query", "document": "document", None: "text"}
    for prompt, side in sides.items():
        expected = predictor.encode(TEXTS, side)
        assert_allclose(said(client, "/embed", inputs=TEXTS, prompt_name=prompt), expected, atol=1e-5)
    assert not np.allclose(predictor.encode(TEXTS, "query"), predictor.encode(TEXTS), atol=1e-3)
    assert_allclose(said(client, "/embed", inputs=TEXTS[0]), predictor.encode(TEXTS[:1]), atol=1e-5)


@pytest.mark.parametrize("client", ["ranking-binary", "ranking-listwise"], indirect=True)
def test_rerank(client, tiny_encoder, request):
    name = request.node.callspec.params["client"]
    predictor = predictor_of(KEPT[name], tiny_encoder)
    own = [
        answer["score"] for answer in predictor([{"query": "one cat", "document": text} for text in TEXTS])
    ]
    logits = np.log(own) - np.log1p(-np.array(own)) if name == "ranking-binary" else np.array(own)
    order = np.argsort(-logits).tolist()
    found = said(client, "/rerank", query="one cat", texts=TEXTS)
    assert [rank["index"] for rank in found] == order
    assert [rank["score"] for rank in found] == pytest.approx((1 / (1 + np.exp(-logits)))[order], abs=1e-5)
    assert "text" not in found[0]
    raw = said(client, "/rerank", query="one cat", texts=TEXTS, raw_scores=True, return_text=True)
    assert [rank["score"] for rank in raw] == pytest.approx(logits[order], abs=1e-4)
    assert [rank["text"] for rank in raw] == [TEXTS[index] for index in order]


@pytest.mark.parametrize("client", ["single-label", "multi-label", "regression"], indirect=True)
def test_predict_with_inputs(client, tiny_encoder, request):
    predictor = predictor_of(KEPT[request.node.callspec.params["client"]], tiny_encoder)
    expected = []
    for answer in predictor(TEXTS):
        scores = answer.get("scores", {"score": answer.get("score")})
        expected.append(
            [{"label": n, "score": s} for n, s in sorted(scores.items(), key=lambda pair: -pair[1])]
        )
    alike(said(client, "/predict", inputs=[[text] for text in TEXTS]), expected)
    alike(said(client, "/predict", inputs=TEXTS[0]), expected[0])
    alike(said(client, "/predict", inputs=[TEXTS[0]]), expected[0])
    error = said(client, "/predict", status=422, inputs=TEXTS[:2])["error"]  # which is one pair, and no batch
    assert "[[text], …]" in error


@served("pair")
def test_predict_with_inputs_of_pairs(client, tiny_encoder):
    predictor = predictor_of(KEPT["pair"], tiny_encoder)
    best = [a["label"] for a in predictor([{"text_a": t, "text_b": "no"} for t in TEXTS])]
    found = said(client, "/predict", inputs=[[text, "no"] for text in TEXTS])
    assert [each[0]["label"] for each in found] == best
    assert said(client, "/predict", inputs=[TEXTS[0], "no"])[0]["label"] == best[0]
    assert "reads pairs" in said(client, "/predict", status=422, inputs=[["a", "no"], ["a"]])["error"]


@served("retrieval")
def test_a_text_that_is_too_long_is_cut_unless_that_is_forbidden(client, tiny_encoder):
    long = "the cat " * 100
    error = said(client, "/embed", status=413, inputs=["yes", long], truncate=False)["error"]
    assert error == 'input 2: longer than the model\'s 32 tokens, and "truncate" is false'
    own = predictor_of(KEPT["retrieval"], tiny_encoder).encode([long])
    assert_allclose(said(client, "/embed", inputs=long), own, atol=1e-5)
    assert_allclose(said(client, "/embed", inputs=long, truncate=True), own, atol=1e-5)
    found = said(client, "/v1/embeddings", input=long)
    assert_allclose(found["data"][0]["embedding"], own[0], atol=1e-5)
    assert found["usage"]["prompt_tokens"] == 32
    assert said(client, "/predict", rows=[long])["answers"][0]["truncated"] is True
    assert client.get("/info").json()["auto_truncate"] is True
    assert "bertkit_truncated_rows_total 5.0" in client.get("/metrics").text


@served("ner-softmax")
def test_tokenize(client, tiny_encoder, monkeypatch):
    tokenizer = predictor_of(KEPT["ner-softmax"], tiny_encoder).task.tokenizer
    text = "the é cat 😀 [SEP] sat"
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
    jsonschema.validate(found, schemas(client, "/tokenize")[1])
    assert "empty" in said(client, "/tokenize", status=400, inputs=[])["error"]
    assert "257 items" in said(client, "/tokenize", status=413, inputs=["a"] * 257)["error"]
    assert "item 1" in said(client, "/tokenize", status=413, inputs="a b " * 20_000)["error"]
    assert (
        "unknown field prompt_name"
        in said(client, "/tokenize", status=422, inputs="a", prompt_name="q")["error"]
    )
    monkeypatch.setattr("bertkit.serving.tei.MAX_TOKENS", 5)
    assert "5 are allowed" in said(client, "/tokenize", status=413, inputs=["! " * 9])["error"]


@served("single-label")
def test_paths_that_the_task_has_not(client):
    for path in ("/embed", "/v1/embeddings", "/rerank"):
        error = said(client, path, status=424, inputs="a")["error"]
        assert "text-classification" in (error["message"] if path.startswith("/v1/") else error)
        assert path not in client.get("/openapi.json").json()["paths"]


# --- what is not answered
# ----------------------------------------------------------------------------------------

BAD = [
    ("", 422, "the body"),
    ("{", 400, "not JSON"),
    ("null", 422, "the body: "),
    ('{"rows": []}', 400, "`rows` is empty"),
    ('{"rows": [{"' + "k" * 100_000 + '": "a"}]}', 422, "no text in this row; it has kkk"),
    ('{"rows": null}', 422, "expected a list, found None"),
    ('{"rows": {"text": "a"}}', 422, "expected a list"),
    ('{"rows": "a"}', 422, "expected a list, found 'a'"),
    ('{"rows": ["a", 5]}', 422, "row 2: expected a text, or columns such as"),
    ('{"rows": [{}]}', 422, "it has nothing"),
    ('{"rows": [{"text": "a"}, {"txt": "a"}]}', 422, "row 2: no text in this row; it has txt"),
    ('{"rows": [{"text": null}]}', 422, "row 1: `text` is missing"),
    ('{"rows": [{"text": ["a"]}]}', 422, "row 1: `text` holds ['a'], where text is expected"),
    ('{"rows": ["a"], "top": 3}', 422, "unknown field top"),
    ('{"inputs": 5}', 422, "inputs"),
    ('{"inputs": "a", "raw_scores": true}', 422, "raw_scores"),
    ('{"rows": [{"\\ud800": "a"}]}', 422, "no text in this row"),
    ("[" * 100_000, 400, "nested too deeply"),
    ('{"rows": [' + "9" * 5000 + "]}", 400, "a number of the body has too many digits"),
    ('{"rows": ["a"], ' + ", ".join(f'"k{n}": 1' for n in range(999)) + "}", 422, "unknown field k0"),
    ('{"rows": [{"text": ' + "[" * 100 + '"a"' + "]" * 100 + "}]}", 422, "row 1: `text` holds"),
    (
        '{"rows": [{"text": [' + ",".join(["1"] * 16_385) + "]}]}",
        413,
        "`rows[0].text` has 16385 items; 16384 are",
    ),
    (
        '{"rows": ["a", "' + "a b " * 16_384 + '"]}',
        413,
        "`rows`, item 2: about 16,385 tokens; 16,384 are allowed",
    ),
    ('{"rows": ["' + "a" * 2_000_000 + '"]}', 413, "larger than 2,000,000 bytes"),
    ('{"row": ["a"]}', 422, "`rows` is missing\nunknown field row; did you mean 'rows'?"),
    (b'{"rows": ["\xe9"]}', 400, "not JSON: it is not text in UTF-8"),
    (gzip.compress(b'{"rows": ["a"]}'), 400, "compressed"),
    (
        (b"a" * 100_000 for _ in range(100)),
        413,
        "larger than 2,000,000 bytes",
    ),  # of unknown length, while it is read
]
KEYS = [
    ("ranking-binary", "/predict", {}, "`rows` is missing"),
    (
        "ranking-binary",
        "/rerank",
        {"texts": ["a", 5]},
        "`query` is missing\ntexts[1]: Input should be a valid string",
    ),
    ("qa", "/", {"inputs": {"context": "a"}}, "`inputs.question` is missing"),
    ("retrieval", "/", {}, "`inputs` is missing"),
    (
        "retrieval",
        "/",
        {"inputs": "a", "normalise": True},
        "unknown field normalise; did you mean 'normalize'?",
    ),
    (
        "qa",
        "/",
        {"inputs": {"question": "a", "context": "b"}, "parameters": {"topk": 1}},
        "unknown field parameters.topk; did you mean 'top_k'?",
    ),
    (
        "single-label",
        "/predict",
        {"inputs": "a", "parameters": {"top_n": 1}},
        "unknown field parameters.top_n; did you mean 'top_k'?",
    ),
]
LISTS = [  # with 200 items of one fault, and in how many ways that can be read
    ("retrieval", "/embed", {"inputs": [5] * 200}, 2),  # neither a string nor a list of strings
    ("ranking-binary", "/rerank", {"query": "a", "texts": [5] * 200}, 1),
    ("single-label", "/predict", {"inputs": [[5]] * 200}, 2),
]
SURROGATES = [
    *(("retrieval", path, '{"inputs": "\\ud800 cat"}') for path in ("/", "/embed", "/tokenize")),
    ("retrieval", "/v1/embeddings", '{"input": ["\\ud800 cat"]}'),
    ("ranking-binary", "/rerank", '{"query": "\\ud800", "texts": ["\\ud800 cat"], "return_text": true}'),
    ("mlm", "/", '{"inputs": "\\ud800 [MASK]"}'),
    ("qa", "/", '{"inputs": {"question": "\\ud800", "context": "\\ud800 cat"}}'),
    ("ner-softmax", "/", '{"inputs": "\\ud800 cat"}'),
    ("text-to-text", "/", '{"inputs": "\\ud800 cat"}'),
    ("single-label", "/predict", '{"inputs": "\\ud800 cat"}'),
    ("single-label", "/predict", '{"rows": ["cat \\ud800 dog"]}'),
]
EMPTY = [  # and which item of the request is empty
    *(("retrieval", path, {"inputs": inputs}, item)
      for path in ("/", "/embed", "/tokenize") for inputs, item in (("", 1), (["a", ""], 2))),
    # which is no reason to answer it
    ("retrieval", "/embed", {"inputs": ["", "a"], "prompt_name": "query"}, 1),
    ("retrieval", "/v1/embeddings", {"input": ["a", ""]}, 2),
    ("single-label", "/", {"inputs": ""}, 1),
    ("single-label", "/predict", {"inputs": [["a"], [""]]}, 2),
    ("pair", "/predict", {"inputs": [["a", ""], ["", ""]]}, 2),
    ("ranking-binary", "/rerank", {"query": "", "texts": ["a", ""]}, 2),
    ("mlm", "/", {"inputs": ""}, 1),
    ("ner-softmax", "/", {"inputs": ""}, 1),
    ("text-to-text", "/", {"inputs": ""}, 1),
]  # fmt: skip
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def classifier(tiny_encoder):
    with client_of(predictor_of(KEPT["single-label"], tiny_encoder)) as made:
        yield made


def test_bad_bodies(classifier, subtests):
    for body, status, part in BAD:
        with subtests.test(part):
            response = classifier.post("/predict", content=body, headers=JSON)
            assert response.status_code == status
            assert part in response.json()["error"]
            assert len(response.content) < 3000
            assert said(classifier, "/predict", rows=["a"])["answers"]


def test_odd_bodies_on_every_path(tiny_encoder, subtests):
    """Keys are named as the client writes them, a list has one error, half a pair is the replacement
    character.

    Where no answer can say so, an empty text is refused as by text-embeddings-inference; one of whitespace is
    none.
    """
    for name in sorted({case for case, *_ in (*KEYS, *LISTS, *SURROGATES, *EMPTY)}):
        with client_of(predictor_of(KEPT[name], tiny_encoder)) as client:
            for _, path, body, error in (each for each in KEYS if each[0] == name):
                with subtests.test(error):
                    assert said(client, path, status=422, **body)["error"] == error
            for _, path, body, kinds in (each for each in LISTS if each[0] == name):
                with subtests.test(path, kinds=kinds):
                    assert said(client, path, status=422, **body)["error"].count("valid string") == kinds
            for _, path, body, item in (each for each in EMPTY if each[0] == name):
                with subtests.test(path, body=body):
                    error = said(client, path, status=400, **body)
                    field = [*body][path == "/rerank"]
                    what = f"`{field}`, item {item}: an empty text"
                    in_v1 = path == "/v1/embeddings"
                    v1 = {"error": {"message": what, "type": "Empty"}}
                    assert error == (v1 if in_v1 else {"error": what, "error_type": "Empty"})
            for _, path, text in (each for each in SURROGATES if each[0] == name):
                with subtests.test(path, text=text):
                    response = client.post(path, content=text, headers=JSON)
                    plain = client.post(
                        path, content=text.replace("\\ud800", "\ufffd").encode(), headers=JSON
                    )
                    assert response.status_code == 200, response.text
                    assert response.json() == plain.json()


def test_rows_are_counted_before_they_are_read(classifier, monkeypatch):
    """Reading half a million of them would keep the event loop from everyone else for seconds."""
    assert len(said(classifier, "/predict", rows=["a"] * 256)["answers"]) == 256
    monkeypatch.setattr(
        "fastapi.routing.solve_dependencies", lambda **_: pytest.fail("the body was validated")
    )
    assert (
        said(classifier, "/predict", status=413, rows=[5] * 257)["error"]
        == "`rows` has 257 items; 256 are allowed"
    )
    assert (
        "`inputs` has 257 items"
        in said(classifier, "/predict", status=413, inputs=[["a", "b"]] * 257)["error"]
    )
    assert (
        "1001 keys"
        in said(classifier, "/tokenize", status=413, inputs="a", **dict.fromkeys(map(str, range(1000))))[
            "error"
        ]
    )


def test_an_empty_row_is_answered_and_marked(classifier):
    assert said(classifier, "/predict", rows=["a", ""])["answers"][1]["empty"] is True
    assert len(said(classifier, "/predict", inputs=[["a"], [" "]])) == 2


def test_headers_say_what_a_body_is(classifier):
    for headers in ({"Content-Type": "text/plain"}, JSON | {"Content-Encoding": "gzip"}):
        response = classifier.post("/predict", content=gzip.compress(b'{"rows": ["a"]}'), headers=headers)
        assert response.status_code == 415
    assert "compressed" in response.json()["error"]
    assert classifier.get("/predict").status_code == 405


@served("ner-softmax")
def test_a_body_that_is_not_utf8_shifts_no_offsets(client):
    body = '{"rows": [{"text": "\ud83d\ude00 cat"}]}'.encode("utf-8", "surrogatepass")  # CESU-8
    response = client.post("/predict", content=body, headers=JSON)
    assert response.status_code == 422
    assert response.json()["error"].startswith("row 1: `text` holds a character as a pair of surrogates")


def test_too_long_for_a_model_that_cuts_nothing(tiny_encoder):
    case = Case(
        "", {"name": "text-classification", "overflow": "error"}, KEPT["single-label"].columns, max_length=8
    )
    predictor = predictor_of(case, tiny_encoder)
    with TestClient(make_app(predictor, "small", Limits(max_batch_tokens=41))) as client:
        error = said(client, "/predict", status=422, rows=["yes", "no", "the cat " * 20, "no"])["error"]
    assert error.startswith(
        "row 3: 42 tokens; at most 8 are allowed"
    )  # its own row, though it is called alone


def test_own_pages_and_none_elsewhere(classifier, tiny_encoder):
    assert classifier.get("/health").json() == {"status": "ok"}
    assert classifier.head("/health").status_code == 200
    about = classifier.get("/info").json()
    assert about["model_type"] == {
        "classifier": {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}}
    }
    assert (about["max_input_length"], about["payload_limit"], about["task"]) == (
        32,
        2_000_000,
        "text-classification",
    )
    page = classifier.get("/docs").text
    assert (
        """curl URL/predict -H 'Content-Type: application/json' \\\n    -d '{"rows": [{"text": "your text"}]}'"""
        in page
    )
    assert "KEY" not in page
    assert "&#34;Response Info&#34;" in page
    assert "http" not in re.sub(r"https?://127\.0\.0\.1", "", page)  # nothing comes from elsewhere
    metrics = classifier.get("/metrics").text
    assert 'bertkit_requests_total{path="/health",status="200"}' in metrics
    classifier.get("/nobody/knows/this")
    assert "nobody" not in classifier.get("/metrics").text
    moved = classifier.post(
        "/predict/", json={"rows": ["a"]}, headers={"Host": "evil"}, follow_redirects=False
    )
    assert (moved.status_code, moved.json()["error"], "location" in moved.headers) == (
        404,
        "Not Found",
        False,
    )
    stopped = client_of(predictor_of(KEPT["single-label"], tiny_encoder))
    assert stopped.get("/health").status_code == 503  # not entered: nothing was started


def test_the_page_lists_the_metrics():
    metrics = Metrics()
    metrics.requests.labels("/health", 200).inc()
    metrics.seconds.labels("/health").observe(0)
    exported = {}
    for family in metrics.registry.collect():
        name = family.name + "_total" * (family.type == "counter")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        exported[name] = family.type, labels
    page = (ROOT / "docs/serve.md").read_text()
    rows = re.findall(r"^\| `(bertkit_\w+)` \| (\w+) \| (.*?) ?\| \w", page, re.M)
    listed = {name: (kind, {*re.findall(r"\w+", labels)}) for name, kind, labels in rows}
    assert listed == {name: value for name, value in exported.items() if name.startswith("bertkit_")}


def test_a_tokenizer_that_panics_fails_one_request(tiny_encoder, caplog):
    """A panic in Rust is a BaseException, which would end the task that answers requests."""
    predictor = predictor_of(KEPT["single-label"], tiny_encoder)
    panic_on_bytes_beyond_ascii(predictor.task.tokenizer)
    with pytest.raises(BaseException, match="index out of bounds") as panic:
        predictor("好")
    assert not isinstance(panic.value, Exception)
    with client_of(predictor) as client:
        assert (
            "see the server's log"
            in said(client, "/predict", status=500, rows=["yes", f"好 {SECRET}"])["error"]
        )
        alike(said(client, "/predict", rows=["yes"])["answers"], predictor(["yes"]))
        assert client.get("/health").status_code == 200
    assert "PanicException" in caplog.text
    assert SECRET not in caplog.text


# --- /search: the documents of `bertkit search`, of the store as it is now

DOCUMENTS = [
    {"id": "a", "title": "Cats", "text": "the cat sat on a mat", "year": 2020, "tags": ["red"]},
    {"id": "b", "text": "the dog ran up and the dog ran down " * 5, "year": 2024, "tags": ["red", "blue"]},
    {"id": "c", "text": "a bad bad dog", "year": 2023},
    {"id": "d", "text": "one two three four five"},
]
QUERIES = ["the cat", "not very good", "two dog"]


def retriever(tiny_encoder, folder, prefix="yes "):
    """A model folder for retrieval, whose queries have a prefix."""
    config = transformers.AutoConfig.from_pretrained(tiny_encoder)
    task = {"name": "retrieval", "query_prefix": prefix}
    config.bertkit = {"version": "0.1.0", "task": task, "precision": "fp32", "max_length": 24}
    transformers.AutoModel.from_pretrained(tiny_encoder, config=config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def room(tiny_encoder, tmp_path_factory):
    """The folder of a model, and of a store of DOCUMENTS that nobody changes."""
    folder = tmp_path_factory.mktemp("search")
    model = retriever(tiny_encoder, folder / "model")
    index(model, f"{folder}/store", write(folder / "documents.jsonl", DOCUMENTS))
    return folder


@pytest.fixture(scope="module")
def predictor(room):
    return load(f"{room}/model")


@pytest.fixture(scope="module")
def searching(room, predictor):
    """Of what `bertkit serve MODEL --store STORE` serves."""
    with client_of(predictor, store=Store.open(room / "store")) as made:
        yield made


@pytest.fixture
def own(room, tmp_path):
    """A copy of the store, to be changed."""
    return Store.open(shutil.copytree(room / "store", tmp_path / "store"))


@pytest.fixture
def own_client(predictor, own):
    with client_of(predictor, store=own) as made:
        yield made


def test_the_documents_of_the_command(searching, room):
    conditions = {"year": "year>2020", "tags": "tags=red"}
    for options in (
        {},
        {"top_k": 2},
        {"filter": {"year": {"gt": 2020}}},
        {"filter": {"tags": "red"}, "hybrid": True},
    ):
        theirs = {**options, "filter": [conditions[name] for name in options.get("filter", ())]}
        expected = [list(map(asdict, hits)) for hits in searcher(f"{room}/store", **theirs)(QUERIES)]
        # so that swapped answers would be seen
        assert len({json.dumps(hits) for hits in expected}) == len(QUERIES)
        alike(said(searching, "/search", query=QUERIES[0], **options), {"hits": expected[0]})
        alike(said(searching, "/search", queries=QUERIES, **options), {"hits": expected})


def test_the_schema_that_is_promised(searching):
    sent, answered, _ = schemas(searching, "/search")
    for body in ({"query": "the cat"}, {"queries": QUERIES}):
        jsonschema.validate(body, sent)
        found = said(searching, "/search", **body)
        jsonschema.validate(found, answered)
    found["hits"][0][0]["neither"] = 1
    raised(jsonschema.ValidationError, jsonschema.validate, found, answered)


SQL = "1) OR (1=1"
REFUSED = [
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
    ({"query": "a", "filter": []}, 422, "filter"),
    ({"query": "a", "filter": {"year": {"gt": SQL}}}, 422, "`year` holds whole numbers"),
    ({"query": "a", "filter": SQL}, 422, "filter"),
    ({"query": "a", "topk": 2}, 422, "unknown field topk; did you mean 'top_k'?"),
]


def test_requests_that_are_refused(searching):
    for body, status, part in REFUSED:
        error = said(searching, "/search", status=status, **body)
        assert part in error["error"]
        assert error.keys() == {"error", "error_type"}
        assert len(said(searching, "/search", query="the cat")["hits"]) == 4


def test_a_store_that_is_written_emptied_removed_or_replaced_while_it_is_served(
    own_client, own, room, tiny_encoder, tmp_path
):
    new = {"id": "new", "text": "the cat", "lang": "en"}
    index(f"{room}/model", own.uri, write(tmp_path / "more.jsonl", [new]), delete=["d"])
    own.table.checkout_latest()  # which LanceDB does by itself once 5 seconds have passed
    hits = {hit["id"]: hit for hit in said(own_client, "/search", query="the cat")["hits"]}
    assert hits.keys() == {"a", "b", "c", "new"}
    assert hits["new"]["metadata"] == {"lang": "en"}
    (hit,) = said(own_client, "/search", query="the cat", filter={"lang": "en"})["hits"]
    alike(hit, hits["new"])
    own.delete(list(hits))
    own.table.checkout_latest()
    assert "the store is empty" in said(own_client, "/search", status=500, query="the cat")["error"]
    index(f"{room}/model", own.uri, room / "documents.jsonl")
    own.table.checkout_latest()
    assert len(said(own_client, "/search", query="the cat")["hits"]) == 4
    shutil.rmtree(own.uri)
    assert said(own_client, "/search", status=500, query="the cat")["error_type"] == "Backend"
    index(retriever(tiny_encoder, tmp_path / "other", prefix="no "), own.uri, room / "documents.jsonl")
    own.table.checkout_latest()
    assert "is another model" in said(own_client, "/search", status=500, query="the cat")["error"]


def test_a_search_that_fails(searching, monkeypatch, caplog):
    def fails(*_, **__):
        raise BaseException(SECRET)  # as a panic in Rust

    with monkeypatch.context() as patched:
        patched.setattr("bertkit.retrieval.search.search", fails)
        assert "the search failed" in said(searching, "/search", status=500, query="the cat")["error"]
    assert "in fails" in caplog.text
    assert SECRET not in caplog.text
    assert said(searching, "/search", query="the cat")["hits"]


def test_late_searches_stop_no_other_answer(room, predictor, monkeypatch):
    """They count until they end: when all threads are busy, a search is late too, and other paths answer."""
    may = threading.Event()
    busy = threading.Semaphore(0)

    def slow(*_, **__):
        busy.release()
        assert may.wait(60)
        return []

    monkeypatch.setattr("bertkit.retrieval.search.search", slow)
    service = Service(predictor, "small", Limits(), Store.open(room / "store"))
    with TestClient(model_app(service, None)) as searching:
        service.limits = Limits(timeout=0.5)  # of searches; the model has its time
        for _ in range(MAX_SEARCHES):
            late = said(searching, "/search", status=504, query="the cat")
            assert late["error"] == "the search did not answer in time"
        assert all(busy.acquire(timeout=60) for _ in range(MAX_SEARCHES))
        assert (
            said(searching, "/search", status=504, query="the cat")["error"]
            == "the search did not answer in time"
        )
        assert not busy.acquire(blocking=False)
        assert said(searching, "/predict", rows=[{"text": "the cat"}])["answers"]
        assert searching.get("/health").status_code == 200
        may.set()
        service.limits = Limits()
        assert said(searching, "/search", query="the cat") == {"hits": []}


@pytest.mark.parametrize("name", ["retrieval", "single-label"])
def test_without_a_store(name, tiny_encoder):
    with client_of(predictor_of(KEPT[name], tiny_encoder)) as searching:
        assert "with one" in said(searching, "/search", status=424, query="a")["error"]
        assert "/search" not in searching.get("/openapi.json").json()["paths"]


def test_the_command_reads_a_model_as_the_store_does(tiny_encoder, tmp_path, monkeypatch, capsys):
    model = tmp_path / "named"
    store = f"{tmp_path}/store"
    shutil.copytree(tiny_encoder, model / "model")
    index(str(model), store, write(tmp_path / "documents.jsonl", DOCUMENTS))
    served = []
    monkeypatch.setattr(
        "bertkit.serving.server.run", lambda predictor, *_, **__: served.append(predictor.task.name)
    )
    assert main(["serve", str(model), "--store", store]) == 0
    assert main(["serve", str(model), "--store", store, "--task", "retrieval"]) == 0
    assert served == ["sentence-similarity", "retrieval"]
    assert f"error: {model}: was not trained by bertkit" in refused(capsys, "serve", model)


def test_the_command_refuses_a_store_of_another_model(room, tiny_encoder, tmp_path, capsys):
    other = retriever(tiny_encoder, tmp_path / "other", prefix="no ")
    for where, message in (
        (f"{room}/store", "is another model"),
        (str(tmp_path), "is not a bertkit store"),
    ):
        assert message in refused(capsys, "serve", other, "--store", where, "--port", "0")
    assert f"error: {other}: the model was trained for retrieval, not text-ranking" in refused(
        capsys, "serve", other, "--store", f"{room}/store", "--task", "text-ranking"
    )
    with pytest.raises(ModelError, match="gives no vectors"):
        dual_encoder("small", predictor=predictor_of(KEPT["single-label"], tiny_encoder))


def test_a_late_search_ends_with_its_query(room, predictor, monkeypatch):
    service = Service(predictor, "small", Limits(), Store.open(room / "store"))
    ended = threading.Event()
    calls = []

    def late(*_, **__):
        calls.append(1)
        assert ended.wait(60)
        return []

    monkeypatch.setattr("bertkit.retrieval.search.search", late)
    with TestClient(model_app(service, None)) as searching:
        service.limits = Limits(timeout=0.5)
        said(searching, "/search", status=504, queries=["the cat"] * 20)
        ended.set()
        service.search_threads.shutdown()
    assert len(calls) == 1


def test_numbers_that_json_lacks_are_null(room, predictor, monkeypatch):
    monkeypatch.setattr("bertkit.retrieval.search.search", lambda *_, **__: [{"score": math.nan}])
    service = Service(predictor, "small", Limits(), Store.open(room / "store"))
    with TestClient(model_app(service, None)) as searching:
        assert said(searching, "/search", query="the cat") == {"hits": [{"score": None}]}


def test_saturated_scores_keep_their_order_and_are_numbers():
    request = tei.RerankRequest(query="q", texts=["a", "b", "c"])
    logits = [{"score": score} for score in (40.0, 90.0, 60.0)]
    assert [rank["index"] for rank in tei.ranks(logits, request, "identity")] == [1, 2, 0]
    raw = tei.RerankRequest(query="q", texts=["a", "b"], raw_scores=True)
    ranks = tei.ranks([{"score": 0.0}, {"score": 1.0}], raw, "sigmoid")
    assert [rank["index"] for rank in ranks] == [1, 0]
    assert all(math.isfinite(rank["score"]) for rank in ranks)


def test_a_search_has_the_servers_time(room, predictor, monkeypatch):
    seen = []
    search = "bertkit.retrieval.search.search"
    monkeypatch.setattr(search, lambda *_, timeout=None, **__: seen.append(timeout) or [])
    with client_of(predictor, store=Store.open(room / "store")) as client:
        said(client, "/search", query="the cat")
    assert seen == [Limits().timeout]
