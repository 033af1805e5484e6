"""What the tests of the server share: predictors of the cases, servers, and a model that waits."""

import threading
from collections.abc import Mapping
from contextlib import contextmanager

import pytest
import torch
from cases import BY_ID, encoder
from starlette.testclient import TestClient

from bertkit.errors import DataError, Problem
from bertkit.inference.predictor import Predictor
from bertkit.serving.app import model_app
from bertkit.serving.limits import Limits
from bertkit.serving.server import listen, make_server
from bertkit.serving.service import Service

SECRET = "the-cat-is-a-secret"
KEPT = BY_ID


def make_app(predictor, name, limits, api_key=None, store=None):
    """The application of a model. name: of the model, in /info. api_key and store: as for `model_app` and
    Service.
    """
    return model_app(Service(predictor, name, limits, store), api_key)


def client_of(predictor, **more):
    """A client of the application of this predictor."""
    return TestClient(make_app(predictor, "small", Limits(), **more))


def schemas(client, path):
    """Those of what is sent to this path, and of its answers."""
    document = client.get("/openapi.json").json()
    operation = document["paths"][path]["post"]
    contents = [operation["requestBody"], *map(operation["responses"].get, ("200", "422"))]
    kept = {"components": document["components"]}
    return [kept | each["content"]["application/json"]["schema"] for each in contents]


def predictor_of(case, folder, **columns):
    """A predictor with an untrained head: what it says is arbitrary, but always the same."""
    task = case.task(folder)
    torch.manual_seed(1)
    model = task.model(encoder(folder)).eval()
    return Predictor(task, model, torch.device("cpu"), "fp32", 4, columns)


def alike(found, expected):
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


def said(client, path, status=200, **body):
    """What the server says to this body."""
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


def bug(batcher):
    """Stands for any in the batcher's own code."""
    raise ZeroDivisionError(SECRET)


class Model:
    """Answers rows with their number, when it may; remembers what it was given."""

    def __init__(self):
        self.may = threading.Event()
        self.busy = threading.Event()
        self.calls = []

    def __call__(self, rows):
        self.calls.append([row["n"] for row in rows])
        self.busy.set()
        assert self.may.wait(10)
        if any(row.get("bad") == "data" for row in rows):
            place = next(number for number, row in enumerate(rows, 1) if row.get("bad"))
            raise DataError(Problem(f"row {place}", "bad"))
        if any(row.get("bad") for row in rows):
            raise ZeroDivisionError(SECRET)
        return [{"n": row["n"]} for row in rows]


@contextmanager
def running_app(app):
    """The address of a server of this application."""
    server = make_server(app, Limits())
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def running(predictor, api_key=None):
    """The address of a server of this predictor."""
    return running_app(make_app(predictor, "org/small", Limits(), api_key))
