"""Several models in one server, each under its name: to clients, one of them is like a server of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from cases import CONTEXTS, QUESTIONS, TEXTS
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from serving import KEPT, alike, make_app, predictor_of, running_app, said
from starlette.testclient import TestClient

from bertkit.cli.main import main
from bertkit.cli.serving import by_name
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.serve.batcher import Batcher
from bertkit.serve.limits import Limits
from bertkit.serve.metrics import Metrics
from bertkit.serve.models import make_models_app
from bertkit.serve.service import Service

NAMES = {"sentiment": "single-label", "qa": "qa", "vectors": "retrieval", "others": "similarity-nli"}
KEY = "s3cret-key"


@pytest.fixture(scope="module")
def predictors(tiny_encoder: Path) -> dict[str, Predictor]:
    return {name: predictor_of(KEPT[case], tiny_encoder) for name, case in NAMES.items()}


def app_of(predictors: Mapping[str, Predictor], api_key: str | None = None, limits: Limits | None = None) -> Any:
    """The application of these models, and its services."""
    limits = limits or Limits()
    services = {name: Service(predictor, name, limits) for name, predictor in predictors.items()}
    return make_models_app(services, limits, api_key)


@pytest.fixture
def client(predictors: dict[str, Predictor]) -> Iterator[TestClient]:
    with TestClient(app_of(predictors)) as made:
        yield made


@pytest.fixture
def url(predictors: dict[str, Predictor], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server of all of them."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # which would refuse 127.0.0.1 too
    with running_app(app_of(predictors)) as address:
        yield address


def test_inference_client(url: str, predictors: dict[str, Predictor]) -> None:
    scores = predictors["sentiment"](TEXTS[0])["scores"]
    for client in (InferenceClient(base_url=f"{url}/models/sentiment"), InferenceClient(f"{url}/models/sentiment/")):
        found = client.text_classification(TEXTS[0])
        alike({each.label: each.score for each in found}, scores)
    asked = {"question": QUESTIONS[0], "context": CONTEXTS[0]}
    answer = InferenceClient(f"{url}/models/qa").question_answering(**asked)
    assert answer["answer"] == predictors["qa"](asked)["answer"]
    vectors = InferenceClient(f"{url}/models/vectors").feature_extraction(TEXTS)
    np.testing.assert_allclose(vectors, predictors["vectors"].encode(TEXTS), atol=1e-5)
    client = InferenceClient(f"{url}/models/vectors", provider="hf-inference")
    assert client.health_check()
    assert client.get_endpoint_info()["model_id"] == "vectors"
    for wrong in (url, f"{url}/models/nobody"):
        with pytest.raises(HfHubHTTPError) as error:
            InferenceClient(wrong).text_classification("a")
        assert error.value.response.status_code == 404
        assert "there are sentiment, qa, vectors, others" in error.value.response.json()["error"]


def test_openai_client(url: str, predictors: dict[str, Predictor]) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == list(NAMES)
        for name in ("vectors", "others"):
            own = predictors[name].encode(TEXTS)
            found = client.embeddings.create(model=name, input=TEXTS)
            unit = own / np.linalg.norm(own, axis=1, keepdims=True)
            np.testing.assert_allclose([each.embedding for each in found.data], unit, atol=1e-5)
            assert found.model == name
        with pytest.raises(openai.NotFoundError, match="no model 'nobody'; there are sentiment, qa, vectors, others"):
            client.embeddings.create(model="nobody", input=TEXTS)
        with pytest.raises(openai.APIStatusError, match="a model for question-answering does not answer") as error:
            client.embeddings.create(model="qa", input=TEXTS)
        assert error.value.status_code == 424
    with openai.OpenAI(base_url=f"{url}/models/others/v1", api_key="-", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["others"]
        np.testing.assert_allclose(
            client.embeddings.create(model="-", input=TEXTS).data[0].embedding, unit[0], atol=1e-5
        )
        with pytest.raises(openai.UnprocessableEntityError, match="dimensions: 1000"):
            client.embeddings.create(model="-", input=TEXTS, dimensions=1000)


def test_each_has_the_paths_and_pages_of_a_server_of_its_own(
    client: TestClient, predictors: dict[str, Predictor]
) -> None:
    for name, predictor in predictors.items():
        with TestClient(make_app(predictor, name, Limits())) as alone:
            document = alone.get("/openapi.json").json()
            for path in ("/info", "/docs", "/health"):
                assert client.get(f"/models/{name}{path}").text == alone.get(path).text
            expected = said(alone, "/tokenize", inputs=TEXTS)
        assert said(client, f"/models/{name}/tokenize", inputs=TEXTS) == expected
        served = client.get(f"/models/{name}/openapi.json").json()
        assert served.pop("servers") == [{"url": f"/models/{name}"}]
        assert served == document
        error = said(client, f"/models/{name}/predict", status=422, rows=[5])
        assert error.keys() == {"error", "error_type"}
    assert said(client, "/models/qa/v1/embeddings", status=424, input="a")["error"]["type"] == "Backend"


def test_all_of_them(client: TestClient, predictors: dict[str, Predictor]) -> None:
    about = client.get("/models").json()
    assert about == client.get("/info").json()
    assert {name: each["task"] for name, each in about["models"].items()} == {
        name: predictor.task.name for name, predictor in predictors.items()
    }
    assert client.get("/health").json() == {"status": "ok"}
    assert "/v1/embeddings" in client.get("/docs").text
    for wrong in ("/predict", "/models/nobody/predict", "/models/sentiment/nothing"):
        assert said(client, wrong, status=404, rows=["a"])["error_type"] == "Validation"
    metrics = client.get("/metrics").text
    assert 'bertkit_requests_total{path="/health",status="200"} 1.0' in metrics
    assert "nobody" not in metrics


def test_metrics_have_the_models_name(client: TestClient, predictors: dict[str, Predictor]) -> None:
    said(client, "/models/sentiment/predict", rows=TEXTS)
    said(client, "/models/vectors/embed", inputs=TEXTS[:3])
    said(client, "/v1/embeddings", model="vectors", input=TEXTS[:2])
    metrics = client.get("/metrics").text
    for line in (
        f'bertkit_rows_total{{model="sentiment"}} {float(len(TEXTS))}',
        'bertkit_rows_total{model="vectors"} 5.0',
        'bertkit_rows_total{model="qa"} 0.0',
        'bertkit_requests_total{model="sentiment",path="/predict",status="200"} 1.0',
        'bertkit_requests_total{path="/v1/embeddings",status="200"} 1.0',
    ):
        assert line in metrics
    assert metrics.count("# TYPE bertkit_rows_total") == metrics.count("# TYPE process_open_fds") == 1
    assert "process_open_fds{" not in metrics


def test_healthy_only_when_all_are(predictors: dict[str, Predictor]) -> None:
    services = {name: Service(predictor, name, Limits()) for name, predictor in predictors.items()}
    with TestClient(make_models_app(services, Limits())) as client:
        assert client.get("/health").status_code == 200
        client.portal.call(services["qa"].batcher.__aexit__)  # type: ignore[union-attr]
        assert client.get("/health").json()["error"] == "qa no longer answers"
        assert client.get("/models/qa/health").status_code == 503
        assert client.get("/models/sentiment/health").status_code == 200
        assert said(client, "/models/sentiment/predict", rows=["a"])["answers"]


def test_the_key_is_needed_for_each(predictors: dict[str, Predictor]) -> None:
    with TestClient(app_of(predictors, KEY)) as client:
        for path in ("/models", "/models/qa/info", "/models/nobody", "/v1/models"):
            response = client.get(path)
            assert response.status_code == 401
            assert "sentiment" not in response.text
        assert client.get("/health").status_code == client.get("/models/qa/health").status_code == 200
        client.headers["Authorization"] = f"Bearer {KEY}"
        assert said(client, "/models/sentiment/predict", rows=["a"])["answers"]


def test_one_thread_calls_the_models_in_turn_and_none_waits_for_the_queue_of_another() -> None:
    busy, may = threading.Event(), threading.Event()
    calls: list[tuple[str, int]] = []
    running = []

    def model(name: str) -> Any:
        def answers(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
            running.append(name)
            assert len(running) == 1  # never two at a time
            calls.append((name, len(rows)))
            busy.set()
            assert may.wait(10)
            running.pop()
            return [{} for _ in rows]

        return answers

    async def run() -> None:
        thread = ThreadPoolExecutor(1)
        limits = Limits(max_batch_tokens=1)
        async with (
            Batcher(model("a"), limits, Metrics(), thread) as first,
            Batcher(model("b"), limits, Metrics(), thread) as second,
        ):
            tasks = [asyncio.create_task(first.answers([{}] * 4, "k"))]
            while not busy.is_set():
                await asyncio.sleep(0.001)
            tasks.append(asyncio.create_task(second.answers([{}] * 2, "k")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            may.set()
            await asyncio.gather(*tasks)

    asyncio.run(run())
    assert calls == [("a", 1), ("b", 1), ("a", 1), ("b", 1), ("a", 1), ("a", 1)]


# --- the command -------------------------------------------------------------------------------------------------


def test_names_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_name(["runs/a"]) == {"": "runs/a"}
    assert by_name(["runs/lr=3"]) == {"": "runs/lr=3"}
    assert by_name(["a=runs/lr=3"]) == {"a": "runs/lr=3"}
    assert by_name(["a=x", "b.2-c=org/y"]) == {"a": "x", "b.2-c": "org/y"}
    assert by_name([]) == {}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=3").mkdir()
    assert by_name(["lr=3"]) == {"": "lr=3"}
    with pytest.raises(UserError) as error:
        by_name(["a=x", "runs/b", "a=y", "a/b=z"])
    assert [problem.where for problem in error.value.problems] == ["runs/b", "a=y", "a/b=z"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=x", "y"], "y: has no name, but is one of several"),
        (["a=x", "b=y", "--task", "retrieval"], "--task and --revision work only with one model"),
        (["a=x", "b=y", "--store", "s"], "--store: no model is named ''"),
        (["a=x", "b=y", "--store", "b=s", "--store", "c=s"], "--store: no model is named 'c'"),
        (["x", "--store", "a=s"], "--store: no model is named 'a'"),
    ],
)
def test_the_command_says_what_is_wrong(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words, "--port", "0"]) == 2
    assert message in capsys.readouterr().err


def test_all_models_that_cannot_be_loaded_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").mkdir()
    assert main(["serve", f"a={tmp_path}/none", f"b={tmp_path}/folder", "--port", "0"]) == 2
    errors = capsys.readouterr().err
    assert f"{tmp_path}/none: no such folder" in errors
    assert f"{tmp_path}/folder: neither a run nor a model folder" in errors


def test_the_command_serves_them(
    predictors: dict[str, Predictor], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options may stand between the models; what is served is asked while the server runs."""
    found, threads = [], set()

    def run(server: Any, sockets: Any) -> None:
        with TestClient(server.config.app) as client:
            found.append(client.get("/models").json()["models"])
        threads.update(id(batcher._thread) for batcher in server.config.app.state.batchers)

    monkeypatch.setattr("bertkit.inference.predictor.load", lambda source, **_: predictors[source])
    monkeypatch.setattr("uvicorn.Server.run", run)
    assert main(["serve", "mood=sentiment", "--port", "0", "answers=qa", "--timeout", "9"]) == 0
    assert {name: each["task"] for name, each in found[0].items()} == {
        "mood": "text-classification",
        "answers": "question-answering",
    }
    assert len(threads) == 1
    assert found[0]["mood"]["timeout"] == 9
    assert (found[0]["mood"]["model_id"], found[0]["mood"]["served_model_name"]) == ("sentiment", "mood")
    log = capsys.readouterr().err
    assert "sentiment (text-classification) on http://127.0.0.1:" in log
    assert "/models/answers" in log
