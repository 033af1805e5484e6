"""What must be the same on a GPU: models, attention, the CRF, steps, resumed trainings, answers.

Most run on the CPU too, where they compare another way to compute the same. Those for a GPU:
    pytest -n 0 -m cuda tests/test_devices.py
"""

import contextlib
import warnings
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import small
import torch
from cases import BY_ID, CASES, TAGS, TOKENS, Case, encoder
from steps import FirstStep, arguments, made
from test_bert import batch, ours, theirs
from test_crf import random_batch, random_chain, use_scan
from test_task_contract import ALONE, numbers
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close
from transformers import BertConfig, BertModel, set_seed
from transformers.utils.import_utils import is_flash_attn_2_available, is_flash_attn_3_available

from bertkit.encoding.padding import fills, pad
from bertkit.engine import trainer as training
from bertkit.inference import runner as running
from bertkit.inference.predictor import Predictor
from bertkit.inference.runner import Runner
from bertkit.models import device as devices
from bertkit.models.cpu_kernels import FasterStep
from bertkit.models.heads import crf
from bertkit.models.heads.crf import Chain
from bertkit.training import job
from bertkit.training.job import prepare_jobs

CPU = torch.device("cpu")
ON_GPU = pytest.mark.cuda


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=ON_GPU)])
def device(request):
    return torch.device(request.param)


@pytest.fixture
def repeatable(monkeypatch):
    """Kernels that give the same bytes twice; cuBLAS has them with this variable."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# --- attention: a wrong fast path fails silently. A small BERT with random weights reads the same texts by
# every path: each alone, all of them padded in one batch, and backwards. The reference is `eager`, on the
# CPU, in fp32, each alone.

SIZES = (40, 1, 17, 3, 64)  # tokens of the texts
EXACT = 1e-5  # sums of fp32, in another order
ROUNDED = 5e-2  # bf16 keeps 8 bits: 0.4 % at each of some twenty operations, more in gradients
STEP = "bertkit's step"  # of training on a CPU: models/cpu_kernels.py


class Way(NamedTuple):
    """A way to compute attention: an implementation of transformers', or STEP."""

    name: str
    device: torch.device
    bf16: bool


def disagreements(device):
    """The difference of each way of this device, and of what it computes, that is too far from the
    reference.
    """
    reference = Way("eager", CPU, bf16=False)
    found = {}
    for way, run in product(ways(device), (texts_alone, texts_in_a_batch, gradients)):
        expected = gradients(reference) if run is gradients else texts_alone(reference)
        differences = [(a - b).norm() / b.norm() for a, b in zip(run(way), expected, strict=True)]
        difference = torch.stack(differences).max().item()  # NaN, if one is
        if not difference <= (ROUNDED if way.bf16 else EXACT):
            found[way, run.__name__] = difference
    return found


def ways(device):
    """The ways to compute attention on this device, and bertkit's own for a CPU's training step."""
    names = ["eager", "sdpa", *([STEP] if device.type == "cpu" else [])]
    precisions = (False, True) if device.type in ("cpu", "cuda") else (False,)
    available = [Way(name, device, bf16) for bf16 in precisions for name in names]
    if device.type == "cuda":  # these have no fp32
        flash = {
            "flash_attention_2": is_flash_attn_2_available,
            "flash_attention_3": is_flash_attn_3_available,
        }
        available += [Way(name, device, bf16=True) for name, installed in flash.items() if installed()]
    return available


def texts_alone(way):
    """The hidden states of each text, `(tokens, hidden)`, without padding and without a mask."""
    model = _model(way)
    with torch.inference_mode(way.name != STEP):
        return [_states(way, model, [text])[0].detach().float().cpu() for text in _texts()]


def texts_in_a_batch(way):
    """The hidden states of each text, `(tokens, hidden)`, all in one padded batch."""
    with torch.inference_mode(way.name != STEP):
        return [states.detach().float().cpu() for states in _states(way, _model(way), _texts())]


