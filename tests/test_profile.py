"""--profile: where the time of a training goes, and its padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small
import torch
from steps import CASES, arguments, made

from bertkit.cli.main import main
from bertkit.engine import callbacks
from bertkit.engine.callbacks import PARTS, Profile, profile_lines
from bertkit.files import read_json


def test_every_moment_belongs_to_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 12.5, 13.0, 16.0, 100.0, 101.0, 104.0])
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: next(clock))
    watch = Profile()
    watch.on_train_begin(None, None, None)
    for part in ("data", "forward", "backward"):
        watch.switch(part)
    watch.on_train_end(None, None, None)
    watch.on_train_begin(None, None, None)  # a second seed; what is between is nobody's
    watch.switch("forward")
    watch.on_step_end(None, None, None)
    assert watch.facts()["seconds"] == 10.0
    told = {part: facts["seconds"] for part, facts in watch.facts()["parts"].items()}
    wanted = {"data": 2.0, "forward": 3.5, "backward": 3.0, "optimizer": 0.0, "evaluation": 0.0, "saving": 0.0}
    assert told == {**wanted, "other": 1.5}
    assert watch.facts()["parts"]["forward"]["ms_per_step"] == 3500.0
    assert watch.facts()["parts"]["forward"]["share"] == 0.35
    assert "3500.00 ms a step" in profile_lines(watch.facts())


def test_it_waits_for_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: waited.append(1))
    watch = Profile()
    watch.switch("forward")
    assert not waited, "outside of a training nothing is measured"
    watch.on_train_begin(None, None, None)
    watch.switch("forward")
    assert waited == [1]


def test_parts_are_turned_where_they_begin(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turned: list[str] = []
    monkeypatch.setattr(Profile, "switch", lambda self, part: turned.append(part))
    made(
        CASES[0], tiny_encoder, arguments(tmp_path, 4, 2, save_strategy="steps", save_steps=1), profile=Profile()
    ).train()
    micro = ["forward", "backward", "optimizer"]
    assert turned == ["data", "other", *micro, *micro, "other", "saving", "other", ""]


def test_profile_json_and_the_table(tiny_encoder: Path, tmp_path: Path, capsys: Any) -> None:
    file = small.write_recipe(tmp_path, tiny_encoder)
    run = tmp_path / "run"
    assert main(["train", str(file), "--output-dir", str(run), "--profile", "seeds=[1, 2]"]) == 0
    facts = read_json(run / "profile.json")
    assert facts["steps"] == 2 * 2 * 4  # seeds, epochs, 16 rows in batches of 4
    assert set(facts["parts"]) == set(PARTS)
    assert all(told["seconds"] > 0 for told in facts["parts"].values())
    assert sum(told["seconds"] for told in facts["parts"].values()) == pytest.approx(facts["seconds"])
    assert sum(told["share"] for told in facts["parts"].values()) == pytest.approx(1)
    # The 16 rows have 4 lengths, 4 of each: all in one pool, so that no batch holds two lengths.
    lengths = [2 + len(small.text(number, number % 2).split()) for number in range(16)]
    assert (facts["slots"], facts["padding"]) == (2 * 2 * sum(lengths), 0.0)
    assert "forward" in capsys.readouterr().err


def test_padding_is_counted() -> None:
    watch = Profile()
    watch.on_train_begin(None, None, None)
    padded = {"input_ids": torch.ones(2, 4), "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])}
    watch.count([padded, {"input_ids": torch.ones(1, 2)}])
    assert (watch.facts()["slots"], watch.facts()["padding"]) == (10, pytest.approx(0.2))
