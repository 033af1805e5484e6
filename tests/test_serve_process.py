"""The server as a process: under load, with clients that leave, and when it is stopped."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from cases import TEXTS
from serving import KEPT, SECRET, Model, alike, bug, make_app, predictor_of

import bertkit
from bertkit.cli.main import main
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor, load
from bertkit.serving.batcher import Batcher
from bertkit.serving.limits import Limits
from bertkit.serving.middleware import LimitsMiddleware
from bertkit.serving.prometheus import Metrics
from bertkit.serving.server import listen, make_server, name_for_clients, run

# --- the whole application, with a model that waits
# ------------------------------------------------------------------


async def settled():
    """Let every task go on until it waits for the model."""
    for _ in range(100):
        await asyncio.sleep(0)


@dataclass(frozen=True)
class StandIn(Predictor):
    """A predictor that waits until it may, and whose texts are numbers."""

    wait: Any = None

    def stream(self, rows):
        self.wait([{"n": row["text"]} for row in rows])
        return super().stream(rows)


SCOPE = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/predict", "raw_path": b"/predict"}
SCOPE |= {
    "headers": [(b"content-type", b"application/json")],
    "query_string": b"",
    "root_path": "",
    "scheme": "http",
}
SCOPE |= {"client": None, "server": None, "state": {}, "asgi": {"version": "3.0"}}


async def post(app, text, leaves=None):
    """The messages of the response, by ASGI itself; the client goes away when `leaves` is set."""
    sent = []
    body = [{"type": "http.request", "body": json.dumps({"rows": [text]}).encode(), "more_body": False}]

    async def receive():
        if body:
            return body.pop()
        await (leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    await app(SCOPE, receive, send)
    return sent


def test_a_full_house_and_clients_that_go_away(tiny_encoder):
    model = Model()
    predictor = predictor_of(KEPT["single-label"], tiny_encoder)
    parts = {part.name: getattr(predictor, part.name) for part in fields(predictor)}
    app = make_app(StandIn(**parts, wait=model), "small", Limits(max_concurrent_requests=3))

    async def run():
        leaves = asyncio.Event()
        async with app.router.lifespan_context(app):
            tasks = [asyncio.create_task(post(app, "zero"))]
            await asyncio.to_thread(model.busy.wait)
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


def test_the_limit_on_reading_a_body_ends_with_the_body():
    """An answer has its own limit: until then the client's disconnection is awaited."""
    received = []

    async def app(scope, receive, send):
        received.append(await receive())
        received.append(await receive())

    async def run():
        messages = iter(
            [{"type": "http.request", "body": b"{}", "more_body": False}, {"type": "http.disconnect"}]
        )

        async def receive():
            if received:
                await asyncio.sleep(0.05)  # longer than the limit
            return next(messages)

        async def send(message):
            raise AssertionError(message)

        limited = LimitsMiddleware(app, Limits(timeout=0.01), Metrics(), frozenset())
        await limited(SCOPE, receive, send)

    asyncio.run(run())
    assert [message["type"] for message in received] == ["http.request", "http.disconnect"]


# --- a real server
# ---------------------------------------------------------------------------------------------------

HEADERS = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def model_folder(tiny_encoder, tmp_path_factory):
    """A small classifier, read in fp32 so that its answers tell requests apart to the fifth digit."""
    folder = tmp_path_factory.mktemp("serve") / "classifier"
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(tiny_encoder, num_labels=3, initializer_range=0.3)
    labels = [[name, name] for name in config.id2label.values()]
    options = {"name": "text-classification", "kind": "single-label", "labels": labels}
    config.bertkit = {"version": "0.1.0", "task": options, "precision": "fp32"}
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(folder)
    return folder


@pytest.fixture
def server(model_folder):
    """`bertkit serve` as a process of its own, and its port."""
    command = [sys.executable, "-m", "bertkit", "serve", str(model_folder)]
    command += "--port 0 --max-concurrent-requests 6 --max-batch-tokens 64".split()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr
        try:
            line = process.stderr.readline()
            yield process, int(re.search(r"http://127\.0\.0\.1:(\d+)", line)[1])
        finally:
            process.kill()


