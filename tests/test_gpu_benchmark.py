"""benchmarks/gpu.py: the whole program with tiny encoders, and the numbers that it computes."""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """A name -> the program of that name in benchmarks/, which import each other."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def told(*options):
    """The lines that the program prints."""
    path = os.pathsep.join([str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, f"{BENCHMARKS}/gpu.py", "--tiny", *options]
    return subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout


@pytest.mark.rare
def test_each_cell_prints_a_line_after_each_round():
    about, head, rule, *lines = told("--peak-tflops", "0.0005", "--cells", "0", "4").splitlines()
    assert about.startswith("cpu, peak 0.0005 TFLOP/s")
    assert {line.count("|") for line in (head, rule, *lines)} == {head.count("|")}
    assert len(lines) == 2 * 3
    for line in lines:
        what, _, rows, ratio, tokens, mfu, *_, kernels = (cell.strip() for cell in line.strip("|").split("|"))
        ours, theirs = (float(each.replace(",", "")) for each in rows.split(" / "))
        assert float(ratio) == pytest.approx(ours / theirs, rel=0.1)
        assert min(float(each.replace(",", "")) for each in tokens.split(" / ")) > 4 * min(ours, theirs) > 0
        shares = [float(each.rstrip("%")) for each in mfu.split(" / ")]
        assert shares[0] / shares[1] == pytest.approx(ours / theirs, rel=0.1)
        assert 0 < min(shares) < max(shares) < 100
        assert kernels in ("", "0% / 0%"), what
    assert [line.endswith("0% / 0% |") for line in lines] == [False, False, True, False, False, False]


@pytest.mark.rare
def test_a_cell_that_does_not_end_is_aborted_and_says_where_it_was(capfd):
    last = told("--cells", "0", "--seconds", "0.5").splitlines()[-1]
    assert last == f"cell 0: exit status {-signal.SIGABRT}"
    assert "most recent call first" in capfd.readouterr().err


def test_flops_are_those_that_torch_counts_and_of_local_attention(module):
    """Of the encoder alone, in attention by the formula; backwards twice as many as forwards."""
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 40}
    config = BertConfig(vocab_size=50, hidden_size=24, **sizes, attn_implementation="eager")
    model = BertModel(config, add_pooling_layer=False)
    flops = module("gpu").flops
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
    flops = module("gpu").flops
    short, long = (flops(model, np.array([[length]]), train=False) for length in (8, 16))
    assert long == 2 * short + 4 * 24 * 16 * 8
    assert short == 2 * 8 * 3 * (24 * 72 + 24 * 24 + 24 * 80 + 40 * 24) + 3 * 4 * 24 * 8 * 8
