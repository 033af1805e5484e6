"""`doctor`: it says what holds on this machine, and tells no secrets."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import pytest
import torch

from bertkit.cli import doctor as doctor_module
from bertkit.cli.doctor import doctor_text, examine
from bertkit.cli.main import main


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What doctor finds on this machine."""
    return examine()


def test_versions_precision_promises_and_threads(found: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert found["environment"]["versions"]["torch"] == version("torch")
    assert found["environment"]["threads"] == torch.get_num_threads()
    assert found["precision"]["used"] in ("fp32", "bf16")
    assert found["devices"][-1].startswith("cpu")
    assert found["tested_versions"]["transformers"]
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == found.keys()
    text = doctor_text(found)
    for line in ("exact resume", "int8 exports", "kernels in training", found["precision"]["why"], "tested with"):
        assert line in text


def test_promises_depend_on_the_device() -> None:
    assert doctor_module._promises("cpu")["exact resume"].startswith("byte for byte")
    assert "not tested" in doctor_module._promises("mps")["exact resume"]
    assert doctor_module._promises("cuda")["kernels in training"] == "those of torch"


def test_a_token_is_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_a-very-secret-one")
    found = examine()
    assert found["hub_token"] is True
    assert "very-secret" not in json.dumps(found) + doctor_text(found)
