"""`doctor`: it says what holds on this machine, and tells no secrets."""

from __future__ import annotations

import json
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


def test_versions_precision_and_threads(found: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert found["environment"]["versions"]["torch"] == torch.__version__
    assert found["environment"]["threads"] == torch.get_num_threads()
    assert found["precision"]["used"] in ("fp32", "bf16")
    assert found["devices"][-1].startswith("cpu")
    assert found["tested_versions"]["transformers"]
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == found.keys()
    text = doctor_text(found)
    for line in (found["precision"]["why"], "tested with"):
        assert line in text


def test_a_token_is_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_a-very-secret-one")
    found = examine()
    assert found["hub_token"] is True
    assert "very-secret" not in json.dumps(found) + doctor_text(found)


def test_extras_say_what_is_missing_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["numpy>=2", "nowhere-to-be-found>=1; extra == 'a'", "numpy>=99; extra == 'b'", "numpy>=1; extra == 'c'"]
    needs += ["bertkit[a,b]; extra == 'dev'", "numpy>=2; extra == 'dev'"]
    monkeypatch.setattr(doctor_module.metadata, "requires", lambda name: needs)
    monkeypatch.setattr(
        doctor_module.metadata,
        "metadata",
        lambda name: type("Made", (), {"get_all": lambda self, key: [*"abc", "dev"]})(),
    )
    told = {each["name"]: (each["state"], each["fix"]) for each in doctor_module._extras()}
    assert told["a"] == ("no nowhere-to-be-found", 'pip install "bertkit[a]"')
    assert told["b"][0].endswith("is too old")
    assert told["c"] == told["dev"] == ("installed", "")


def test_an_extra_that_lacks_much_keeps_the_table_narrow(found: dict[str, Any]) -> None:
    state = ", ".join(f"no package-{number}" for number in range(25))
    told = doctor_text({**found, "extras": [{"name": "dev", "state": state, "fix": 'pip install "bertkit[dev]"'}]})
    assert "no package-3 and 21 more" in told
    assert "package-4" not in told
