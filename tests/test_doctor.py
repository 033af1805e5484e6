"""`doctor`: it passes here, it catches paths that compute something else, and it tells no secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from bertkit.cli import doctor as doctor_module
from bertkit.cli.doctor import doctor_text, examine
from bertkit.cli.main import main
from bertkit.models import cpu_kernels as cpu
from bertkit.models import parity
from bertkit.models.parity import CPU, EXACT, ROUNDED, STEP, Check, Way


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What doctor finds on this machine."""
    return examine()


@pytest.fixture
def no_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    """One check that passes, where the checks are not what is looked at."""
    monkeypatch.setattr(parity, "parity", lambda: [Check("one", 0.0, EXACT)])


def outcomes(monkeypatch: pytest.MonkeyPatch, *ways: Way) -> dict[str, bool]:
    monkeypatch.setattr(parity, "ways", lambda device: list(ways))
    return {check.name.rpartition(": ")[2]: check.ok for check in parity.parity()}


# --- what it finds


def test_every_path_of_this_machine_is_checked_and_right(found: dict[str, Any]) -> None:
    names = [check["name"] for check in found["checks"]]
    for way in parity.ways(parity.best_device()):
        for what in ("texts alone", "texts in a padded batch", "gradients"):
            assert f"{way.title}: {what}" in names
    assert found["ok"]
    assert len(names) == len(set(names)) >= 12
    assert doctor_text(found).endswith("All paths agree.")


def test_figures_are_those_of_arithmetic_and_not_of_doing_nothing(found: dict[str, Any]) -> None:
    """fp32 in another order differs a little, bf16 a thousand times as much, and both stay below their limits."""
    by_name = {check["name"].partition(": ")[0]: check["difference"] for check in found["checks"]}
    device = parity.best_device().type
    assert 0 < by_name[f"sdpa, {device}, fp32"] < EXACT
    assert 1e-3 < by_name[f"sdpa, {device}, bf16"] < ROUNDED


def test_the_model_of_the_checks_is_sensitive_to_its_attention() -> None:
    """What the texts are told apart by is attention: attended padding moves them by more than any limit."""
    alone = parity.texts_alone(Way("eager", CPU, False))
    model = parity._model(Way("eager", CPU, False))
    ids = torch.nn.utils.rnn.pad_sequence(parity._texts(), batch_first=True)
    with torch.inference_mode():
        unmasked = model(input_ids=ids).last_hidden_state
    worst = max(float((unmasked[n, : len(a)] - a).norm() / a.norm()) for n, a in enumerate(alone))
    assert worst > 5 * ROUNDED


def test_versions_precision_and_threads_are_told(found: dict[str, Any]) -> None:
    assert found["environment"]["versions"]["torch"] == torch.__version__
    assert found["environment"]["threads"] == torch.get_num_threads()
    assert found["precision"]["used"] in ("fp32", "bf16")
    assert found["precision"]["why"]
    assert found["devices"][-1] == "cpu"
    json.dumps(found, allow_nan=False)


# --- paths that are wrong


def test_attention_that_ignores_the_mask_fails_in_a_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    right = F.scaled_dot_product_attention

    def wrong(query: Any, key: Any, value: Any, attn_mask: Any = None, **more: Any) -> Any:
        return right(query, key, value, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", wrong)
    told = outcomes(monkeypatch, Way("sdpa", CPU, False))
    assert told == {"texts alone": True, "texts in a padded batch": False, "gradients": False}


def test_a_step_of_our_own_that_scales_wrongly_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cpu.attention
    monkeypatch.setattr(cpu, "attention", lambda *args, **more: right(*args, **more) * 1.0001)
    assert not any(outcomes(monkeypatch, Way(STEP, CPU, False)).values())


def test_wrong_gradients_alone_fail_too(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cpu.attention
    monkeypatch.setattr(
        cpu, "attention", lambda *args, **more: (out := right(*args, **more)).detach() * 0.5 + out * 0.5
    )
    told = outcomes(monkeypatch, Way(STEP, CPU, False))
    assert told == {"texts alone": True, "texts in a padded batch": True, "gradients": False}


def test_what_is_not_a_number_fails_and_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cpu.attention
    monkeypatch.setattr(cpu, "attention", lambda *args, **more: right(*args, **more) * float("nan"))
    monkeypatch.setattr(parity, "ways", lambda device: [Way(STEP, CPU, False)])
    found = examine()
    assert not found["ok"]
    assert {check["why"] for check in found["checks"]} == {"not a number"}
    json.dumps(found, allow_nan=False)


def test_a_path_that_can_not_run_fails_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "ways", lambda device: [Way("flash_attention_2", CPU, True)])
    checks = parity.parity()
    assert [(check.ok, check.difference) for check in checks] == [(False, None)] * 3
    assert all("Error: " in check.why for check in checks)


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(parity, "parity", lambda: [Check("one", 1e-7, EXACT), Check("two", 0.5, EXACT)])
    assert main(["doctor"]) == 2
    said = capsys.readouterr().out
    assert "two" in said
    assert "1 of 2 checks FAIL" in said
    assert main(["doctor", "--json"]) == 2
    assert [check["ok"] for check in json.loads(capsys.readouterr().out)["checks"]] == [True, False]
    monkeypatch.setattr(parity, "parity", lambda: [Check("one", 1e-7, EXACT)])
    assert main(["doctor"]) == 0


# --- what surrounds the model


@pytest.mark.usefixtures("no_parity")
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


@pytest.mark.usefixtures("no_parity")
def test_sizes_of_caches_count_every_file_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"x" * 3_000_000)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "file")
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path))
    own = next(each for each in examine()["caches"] if each["folder"] == str(tmp_path))
    assert 3_000_000 <= own["bytes"] < 3_001_000
