"""The files in deploy/: bertkit's own parser accepts their commands, and ports, folders and keys agree."""

import configparser
import json
import re
import shlex
import tomllib

import pytest
from ruamel.yaml import YAML
from small import ROOT

from bertkit.cli.main import parse
from bertkit.serving.limits import Limits
from bertkit.serving.middleware import OPEN

DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def dockerfile():
    """The instructions, in order, each with what follows it."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


@pytest.fixture(scope="module")
def image(dockerfile):
    """The instructions of the last stage."""
    last = max(index for index, (name, _) in enumerate(dockerfile) if name == "FROM")
    return dict(dockerfile[last:])


def health(command):
    """Port and path of the URL that a probe asks for."""
    (found,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", command[-1])
    compile(command[-1], "probe", "exec")
    return int(found[0]), found[1]


def test_the_image_serves_its_model_as_another_user(image):
    words = [*json.loads(image["ENTRYPOINT"]), *json.loads(image["CMD"])]
    assert words[0] == "bertkit"
    args = parse(words[1:])
    # arguments of `docker run` replace them
    assert f"replace\n`{' '.join(words[1:])}`" in (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    port, path = health(json.loads(image["HEALTHCHECK"].partition("CMD")[2]))
    assert (args.command.name, args.host) == ("serve", "0.0.0.0")
    assert args.port == port == int(image["EXPOSE"])
    assert path in OPEN  # answered without a key
    assert not image["USER"].startswith(("0", "root"))


def test_the_image_has_what_is_copied_and_installed(dockerfile, image):
    copied = [rest.split()[:-1] for name, rest in dockerfile if name == "COPY" and "--from" not in rest]
    sources = [word for words in copied for word in words]
    sent = re.findall(r"^!(.+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.M)
    assert sorted(sources) == sorted(sent)
    assert all((ROOT / source).exists() for source in sources)
    (installed,) = [rest for name, rest in dockerfile if name == "RUN"]
    extras = re.findall(r"\[([\w,-]+)\]", installed)[0].split(",")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert known.keys() >= {*extras} == {"onnx-runtime", "serve"}
    place = image["COPY"].split()[-1]
    assert f"-m venv {place} " in installed
    assert f"PATH={place}/bin:" in image["ENV"]


def test_compose_runs_the_image_read_only_with_a_key(image):
    compose = YAML(typ="safe").load(DEPLOY / "compose.yaml")
    service = compose["services"]["serve"]
    args = parse(service["command"])
    (volume,), (secret,) = service["volumes"], service["secrets"]
    assert args.source == volume["target"] == json.loads(image["CMD"])[1]
    assert str(args.api_key_file) == f"/run/secrets/{secret}"
    assert compose["secrets"][secret]["file"] in (ROOT / ".gitignore").read_text()
    assert (args.host, f"127.0.0.1:8000:{args.port}") == ("0.0.0.0", *service["ports"])
    assert health(service["healthcheck"]["test"]) == (args.port, "/health")
    build = service["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert service["user"] == image["USER"]
    assert service["read_only"] is volume["read_only"] is True
    assert service["cap_drop"] == ["ALL"]


def test_the_unit_reads_its_key_as_a_credential():
    unit = configparser.ConfigParser(strict=False, interpolation=None)  # of a repeated key the last value
    unit.optionxform = str
    unit.read(DEPLOY / "bertkit.service")
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    args = parse(words)
    name, _, file = service["LoadCredential"].partition(":")
    assert str(args.api_key_file) == f"%d/{name}"
    page = (ROOT / "docs/deploy.md").read_text()
    for place in (program.removesuffix("/bin/bertkit"), args.source, file):
        assert place in page
    assert (args.command.name, args.host) == ("serve", "127.0.0.1")
    assert service["DynamicUser"] == service["NoNewPrivileges"] == "yes"
    assert (service["ProtectSystem"], service["Restart"]) == ("strict", "on-failure")


def test_kubernetes_runs_the_image_read_only_with_a_key(image):
    deployment = YAML(typ="safe").load(DEPLOY / "kubernetes.yaml")
    (service,) = deployment["spec"]["template"]["spec"]["containers"]
    args = parse(service["args"])
    mounts = [mount["mountPath"] for mount in service["volumeMounts"]]
    assert mounts == [args.source, str(args.api_key_file.parent), "/tmp"]
    probes = [service[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert probes == [{"path": "/health", "port": args.port}] * 3
    assert (args.source, args.host, f"{args.port}") == (
        json.loads(image["CMD"])[1],
        "0.0.0.0",
        image["EXPOSE"],
    )


def test_a_stop_waits_for_a_body_and_its_answer():
    files = "".join(
        (DEPLOY / name).read_text() for name in ("bertkit.service", "compose.yaml", "kubernetes.yaml")
    )
    waits = re.findall(r"(?:TimeoutStopSec=|_grace_period: |GracePeriodSeconds: )(\d+)", files)
    assert len(waits) == 3
    assert min(map(int, waits)) > 2 * Limits.timeout + 1
