"""benchmarks/gpu.py: the whole program with a tiny encoder on any machine, and the numbers that it
computes.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

from bertkit.files import read_json

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """A name -> the program of that name in benchmarks/, which import each other."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.mark.rare
def test_the_whole_program(tmp_path):
    """One encoder that can be measured, and one that there is not."""
    output = tmp_path / "gpu"
    path = os.pathsep.join([str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")])
    options = ["--tiny", "--encoders", "tiny", "no/such", "--peak-tflops", "0.5", "--output", str(output)]
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(BENCHMARKS / "gpu.py"), *options], env=environment, check=True)
    found = read_json(output.with_suffix(".json"))
    assert "skipped" in found["tests"]
    assert "failed" not in found["tests"]
    assert (found["about"]["device"], found["about"]["peak_tflops"]) == ("cpu", 0.5)
    cells = found["cells"]
    assert [cell["encoder"] for cell in cells] == ["tiny"] * 4 + ["no/such"] * 4
    for cell in cells[:4]:
        assert "failed" not in cell, cell
        assert cell["weights"] == "random"
        for what in ("train", "predict"):
            # of the same rows
            ours = cell[what]["bertkit"]
            theirs = cell[what]["stock"]
            for told in (ours, theirs):
                assert (len(told["seconds"]), told["peak_bytes"]) == (1, None)
                assert told["tokens_per_second"] > 4 * told["rows_per_second"] > 0
                assert 0 < told["mfu"] < 1
            assert ours["mfu"] / theirs["mfu"] == pytest.approx(
                ours["rows_per_second"] / theirs["rows_per_second"]
            )
    assert all("no/such" in cell["failed"] for cell in cells[4:])
    table = [line for line in output.with_suffix(".md").read_text().splitlines() if line.startswith("|")]
    assert len(table) == 2 + 4 * 2 + 4
    assert len({line.count("|") for line in table}) == 1
    assert sum("failed: " in line for line in table) == 4


def test_flops_are_those_that_torch_counts_and_of_local_attention(module):
    """Of the encoder alone, in attention by the formula; backwards twice as many as forwards."""
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 40}
    config = BertConfig(vocab_size=50, hidden_size=24, **sizes, attn_implementation="eager")
    model = BertModel(config, add_pooling_layer=False)
    flops = module("gpu_cell").flops
    lengths = np.array([[7, 3], [12, 5]])
    for train in (False, True):
        counter = FlopCounterMode(display=False)
        with counter:
            for length in lengths.flatten().tolist():
                states = model(torch.arange(length)[None]).last_hidden_state
                if train:
                    states.sum().backward()
        assert flops(model, lengths, train=train) == counter.get_total_flops()
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 40}
    ids = {f"{role}_token_id": 0 for role in "pad cls sep bos eos".split()}
    model = ModernBertModel(
        ModernBertConfig(vocab_size=50, hidden_size=24, local_attention=8, **sizes, **ids)
    )
    flops = module("gpu_cell").flops
    short, long = (flops(model, np.array([[length]]), train=False) for length in (8, 16))
    assert long == 2 * short + 4 * 24 * 16 * 8
    assert short == 2 * 8 * 3 * (24 * 72 + 24 * 24 + 24 * 80 + 40 * 24) + 3 * 4 * 24 * 8 * 8
