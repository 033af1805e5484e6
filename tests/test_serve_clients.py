"""Clients that people already have get from a real server what the predictor answers."""

import base64
import re
import time

import jsonschema
import numpy as np
import openai
import pytest
import small
import transformers
from cases import CONTEXTS, QUESTIONS, TEXTS
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from numpy.testing import assert_allclose
from serving import KEPT, alike, client_of, make_app, predictor_of, running, said, schemas
from small import raised, raises
from starlette.testclient import TestClient

from bertkit.errors import UserError
from bertkit.serving.limits import Limits
from bertkit.serving.server import read_api_key


@pytest.fixture
def served(request, tiny_encoder, monkeypatch):
    """The address of a server of the case that is the parameter, and its predictor."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # which would refuse 127.0.0.1 too
    predictor = predictor_of(KEPT[request.param], tiny_encoder)
    with running(predictor) as url:
        yield url, predictor


def cases(*names):
    """The decorator for tests of the servers of these cases."""
    return pytest.mark.parametrize("served", names, indirect=True)


def received(elements):
    """What the server sent of these elements, without the fields that the client adds as None."""
    return [{name: value for name, value in each.items() if value is not None} for each in elements]


def refused(part, call, *arguments, **parameters):
    """The client raises what the server says."""
    response = raised(HfHubHTTPError, call, *arguments, **parameters).response
    assert response.status_code == 422
    assert part in response.json()["error"]


# --- huggingface_hub's InferenceClient
# ---------------------------------------------------------------------------


@cases("single-label", "multi-label", "regression")
def test_text_classification(served):
    url, predictor = served
    client = InferenceClient(url)
    answer = predictor(TEXTS[0])
    scores = answer.get("scores", {"score": answer["score"]} if "score" in answer else {})
    expected = [{"label": n, "score": s} for n, s in sorted(scores.items(), key=lambda pair: -pair[1])]
    alike([dict(each) for each in client.text_classification(TEXTS[0])], expected)
    alike(
        [dict(each) for each in InferenceClient(base_url=url).text_classification(TEXTS[0], top_k=1)],
        expected[:1],
    )
    own = {"single-label": "softmax", "multi-label": "sigmoid"}.get(predictor.task.kind, "none")
    for function in ("softmax", "sigmoid", "none"):
        if function == own:
            assert len(client.text_classification(TEXTS[0], function_to_apply=function)) == len(expected)
        else:
            refused(f"is {own}", client.text_classification, TEXTS[0], function_to_apply=function)
    refused("parameters.top_k", client.text_classification, TEXTS[0], top_k=0)


@cases("ner-softmax")
def test_token_classification(served):
    url, predictor = served
    client = InferenceClient(model=url)
    text = TEXTS[5]
    answer = predictor({"text": text})

    def sent(kind, kept, text, elements):
        same = ("start", "end", "score")
        return [{kind: e[kept], "word": e[text], **{name: e[name] for name in same}} for e in elements]

    entities = sent("entity_group", "label", "text", answer["entities"])
    words = sent("entity", "tag", "word", answer["words"])
    assert len(entities) > 1

    def found(**parameters):
        return received(client.token_classification(text, **parameters))

    for strategy in (None, "simple", "first"):
        alike(found(aggregation_strategy=strategy), entities)
    kind = entities[0]["entity_group"]
    alike(found(ignore_labels=[kind]), [each for each in entities if each["entity_group"] != kind])
    alike(found(aggregation_strategy="none"), [each for each in words if each["entity"] != "O"])
    alike(found(aggregation_strategy="none", ignore_labels=[]), words)
    refused("parameters.aggregation_strategy", client.token_classification, text, aggregation_strategy="max")
    refused("unknown field parameters.stride", client.token_classification, text, stride=4)


@cases("words-crf-windows")
def test_labels_of_words(served):
    url, predictor = served
    found = InferenceClient(url).token_classification(TEXTS[0], ignore_labels=[])
    assert [(each.word, each.entity) for each in found] == [
        (each["word"], each["tag"]) for each in predictor({"text": TEXTS[0]})["words"]
    ]
    refused(
        "form no entities", InferenceClient(url).token_classification, TEXTS[0], aggregation_strategy="simple"
    )


@cases("qa", "qa-windows-or-none")
def test_question_answering(served):
    url, predictor = served
    client = InferenceClient(url)
    asked = {"question": QUESTIONS[0], "context": CONTEXTS[0]}
    answer = predictor(asked)
    own = {name: answer[name] for name in "answer start end score".split()}
    alike(dict(client.question_answering(**asked)), own)
    alike(dict(client.question_answering(**asked, top_k=1)), own)
    some = client.question_answering(**asked, top_k=3)
    alike([dict(each) for each in some], answer["n_best"][:3])
    refused("unknown field parameters.max_answer_len", client.question_answering, **asked, max_answer_len=3)


def test_whether_there_may_be_no_answer(tiny_encoder):
    predictor = predictor_of(KEPT["qa-windows-or-none"], tiny_encoder)
    object.__setattr__(predictor.task.options, "null_threshold", -1e9)
    asked = {"question": QUESTIONS[0], "context": CONTEXTS[0]}
    answer = predictor(asked)
    none = {"answer": "", "start": 0, "end": 0, "score": answer["null_score"]}
    with client_of(predictor) as client:
        for parameters in ({}, {"handle_impossible_answer": True}):
            alike(said(client, "/", inputs=asked, parameters=parameters), none)
        some = said(client, "/", inputs=asked, parameters={"top_k": 3})
        alike(some, [none, *answer["n_best"][:2]])
        span = said(client, "/", inputs=asked, parameters={"handle_impossible_answer": False})
        alike(span, answer["n_best"][0])


@cases("mlm")
def test_fill_mask_as_transformers_pipeline(served, tiny_encoder, tmp_path):
    url, predictor = served
    predictor.model.save_pretrained(tmp_path)
    pipeline = transformers.pipeline("fill-mask", str(tmp_path), tokenizer=str(tiny_encoder), device="cpu")
    client = InferenceClient(url)
    text = "the cat was [MASK]"
    expected = pipeline(text)
    for each in expected:  # the pipeline joins `##` tokens to the word before; bertkit keeps the space
        each["sequence"] = f"the cat was {each['token_str'].removeprefix('##')}"
    alike(received(client.fill_mask(text)), expected)
    alike(received(client.fill_mask(text, top_k=2)), expected[:2])
    both = client.fill_mask("the [MASK] was [MASK]")
    assert [len(each) for each in both] == [5, 5]
    assert both[1][0].sequence == f"the [MASK] was {both[1][0].token_str}".replace(" ##", "")
    refused("unknown field parameters.targets", client.fill_mask, text, targets=["cat"])
    refused("no [MASK]", client.fill_mask, "the cat was good")
    refused("no [MASK]", client.fill_mask, "the cat " * 30 + "[MASK]")


@cases("text-to-text")
def test_generated_texts(served):
    url, predictor = served
    predictor.model.decoder.cls.predictions.bias.data[5] = 1.0  # a word: untrained, it writes nothing
    for client in (InferenceClient(url), InferenceClient(base_url=url)):
        for text in TEXTS[:2]:
            wanted = predictor(text)["generated_text"]
            assert wanted
            assert client.text_generation(text) == wanted
            assert client.translation(text).translation_text == wanted
            assert client.summarization(text).summary_text == wanted
    with client_of(predictor) as own:
        assert said(own, "/", inputs=TEXTS[0])[0]["generated_text"] == predictor(TEXTS[0])["generated_text"]
    refused("unknown field parameters.src_lang", client.translation, TEXTS[0], src_lang="en", tgt_lang="de")
    refused(
        "unknown field parameters.generate_parameters",
        client.summarization,
        TEXTS[0],
        generate_parameters={"top_k": 3},
    )


@cases("retrieval", "similarity-cls")
def test_feature_extraction(served):
    url, predictor = served
    client = InferenceClient(base_url=url)
    own = predictor.encode(TEXTS)
    unit = own / np.linalg.norm(own, axis=1, keepdims=True)
    assert_allclose(client.feature_extraction(TEXTS[0]), unit[:1], atol=1e-5)
    assert_allclose(client.feature_extraction(TEXTS, normalize=False), own, rtol=1e-4, atol=1e-5)
    prompted = client.feature_extraction(TEXTS, prompt_name="query", truncate=True, encoding_format="float")
    query = predictor.encode(TEXTS, "query")
    assert_allclose(prompted, query / np.linalg.norm(query, axis=1, keepdims=True), atol=1e-5)
    refused("encoding_format", client.feature_extraction, TEXTS[0], encoding_format="base64")
    refused("truncation_direction", client.feature_extraction, TEXTS[0], truncation_direction="left")


@cases("ranking-binary")
def test_health_and_info_of_any_model(served):
    client = InferenceClient(served[0], provider="hf-inference")
    assert client.health_check()
    assert client.get_endpoint_info()["model_id"] == "org/small"


# --- the OpenAI client
# -------------------------------------------------------------------------------------------


@pytest.fixture
def openai_client(served):
    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key="-", max_retries=0) as client:
        yield client


@cases("retrieval")
def test_openai_embeddings(served, openai_client):
    url, predictor = served
    own = predictor.encode(TEXTS)
    create = openai_client.embeddings.create
    for formats in ({}, {"encoding_format": "float"}):  # by default it asks for base64 and decodes it
        found = create(model="-", input=TEXTS, **formats)
        assert_allclose([each.embedding for each in found.data], own, atol=1e-5)
        assert (found.model, [each.index for each in found.data]) == ("org/small", list(range(8)))
    tokens = sum(len(predictor.task.tokenizer(text)["input_ids"]) for text in TEXTS)
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (tokens, tokens)
    coded = create(model="-", input=TEXTS[0], encoding_format="base64").data[0].embedding
    assert_allclose(np.frombuffer(base64.b64decode(str(coded)), "<f4"), own[0], atol=1e-5)
    first = own[:, :4] / np.linalg.norm(own[:, :4], axis=1, keepdims=True)
    short = create(model="-", input=TEXTS, dimensions=4)
    assert_allclose([each.embedding for each in short.data], first, atol=1e-5)
    assert_allclose(InferenceClient(url).feature_extraction(TEXTS, dimensions=4), first, atol=1e-5)
    for part, wrong in (("dimensions: 7; the model's vectors have 6", 7), ("greater than or equal to 1", 0)):
        raises(openai.UnprocessableEntityError, part, create, model="-", input=TEXTS, dimensions=wrong)
    raises(openai.APIStatusError, "larger than 2,000,000 bytes", create, model="-", input="a" * 2_000_000)


@cases("ner-crf")
def test_openai_models(openai_client):
    (model,) = openai_client.models.list()
    assert (model.id, model.object, model.owned_by) == ("org/small", "model", "bertkit")
    assert abs(model.created - time.time()) < 600
    assert openai_client.models.retrieve("org/small") == model
    raises(openai.NotFoundError, "GET /v1/models", openai_client.models.retrieve, "org/other")
    embed = openai_client.embeddings.create
    error = raises(openai.APIStatusError, "token-classification", embed, model="-", input=TEXTS)
    assert (error.status_code, error.type) == (424, "Backend")


REQUESTS = {
    "single-label": [{"inputs": "a"}, {"inputs": "a", "parameters": {}}, {"inputs": [["a"], ["b"]]}],
    "ner-softmax": [
        {"inputs": TEXTS[5]},
        {"inputs": TEXTS[5], "parameters": {"aggregation_strategy": "none"}},
    ],
    "qa": [{"inputs": {"question": "a", "context": "the cat"}, "parameters": {"top_k": k}} for k in (1, 2)],
    "mlm": [{"inputs": "a [MASK]"}, {"inputs": "[MASK] [MASK]"}],
    "retrieval": [{"inputs": ["a", "b"]}, {"inputs": "a"}],
    "ranking-binary": [{"query": "a", "texts": ["b"]}],
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_schema_of_the_root(name, tiny_encoder):
    with client_of(predictor_of(KEPT[name], tiny_encoder)) as client:
        asked, answered, _ = schemas(client, "/")
        for body in REQUESTS[name]:
            jsonschema.validate(body, asked)
            jsonschema.validate(said(client, "/", **body), answered)
            raised(jsonschema.ValidationError, jsonschema.validate, {**body, "neither": 1}, asked)
        raised(jsonschema.ValidationError, jsonschema.validate, [{"neither": 1}], answered)
        assert "neither" in said(client, "/", status=422, **REQUESTS[name][0], neither=1)["error"]


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
def test_errors_have_the_form_that_is_promised(path, tiny_encoder):
    with client_of(predictor_of(KEPT["retrieval"], tiny_encoder)) as client:
        error = said(client, path, status=422, neither=1)
        jsonschema.validate(error, schemas(client, path)[2])
    assert "unknown field neither" in str(error)


# --- keys and request ids
# ----------------------------------------------------------------------------------------

KEY = "s3cret-key"


def test_clients_send_the_api_key(tiny_encoder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    predictor = predictor_of(KEPT["retrieval"], tiny_encoder)
    with running(predictor, KEY) as url:
        assert InferenceClient(url, token=KEY).feature_extraction(TEXTS[0]).shape == (1, 6)
        other = InferenceClient(url, token="s3cret-kez")
        assert raised(HfHubHTTPError, other.feature_extraction, TEXTS[0]).response.status_code == 401
        for key in (KEY, "other"):
            with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
                if key == KEY:
                    assert client.embeddings.create(model="-", input=TEXTS).data
                else:
                    raises(openai.AuthenticationError, "send the API key", client.models.list)


def test_what_is_open_without_the_key(tiny_encoder):
    with TestClient(
        make_app(predictor_of(KEPT["single-label"], tiny_encoder), "small", Limits(), KEY)
    ) as client:
        for path in "/health /metrics /docs /openapi.json".split():
            page = client.get(path)
            assert page.status_code == 200
            assert "good" not in page.text  # a label
        assert "Authorization: Bearer KEY" in client.get("/docs").text
        closed = [("GET", path) for path in ("/info", "/v1/models", "/nowhere")]
        for method, path in (*closed, ("POST", "/health"), ("POST", "/metrics")):
            response = client.request(method, path)
            assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert KEY not in response.text
        for wrong in (
            KEY,
            f"Basic {KEY}",
            f"Bearer {KEY}x",
            "Bearer ",
            "Bearer",
            f"Bearer  {KEY}",
            "Bearer é",
        ):
            headers = {"Authorization": wrong.encode("latin-1")}
            assert client.post("/predict", json={"rows": ["a"]}, headers=headers).status_code == 401
        for right in (f"Bearer {KEY}", f"bearer {KEY}"):
            client.headers["Authorization"] = right
            assert said(client, "/predict", rows=["a"])["answers"]
        document = client.get("/openapi.json").json()
    assert document["security"] == [{"key": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert "security" not in document["paths"]["/predict"]["post"]


def test_where_the_api_key_is_from(tmp_path, monkeypatch):
    monkeypatch.delenv("BERTKIT_API_KEY", raising=False)
    assert read_api_key(None) is None
    monkeypatch.setenv("BERTKIT_API_KEY", "from-variable")
    assert read_api_key(None) == "from-variable"
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert read_api_key(file) == KEY
    for wrong in ("", "\n", "two words", "clé"):
        file.write_text(wrong, "utf-8")
        raises(UserError, "not a valid API key", read_api_key, file)
    raises(UserError, "cannot be read: No such file", read_api_key, tmp_path / "none")
    monkeypatch.setenv("BERTKIT_API_KEY", "")
    raises(UserError, "BERTKIT_API_KEY: not a valid API key", read_api_key, None)


def test_the_command_line_takes_a_file_with_the_key(tiny_encoder, tmp_path, monkeypatch, capsys):
    predictor = predictor_of(KEPT["single-label"], tiny_encoder)
    keys = []

    def make(service, api_key):
        keys.append(api_key)
        raise UserError("enough")

    monkeypatch.setattr("bertkit.serving.server.load", lambda *_, **__: predictor)
    monkeypatch.setattr("bertkit.serving.server.model_app", make)
    (tmp_path / "key").write_text(KEY)
    told = small.refused(capsys, "serve", "small", "--port", "0", "--api-key-file", tmp_path / "key")
    assert keys == [KEY]
    assert KEY not in told
    assert "none: cannot be read" in small.refused(
        capsys, "serve", "small", "--port", "0", "--api-key-file", tmp_path / "none"
    )


def test_request_ids(tiny_encoder):
    with client_of(predictor_of(KEPT["single-label"], tiny_encoder)) as client:
        for path in ("/health", "/nowhere"):
            assert client.get(path, headers={"X-Request-ID": "mine-1"}).headers["X-Request-ID"] == "mine-1"
        others = [
            client.get("/health", headers=h).headers["X-Request-ID"]
            for h in ({}, {"X-Request-ID": "a b"}, {})
        ]
        others.append(client.get("/health", headers={"X-Request-ID": "a" * 129}).headers["X-Request-ID"])
    assert len(set(others)) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in others)
