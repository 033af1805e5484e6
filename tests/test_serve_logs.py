"""--log-format json: each line is an object, each request has one, and none holds a text or a key."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import transformers
from serving import KEPT, SECRET, make_app, predictor_of, said
from starlette.testclient import TestClient

from bertkit.serve.limits import Limits
from bertkit.serve.logs import REQUESTS, JsonFormatter
from bertkit.serve.models import make_models_app
from bertkit.serve.service import Service

KEY = "s3cret-key"


def asked(url: str, body: Any, key: str = KEY) -> int:
    """The status of the response."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}", "X-Request-ID": "mine-1"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_log_of_a_server(tiny_encoder: Path, tmp_path: Path) -> None:
    transformers.AutoModel.from_pretrained(tiny_encoder).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(tmp_path)
    command = [sys.executable, "-m", "bertkit", "serve", f"small={tmp_path}", "--task", "retrieval", "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "BERTKIT_API_KEY": KEY}
    requests = [
        ("/models/small/embed", {"inputs": SECRET}, KEY, 200),
        ("/models/small/embed", {"inputs": [5, SECRET]}, KEY, 422),
        (f"/models/small/{SECRET}?{SECRET}", {}, KEY, 404),
        ("/models/small/embed", {"inputs": "a"}, f"{KEY}-", 401),
        ("/v1/embeddings", {"model": "small", "input": SECRET}, KEY, 200),
        ("/v1/embeddings", {"model": SECRET, "input": SECRET}, KEY, 404),
    ]
    with subprocess.Popen(
        [*command, "--log-format", "json"], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr
        try:
            lines = [process.stderr.readline()]
            url = re.search(r"http://127\.0\.0\.1:\d+", lines[0])[0]  # type: ignore[index]
            for path, body, key, status in requests:
                assert asked(url + path, body, key) == status
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            lines += process.stderr.readlines()
        finally:
            process.kill()
    assert SECRET not in "".join(lines)
    assert KEY not in "".join(lines)
    first, *logged, last = map(json.loads, lines)
    assert (first["level"], last["message"]) == ("INFO", "all accepted requests are answered")
    for line in (first, *logged, last):
        assert datetime.fromisoformat(line["time"]).utcoffset() is not None
    seen = [(line["method"], line["path"], line["model"], line["status"]) for line in logged]
    assert seen == [
        ("POST", "/embed", "small", 200),
        ("POST", "/embed", "small", 422),
        ("POST", "other", "small", 404),
        ("POST", "/embed", "small", 401),
        ("POST", "/v1/embeddings", "small", 200),
        ("POST", "/v1/embeddings", None, 404),
    ]
    assert all(line["id"] == "mine-1" and 0 < line["seconds"] < 60 for line in logged)
    assert logged[0]["message"] == "POST /embed 200"


def formatted(record: logging.LogRecord) -> Any:
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_exceptions_and_line_breaks() -> None:
    try:
        raise ValueError(SECRET)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "file", 1, "two\nlines %s", ("é",), sys.exc_info())
    line = formatted(record)
    assert (line["level"], line["message"]) == ("ERROR", "two\nlines é")
    assert "ValueError" in line["traceback"]
    assert SECRET not in json.dumps(line)


def test_requests_are_logged_by_model_and_only_then(tiny_encoder: Path, caplog: pytest.LogCaptureFixture) -> None:
    predictor = predictor_of(KEPT["single-label"], tiny_encoder)
    with TestClient(make_app(predictor, "org/small", Limits())) as client:
        said(client, "/predict", rows=["a"])
        assert not [record for record in caplog.records if record.name == REQUESTS.name]
        with caplog.at_level(logging.INFO, REQUESTS.name):
            said(client, "/predict", rows=["a"])
    (line,) = [formatted(record) for record in caplog.records if record.name == REQUESTS.name]
    assert (line["model"], line["path"]) == ("org/small", "/predict")
    caplog.clear()
    with (
        TestClient(make_models_app({"one": Service(predictor, "one", Limits())}, Limits())) as client,
        caplog.at_level(logging.INFO, REQUESTS.name),
    ):
        client.get("/models")
        client.get("/models/one/info")
    found = [formatted(record) for record in caplog.records if record.name == REQUESTS.name]
    assert [(each["path"], each["model"]) for each in found] == [("/models", None), ("/info", "one")]