def gradients(way):
    """The gradients of all parameters, end to end, of a loss over all texts in one padded batch."""
    model = _model(way).train()
    states = torch.cat(_states(way, model, _texts()))
    generator = torch.Generator().manual_seed(1)
    loss = (states.float() * torch.randn(states.shape, generator=generator).to(way.device)).sum()
    return [
        torch.cat([g.float().cpu().flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    ]


def _texts():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, 100, (size,), generator=generator) for size in SIZES]


def _model(way):
    """The same small model each time; weights large enough for attention that prefers some tokens to
    others.
    """
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    sizes |= {"vocab_size": 100, "max_position_embeddings": max(SIZES)}
    config = BertConfig(initializer_range=0.2, **sizes, **rates)
    config._attn_implementation = "sdpa" if way.name == STEP else way.name
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertModel(config, add_pooling_layer=False)
    return model.eval().to(way.device)


def _states(way, model, texts):
    """The hidden states of each text, all in one batch; a single text has neither padding nor a mask."""
    ids = pad_sequence(texts, batch_first=True).to(way.device)  # token 0 is padding: no text has it
    mask = (ids > 0).long() if len(texts) > 1 else None
    step = FasterStep() if way.name == STEP else contextlib.nullcontext()
    with step, torch.autocast(way.device.type, torch.bfloat16, enabled=way.bf16), warnings.catch_warnings():
        # flash attention warns that the weights are fp32; autocast handles that
        warnings.simplefilter("ignore")
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return [states[row, : len(text)] for row, text in enumerate(texts)]


# --- models


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("masked", [True, False])
def test_our_bert_is_transformers(attention, masked, device):
    given = {name: values for name, values in batch().items() if masked or name != "attention_mask"}
    own = ours()
    other = theirs(own, attention)
    expected = theirs(own)(**given)
    for model in (own, other):
        found = model.to(device)(**{name: values.to(device) for name, values in given.items()})
        for name in ("prediction_logits", "seq_relationship_logits"):
            assert_close(found[name].cpu(), expected[name], rtol=1e-4, atol=1e-4)


def test_every_path_of_attention_agrees(device):
    assert len(ways(device)) > 1
    assert disagreements(device) == {}


# --- the CRF


def everything(emissions, tags, mask, chain):
    """Losses and their gradients."""
    inputs = [values.clone().requires_grad_() for values in (emissions, *chain)]
    losses = crf.nll(inputs[0], tags, mask, Chain(*inputs[1:]))
    gradients = torch.autograd.grad(losses.sum(), inputs)
    return [losses.detach(), *gradients]


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_the_crf_is_the_same(scale, device, monkeypatch):
    """By a scan, which is how CUDA sums over paths, and in logarithms where scores ask for them."""
    rng = np.random.default_rng(0)
    given = random_batch(rng, 8, 40, 9, scale)
    chain = random_chain(rng, 9, scale, holes=True)
    expected = everything(*given, chain)
    if device == CPU:
        use_scan(monkeypatch)
    found = everything(*(values.to(device) for values in given), Chain(*(part.to(device) for part in chain)))
    for one, other in zip(found, expected, strict=True):
        assert one.device.type == device.type
        assert_close(one.cpu(), other, rtol=1e-8, atol=1e-8)


# --- training


@pytest.mark.parametrize(
    ("capability", "bf16", "precision"),
    [((9, 0), True, "bf16"), ((7, 5), False, "fp16"), ((7, 0), False, "fp16"), ((6, 1), False, "fp32")],
)
def test_a_gpu_without_bf16_trains_in_fp16(capability, bf16, precision, tiny_encoder, tmp_path, monkeypatch):
    recipe = small.recipe(tmp_path, tiny_encoder)
    default, exact = (prepare_jobs(r)[0].only for r in (recipe, recipe.with_("training.bf16=false")))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(job, "best_device", lambda: torch.device("cuda"))
    settings = job._settings(default, tmp_path, 1)
    assert [name for name in ("bf16", "fp16") if settings[name]] == [precision] * (precision != "fp32")
    on_cpu = replace(default, recipe=recipe.with_("training.use_cpu=true"))
    for given in (exact, on_cpu):
        settings = job._settings(given, tmp_path, 1)
        assert not settings["fp16"]
        assert given is on_cpu or not settings["bf16"]