def asked(port, body=None, path="/predict"):
    """Status, content and headers of the response; without a body, to GET."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    content = body if isinstance(body, bytes | None) else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, content, HEADERS)
    response = connection.getresponse()
    found = response.status, response.read(), response.headers
    connection.close()
    return found


def half_sent(port, body):
    """A connection on which half of a request has gone."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest("POST", "/predict")
    for name, value in {**HEADERS, "Content-Length": str(len(body))}.items():
        connection.putheader(name, value)
    connection.endheaders(body[: len(body) // 2])
    return connection


def metric(port, name):
    return float(re.search(rf"^{name} (\S+)$", asked(port, path="/metrics")[1].decode(), re.M)[1])


def until(true):
    """Wait, for at most 20 seconds."""
    for _ in range(2000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come true")


def refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return True
    return False


def test_a_server_under_load_that_is_stopped(server, model_folder):
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

    def check(number):
        rows = requests[number]
        status, found, _ = asked(port, {"rows": rows} if number % 7 else {"rows": [*rows, 5]})
        if number % 7:
            alike(json.loads(found)["answers"], expected[number])
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
def test_a_signal_is_not_lost_while_the_server_looks_for_a_failure(tiny_encoder, failure):
    class Interrupted:
        """A batcher that is asked for its failure just when a signal comes."""

        @property
        def failure(self):
            server.should_exit = failure is None
            return failure

    app = make_app(predictor_of(KEPT["single-label"], tiny_encoder), "small", Limits())
    server = make_server(app, Limits())
    app.state.batcher = Interrupted()
    assert server.config.callback_notify
    asyncio.run(server.config.callback_notify())
    assert server.should_exit


@pytest.fixture(scope="module")
def address(tiny_encoder, request):
    """Where a server in a thread of this process listens; the parameter is its timeout in seconds."""
    limits = Limits(timeout=request.param)
    server = make_server(make_app(predictor_of(KEPT["single-label"], tiny_encoder), "small", limits), limits)
    server.config.timeout_keep_alive = (
        3600  # uvicorn's own, which would end an idle connection after 5 seconds
    )
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()
        server.should_exit = True
        thread.join()


def sent(connection, *lines):
    """The status line and headers of the response to these lines; "" where the connection ends without
    one.
    """
    connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
    received = b""
    while b"\r\n\r\n" not in received and (part := connection.recv(4096)):
        received += part
    return received.decode().partition("\r\n\r\n")[0].lower()


def ended(connection):
    """Whether the server closes the connection: within 20 seconds."""
    connection.settimeout(20)
    with suppress(ConnectionResetError):
        while connection.recv(4096):
            pass
    return True


HEALTH = ("GET /health HTTP/1.1", "Host: here", "")


@pytest.mark.parametrize("address", [0.2], indirect=True)
def test_a_slow_body_has_its_own_timeout(address):
    with socket.create_connection(address, timeout=20) as connection:
        lines = (
            "POST /predict HTTP/1.1",
            "Host: here",
            "Content-Type: application/json",
            "Content-Length: 9",
            "",
        )
        assert sent(connection, *lines).startswith("http/1.1 408")
        assert ended(connection)  # else a client that never sends the rest would hold it


@pytest.mark.parametrize("address", [30.0], indirect=True)
@pytest.mark.parametrize("method", ["GET /health", "POST /predict"])
def test_a_body_of_two_lengths_ends_the_connection(address, method):
    """What follows it could be a request that a proxy before this server took for the body."""
    both = (
        "Host: here",
        "Content-Type: application/json",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "",
    )
    with socket.create_connection(address, timeout=20) as connection:
        found = sent(connection, f"{method} HTTP/1.1", *both, "0", "", *HEALTH)
        assert found.startswith("http/1.1 400")
        assert "connection: close" in found
        assert ended(connection)


def test_an_address_that_can_not_be_had(model_folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code = main(["serve", str(model_folder), "--port", port])
    assert code == 2
    assert f"error: 127.0.0.1:{port}: cannot listen on this address" in capsys.readouterr().err


def test_small_answers_are_sent_at_once():
    """Nagle's algorithm would hold a body back until its headers are acknowledged, 40 ms later."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_clients_are_not_told_where_a_model_is(model_folder, monkeypatch):
    monkeypatch.chdir(model_folder)
    assert {name_for_clients(each) for each in (str(model_folder), ".")} == {model_folder.name}
    assert name_for_clients("org/model") == "org/model"


def test_a_server_that_no_longer_answers_ends(tiny_encoder, monkeypatch, caplog):
    monkeypatch.setattr(Batcher, "_next_batch", bug)
    predictor = predictor_of(KEPT["single-label"], tiny_encoder)
    with pytest.raises(UserError, match=r"the server: it stopped answering requests \(ZeroDivisionError\)"):
        run(predictor, "small", host="127.0.0.1", port=0, limits=Limits())
    assert "in bug" in caplog.text
    assert SECRET not in caplog.text


def test_a_notebook_is_told_where_to_start_it():
    async def cell():
        bertkit.serve("no model is loaded")

    with pytest.raises(UserError, match="event loop"):
        asyncio.run(cell())