def test_without_torchrun_one_gpu_is_used(tmp_path):
    args = arguments(tmp_path, 3, 1)
    args._n_gpu = 4
    assert (args.n_gpu, args.train_batch_size) == (1, 3)


class LastStep(FirstStep):
    """Keeps the gradients of the last step: the first ones of fp16 overflow until its scale is small
    enough.
    """

    def on_pre_optimizer_step(self, *given, **more):
        self.gradients = {}
        super().on_pre_optimizer_step(*given, **more)


def in_fp16(trainer):
    """Trains on the CPU as on a GPU without bf16: accelerate would train in fp32. Its first steps overflow."""
    accelerator = trainer.accelerator
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    return trainer


def step_gradients(case, folder, out, device, **precision):
    """All gradients of a step over all rows, end to end; with a learning rate of 0 every step has the
    same.
    """
    scaled = device == CPU and precision.pop("fp16", False)
    args = arguments(out, 8, 1, max_steps=16, learning_rate=0.0, use_cpu=device == CPU, **precision)
    trainer = made(case, folder, args, callbacks=[step := LastStep()])
    (in_fp16(trainer) if scaled else trainer).train()
    return torch.cat([gradient.flatten().double().cpu() for gradient in step.gradients.values()])


@pytest.mark.parametrize("identifier", ["eleven-labels", "ner-crf", "qa"])
@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("cpu", "bf16"),
        ("cpu", "fp16"),
        pytest.param("cuda", "bf16", marks=ON_GPU),
        pytest.param("cuda", "fp16", marks=ON_GPU),
    ],
)
def test_a_step_is_near_that_of_fp32(identifier, kind, precision, tiny_encoder, tmp_path):
    exact = step_gradients(BY_ID[identifier], tiny_encoder, tmp_path, CPU)
    found = step_gradients(BY_ID[identifier], tiny_encoder, tmp_path, torch.device(kind), **{precision: True})
    assert 1e-6 < (found - exact).norm() / exact.norm() < (ROUNDED if precision == "bf16" else ROUNDED / 8)


@pytest.mark.parametrize("kind", ["cpu, fp16", pytest.param("cuda", marks=ON_GPU)])
@pytest.mark.usefixtures("repeatable")
def test_a_resumed_training_ends_with_the_same_bytes(kind, tiny_encoder_with_dropout, tmp_path):
    scales = []

    def trained(folder, checkpoint=None):
        often = {"max_steps": 20, "save_strategy": "steps", "save_steps": 10, "learning_rate": 1e-2}
        args = arguments(folder, 2, 2, use_cpu=kind != "cuda", **often)
        trainer = made(CASES[0], tiny_encoder_with_dropout, args)
        (trainer if kind == "cuda" else in_fp16(trainer)).train(
            resume_from_checkpoint=checkpoint and str(checkpoint)
        )
        assert trainer.model.device.type == kind[:4].rstrip(",")
        scales.append(trainer.accelerator.scaler and trainer.accelerator.scaler.state_dict())
        return {name: values.cpu() for name, values in trainer.model.state_dict().items()}

    whole = trained(tmp_path / "whole")
    resumed = trained(tmp_path / "resumed", tmp_path / "whole/checkpoint-10")
    assert scales[0] == scales[1]
    assert kind == "cuda" or 1 < scales[0]["scale"] < 2.0**24  # it was lowered
    assert not [name for name in whole if not torch.equal(whole[name], resumed[name])]
    other = trained(tmp_path / "other")
    assert not [name for name in whole if not torch.equal(whole[name], other[name])]


def test_attention_is_not_compiled_for_each_shape_of_a_batch(device, tiny_encoder, tmp_path, monkeypatch):
    """As cuDNN's is, in training and in predictions."""
    if device == CPU:  # whether a GPU would be asked
        kernels = devices.attention_kernels
        for module in (running, training):
            monkeypatch.setattr(module, "attention_kernels", lambda _: kernels(torch.device("cuda")))
    trainer = made(CASES[0], tiny_encoder, arguments(tmp_path, 2, 1, use_cpu=device == CPU))
    allowed = []
    trainer.model.register_forward_hook(lambda *_: allowed.append(torch.backends.cuda.cudnn_sdp_enabled()))
    trainer.train()
    steps = len(allowed)
    trainer.data.runner(trainer.data.features)
    assert 0 < steps < len(allowed)
    assert not any(allowed)
    assert torch.backends.cuda.cudnn_sdp_enabled()


# --- predictions


@ON_GPU
@pytest.mark.parametrize("case", ALONE, ids=[case.id for case in ALONE])
def test_answers_are_those_of_the_cpu(case, tiny_encoder):
    """Which it gives to each row alone, without padding and without a mask."""
    device = torch.device("cuda")
    task = case.task(tiny_encoder)
    rows = case.rows().to_list()
    set_seed(1)
    model = task.model(encoder(tiny_encoder)).eval()
    expected = Predictor(task, model, CPU, "fp32", 1, {})(rows)
    found = Predictor(task, model.to(device), device, "fp32", 4, {})(rows)
    for one, other in zip(found, expected, strict=True):
        assert numbers(one) == pytest.approx(numbers(other), rel=1e-3, abs=1e-4)


@contextlib.contextmanager
def no_waiting(device):
    """Within the block, waiting for a GPU is an error."""
    if device.type != "cuda":
        yield
        return
    with warnings.catch_warnings(action="ignore"):  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_results_are_copied_once_all_batches_are_running(device, tiny_encoder, monkeypatch):
    """Of a CRF, whose best paths are found on the CPU. Results of a CPU need no copy, and are used one by
    one.
    """
    case = Case("even", BY_ID["ner-crf"].options, {"tokens": TOKENS[:1] * 8, "tags": TAGS[:1] * 8})
    task = case.task(tiny_encoder)
    done = []
    model = task.model(encoder(tiny_encoder))
    run = Runner.run
    on_cpu = running.on_cpu

    def watched(self, arrays):
        done.append("run")
        with no_waiting(device):
            return run(self, arrays)

    def copied(result):
        done.append("copied")
        return on_cpu(result)

    monkeypatch.setattr(Runner, "run", watched)
    monkeypatch.setattr(running, "on_cpu", copied)
    items = Runner(task, model.to(device), device, "fp32", 2)(task.encode(case.rows()))
    assert len(items) == 8
    assert done == (["run", "copied"] * 4 if device == CPU else ["run"] * 4 + ["copied"] * 4)


KINDS = ("text-classification", "token-classification", "question-answering", "text-ranking")
PLAIN = [case for case in CASES if case.options["name"] in KINDS and "method" not in case.options]


@pytest.mark.parametrize("case", PLAIN, ids=[case.id for case in PLAIN])
def test_a_batch_without_padding_is_run_without_a_look_at_its_numbers(case, tiny_encoder):
    """On the device `meta`, whose tensors have none: any copy, and any decision by a number, is an error."""
    task = case.task(tiny_encoder)
    model = task.model(encoder(tiny_encoder)).eval()
    features = task.encode(case.rows())
    arrays = pad(task.examples(features, [0, 0]), fills(task.tokenizer, task.padding))
    with torch.inference_mode():
        reduced = Runner(task, model.to("meta"), torch.device("meta"), "fp32", 2).run(arrays)
    assert all(values.is_meta for values in reduced.values())
