"""Export: the graph says what the model says, for every task; and what is refused."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from cases import CASES, encoder
from conftest import build_encoder
from datasets import Dataset
from numpy.random import default_rng
from numpy.testing import assert_array_equal
from onnx import TensorProto, helper, numpy_helper
from serving import make_app
from small import ROOT, change_json, raises, read_rows, write_rows
from small import refused as said_when_refused
from starlette.testclient import TestClient

import bertkit
from bertkit.errors import DataError, ModelError, UserError, not_installed
from bertkit.exports import program
from bertkit.exports.agreement import output_difference, same
from bertkit.exports.graph import Graph, Reduced, _exported, batch_of, build
from bertkit.exports.int8 import quantized
from bertkit.exports.program import export
from bertkit.exports.viterbi import viterbi
from bertkit.files import read_json, sha256
from bertkit.inference.evaluate import score
from bertkit.inference.predictor import Predictor, load
from bertkit.models.encoder import save_tokenizer
from bertkit.models.heads import crf, posteriors
from bertkit.models.heads.crf import Chain
from bertkit.serving.limits import Limits

PROVIDERS = ["CPUExecutionProvider"]
MADE = {}
TEXTS = ["the cat was good", "a dog was awful and it sat on the mat " * 3, "yes"]


@pytest.fixture(scope="module")
def run(two_seeds):
    return two_seeds.folder


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "build", lambda *arguments: MADE.setdefault(folder, build(*arguments)))
        export(run, folder)
    return folder


@pytest.fixture(scope="module")
def graph(exported):
    """The graph of the run, which costs seconds to make, as `exported` has it."""
    return MADE[exported]


def scores(answer):
    return list(answer["scores"].values())


# --- the folder


def test_onnx_runtime_is_loaded_without_its_telemetry(exported, monkeypatch):
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    bertkit.load(exported)
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    bertkit.load(exported)
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"  # a user's own choice


def test_load_gives_the_same_predictor(run, exported):
    ours = load(run, precision="fp32")
    theirs = load(exported)
    assert (ours.backend, theirs.backend) == ("torch", "onnx")
    assert theirs.task.options == ours.task.options
    for one, other in zip(ours(TEXTS), theirs(TEXTS), strict=True):
        assert scores(one) == pytest.approx(scores(other), abs=1e-6)
    file = run.parent / "test.jsonl"
    rows = Dataset.from_list([{"text": row["text"], "label": row["label"]} for row in read_rows(file)])
    assert same(bertkit.evaluate(exported, data=file)["metrics"], score(ours, rows)[1]["metrics"])


def test_export_json_says_what_was_measured(run, exported):
    said = read_json(exported / "export.json")
    measured = said["fp32"]
    assert (measured["rows"], measured["answers_differ"]) == (10, 0)
    assert measured["output_difference"] < 1e-5
    assert measured["metrics"]["onnx"] == pytest.approx(measured["metrics"]["torch"])
    assert said["sha256"] == sha256(exported / "model.onnx")
    assert (exported / "README.md").read_bytes() == (run / "model/README.md").read_bytes()
    names = "model.onnx config.json tokenizer.json tokenizer_config.json export.json README.md".split()
    assert sorted(file.name for file in exported.iterdir()) == sorted(names)


def test_int8(run, exported, graph, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "build", lambda *arguments: graph)
    said = export(run, tmp_path / "int8", int8=True, max_drop=1.0)
    assert said["precision"] == "int8"
    kinds = {node.op_type for node in onnx.load(tmp_path / "int8/model.onnx").graph.node}
    assert "MatMulInteger" in kinds
    near = np.array([scores(answer) for answer in load(tmp_path / "int8")(TEXTS)])
    exact = np.array([scores(answer) for answer in load(run, precision="fp32")(TEXTS)])
    assert 0 < np.abs(near - exact).max() < 0.1
    alone = np.array([scores(load(tmp_path / "int8")(text)) for text in TEXTS])
    assert near == pytest.approx(alone, abs=1e-6)  # with a scale of the whole batch they differ by hundredths
    for folder, precision in ((exported, "fp32"), (tmp_path / "int8", "int8")):
        with TestClient(make_app(load(folder), "small", Limits())) as client:
            assert client.get("/info").json()["model_dtype"] == precision


class Branching(torch.nn.Module):
    """What torch.export cannot capture: a branch that depends on the numbers."""

    def forward(self, batch):
        ids = batch["input_ids"]
        return {"y": ids + 1 if ids.sum() > 3 else ids}


def test_a_refusal_names_the_cause_alone():
    said = r"torch.onnx cannot export this model: .*data-dependent"
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
    message = str(raises(ModelError, said, _exported, Branching(), batch))
    assert "\x1b" not in message
    assert "step" not in message


def test_python_without_bertkit(exported):
    page = (ROOT / "docs/export.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    room = {}
    exec(code.replace("DIR", str(exported)), room)
    assert room["answer"] == pytest.approx(load(exported)("the cat was good")["scores"], abs=1e-6)


def test_a_tagger_answers_where_no_text_has_a_word(made):
    ours, _, folder, _ = made["ner-crf-windows-bioes"]
    rows = [{"tokens": []}]
    assert same(load(folder)(rows), ours(rows), 1e-4)


# --- the graph of every task


OFTEN = "qa-windows-or-none ner-crf-windows-bioes similarity-cls".split()
NAMED = [*OFTEN, "words-crf-windows", "retrieval", "ranking-binary"]  # with --all
SOME = [case for case in CASES if case.id in NAMED]


class Made(NamedTuple):
    """A case's model with random weights, and its exported folder."""

    ours: Predictor
    graph: Graph
    folder: Path
    rows: Dataset  # what the task reads of the case's

    @property
    def expected(self):
        return list(self.ours.task.answer(self.rows, self.ours.predict_features))


@pytest.fixture(scope="module")
def made(tmp_path_factory, request):
    """Cases of other tasks than text-classification, of which there is the run; each graph takes seconds."""
    found = {}
    small = build_encoder(tmp_path_factory.mktemp("small"), layers=1)
    for case in SOME if request.config.getoption("all") else [case for case in SOME if case.id in OFTEN]:
        task = case.task(small)
        folder = tmp_path_factory.mktemp("made") / case.id
        model = task.model(encoder(small)).eval()
        torch.manual_seed(3)
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, std=0.5 if parameter.ndim > 1 or "crf" in name else 0.1)
        ours = Predictor(task, model, torch.device("cpu"), "fp32", 3, {})
        graph = build(ours, batch_of(task, task.encode(case.rows()), range(2)))
        save_tokenizer(task.tokenizer, folder)
        program._write_config(ours, graph, folder, "fp32")
        graph.write(folder / "model.onnx")
        columns = next(names for names in task.inputs if names <= {*case.rows().column_names})
        found[case.id] = Made(ours, graph, folder, case.rows().select_columns(sorted(columns)))
    return found


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.id, marks=() if c.id in OFTEN else pytest.mark.rare) for c in SOME]
)
def test_answers_are_those_of_torch(case, made):
    ours, graph, folder, rows = made[case.id]
    task = ours.task
    model = ours.model
    theirs = replace(load(folder), batch_size=5)
    found = list(task.answer(rows, theirs.predict_features))
    assert len(found) == len(rows)
    assert all(same(*pair) for pair in zip(made[case.id].expected, found, strict=True))

    features = task.encode(case.rows())
    batch = batch_of(task, features, range(len(features)))
    tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
    with torch.inference_mode():
        published = {name: values.numpy() for name, values in Reduced(task, model)(tensors).items()}
    names = [each.name for each in graph.outputs]
    given = dict(zip(names, theirs.model.session.run(names, batch), strict=True))
    assert output_difference(published, given) < 1e-4
    if "transitions" in published:
        options = task.options
        joint = crf.constrain(Chain(*model.crf()), options.tags, plain=options.scheme == "none")
        parts = [part.detach().double().numpy() for part in joint]
        path = posteriors.decode(given["emissions"].astype(np.float64), given["words"], parts)
        assert_array_equal(given["tags"], path)


# --- without torch

WITHOUT = """
import sys
HIDDEN = ("torch", "accelerate", "captum")
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)
    def find_distributions(self, context):
        found = getattr(self.finder, "find_distributions", lambda context: ())(context)
        return (each for each in found if each.name not in HIDDEN)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import contextlib, io, json, bertkit
from bertkit.cli.main import main
told = {}
def say(name, words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    told[name] = [code, out.getvalue(), err.getvalue()]
"""


HEAVY = (
    "torch datasets pandas pyarrow sklearn seqeval matplotlib ruamel accelerate captum evaluate peft".split()
)


def test_without_torch_every_task_answers_and_what_needs_it_says_so(run, exported, made, tmp_path):
    rows = {name: each.rows.to_list() for name, each in made.items()} | {"run": TEXTS}
    folders = {name: str(each.folder) for name, each in made.items()} | {"run": str(exported)}
    texts = str(write_rows(tmp_path / "texts.jsonl", [{"id": "a", "text": "the cat was good"}]))
    space = tmp_path / "space.yaml"
    new = f"{tmp_path}/new"
    recipe = f"{run}/recipe.yaml"
    space.write_text("training.learning_rate: {type: float, low: 1e-5, high: 1e-4}\n")
    asked = [
        ["train", recipe, "--output-dir", new],
        ["check", recipe],
        ["sweep", recipe, "--space", str(space), "--output-dir", new],
        ["predict", str(run), "a text"],
        ["evaluate", str(run)],
        ["serve", str(run)],
        ["explain", str(run), "a text"],
        ["export", str(run), "--output", new],
        ["embed", str(run), "--input", texts, "--output", f"{new}.npy"],
        ["index", str(run), "--documents", texts, "--store", new],
    ]
    code = """
import bertkit.serving.server
run, exported, file, page, folders, rows, asked, heavy, model, texts, store = map(json.loads, sys.argv[1:])
bertkit.serving.server.run = lambda predictor, *_, **__: print(predictor.task.name)
say("serve", ["serve", exported])
needed = {"store": sorted({"pyarrow", "bertkit.retrieval.store"} & sys.modules.keys())}
answers = {name: bertkit.load(folder)(rows[name]) for name, folder in folders.items()}
needed["heavy"] = sorted(set(heavy) & sys.modules.keys())
served, told = told, {}
for words in asked:
    say(" ".join(words), words)
for name, ask in {"load": lambda: bertkit.load(run), "train": lambda: bertkit.train,
                  "Features": lambda: bertkit.Features(run).fit(["cat"])}.items():
    try:
        ask()
    except bertkit.UserError as error:
        told[name] = [2, "", str(error)]
told = {"answers": answers, "refused": dict(told), "needed": needed, **served}
say("doctor", ["doctor"])
say("report", ["report", run, "--output", page])
say("predict", ["predict", exported, "the cat was good"])
say("evaluate", ["evaluate", exported, "--data", file, "--json"])
say("index", ["index", model, "--documents", texts, "--store", store])
say("search", ["search", store, "a cat", "--top-k", "1"])
assert "torch" not in sys.modules
print(json.dumps(told))
"""
    file = run.parent / "test.jsonl"
    words = [str(run), str(exported), str(file), f"{tmp_path}/report.html", folders, rows, asked]
    words += [HEAVY, folders["similarity-cls"], texts, f"{tmp_path}/store"]
    command = [sys.executable, "-c", WITHOUT + code, *map(json.dumps, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    for name, each in made.items():
        assert told["answers"][name] == load(each.folder)(rows[name]), name
        assert all(same(*pair) for pair in zip(each.expected, told["answers"][name], strict=True)), name
    for one, other in zip(load(run, precision="fp32")(TEXTS), told["answers"]["run"], strict=True):
        assert same(one, other)
    assert json.loads(told["evaluate"][1]) == json.loads(json.dumps(bertkit.evaluate(exported, data=file)))
    assert (told["predict"][0], told["predict"][2], told["report"][0], told["doctor"][0]) == (0, "", 0, 0)
    assert told["predict"][1].endswith("the cat was good\n")
    assert re.search(r"^torch +not installed ", told["doctor"][1], re.M)
    hint = 'only exported models can be run. To train:\n    pip install "bertkit[torch]"\n'
    assert told["doctor"][1].endswith(hint)
    needs = r'(error: )?(torch|captum) is not installed\n    pip install "bertkit\[torch\]"\n?'
    wrong = [
        each for each in told["refused"].items() if each[1][0] != 2 or not re.fullmatch(needs, each[1][2])
    ]
    assert not wrong
    assert len(told["refused"]) == len(asked) + 3
    assert told["needed"] == {"store": [], "heavy": []}, "no command imports libraries that it does not need"
    assert (told["serve"][1], told["index"][0]) == ("text-classification\n", 0), told
    assert "the cat was good" in told["search"][1]
    files = {"texts.jsonl", "space.yaml", "report.html", "report-mistakes.csv", "store"}
    assert {file.name for file in tmp_path.iterdir()} == files


# --- the best path


@pytest.mark.parametrize("opset", [18, 24])
def test_sequences_have_the_path_of_decode(opset):
    """Hundreds in all: batches of any size and length; the scores of a third are whole numbers, so that paths
    tie.
    """
    rng = default_rng(opset)
    tags = "O B-A I-A B-B I-B".split()
    count = 0
    while count < 300:
        ties = count % 3 == 0
        temperature = float(rng.uniform(0.5, 2))
        batch = int(rng.integers(1, 40))
        words = int(rng.integers(1, 20))
        temperature = 1.0 if ties else temperature
        parts = [rng.normal(size=shape) for shape in ((5, 5), 5, 5)]
        parts = [part.round() if ties else part for part in parts]
        joint = crf.constrain(Chain(*(torch.from_numpy(part) / temperature for part in parts)), tags)
        emissions = (3 * rng.normal(size=(batch, words, 5))).astype(np.float32)
        emissions = emissions.round() if ties else emissions
        lengths = rng.integers(1, words + 1, size=batch)
        parts = [part.numpy() for part in joint]
        model = viterbi(parts, temperature)
        model.opset_import[0].version = opset
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=PROVIDERS)
        path, chance = session.run(["tags", "score"], {"emissions": emissions, "words": lengths})
        mask = torch.arange(words) < torch.from_numpy(lengths)[:, None]
        tempered = torch.from_numpy(emissions).double() / temperature
        expected = posteriors.decode(tempered.numpy(), lengths, parts)
        assert_array_equal(path, expected)
        likely = (-crf.nll(tempered, torch.from_numpy(expected), mask, joint)).exp()
        np.testing.assert_allclose(chance, likely, rtol=1e-5, atol=1e-7)
        count += batch


# --- the gate of int8


@pytest.fixture
def linear():
    """A graph of a MatMul and a Gemm, its input, and both outputs, whose two columns differ a thousandfold in
    size.
    """
    rng = default_rng(0)
    table = (rng.normal(size=(16, 2)) * [100, 0.1]).astype(np.float32)
    texts = rng.normal(size=(5, 16)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Gemm", ["x", "v", "bias"], ["b"], name="second", transB=1),
    ]
    constants = {"w": table, "v": np.ascontiguousarray(table.T), "bias": np.zeros(2, dtype=np.float32)}
    shapes = {"x": ["n", 16], "a": ["n", 2], "b": ["n", 2]}
    x, a, b = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()
    )
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "linear", [x], [a, b], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return model, texts, texts @ table


def test_int8_is_per_channel_and_does_not_depend_on_the_processor(linear, tmp_path):
    """With one scale for both columns, the small one would become 0."""
    model, texts, exact = linear
    proto = quantized(model, tmp_path / "int8.onnx")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=PROVIDERS)
    for found in session.run(["a", "b"], {"x": texts}):
        error = np.abs(found - exact).max(axis=0) / np.abs(exact).max(axis=0)
        assert (error < 0.05).all()
        assert (error > 1e-4).all()
        beside = session.run(["a"], {"x": np.concatenate([texts, 1000 * texts, 0 * texts])})[0]
        # a row by its own scale, whatever follows
        assert np.array_equal(beside[:5], session.run(["a"], {"x": texts})[0])
        assert not beside[10:].any()
    constants = quantized(linear[0], tmp_path / "int8.onnx").graph.initializer
    tables = [numpy_helper.to_array(each) for each in constants if each.name.endswith("_quantized")]
    assert [table.dtype for table in tables] == [np.int8, np.int8]
    activations = np.full((1, 16), 255, dtype=np.uint8)
    for table in tables:
        weights = np.abs(table if len(table) == 16 else table.T).astype(np.int8)
        exact = activations.astype(np.int64) @ weights.astype(np.int64)
        assert np.array_equal(saturating(activations, weights), exact)


def saturating(activations, weights):
    """Products of unsigned and signed bytes as AVX2 without VNNI computes them (vpmaddubsw, then vpmaddwd):
    two neighbours are added up in 16 bits. activations: `(rows, inputs)`, weights: `(inputs, outputs)`.
    """
    products = activations[:, :, None].astype(np.int64) * weights[None].astype(np.int64)
    pairs = products.reshape(len(activations), -1, 2, weights.shape[1]).sum(axis=2)
    return pairs.clip(-(2**15), 2**15 - 1).sum(axis=1)


def test_an_export_that_scores_lower_or_is_another_model_is_not_written(
    run, graph, tmp_path, monkeypatch, capsys
):
    """A negative `max_drop` asks for a better metric than the model's."""
    monkeypatch.setattr(program, "build", lambda *arguments: graph)
    raises(
        ModelError,
        r"int8: accuracy falls by -?0\.\d+ on validation, which is more than -1",
        export,
        run,
        tmp_path / "int8",
        int8=True,
        max_drop=-1.0,
    )
    told = said_when_refused(capsys, "export", run, "--output", tmp_path / "int8", "--int8", "--max-drop", -1)
    assert "Export without int8, or with a larger max_drop." in told
    figures = {
        "answered": {"torch": 0.96, "onnx": 0.93},
        "metrics": {"torch": {"accuracy": 0.94}, "onnx": {}},
    }
    assert program._unanswered(figures).endswith(
        "96.0% of the rows are answered, 97.9% of them right, in int8 93.0%"
    )
    assert not list(tmp_path.iterdir())
    damaged = onnx.ModelProto()
    damaged.CopyFrom(graph.proto)
    weights = next(each for each in damaged.graph.initializer if each.name.endswith("classifier.weight"))
    table = onnx.numpy_helper.to_array(weights) + np.array([[0.5], [0.0]], dtype=np.float32)
    weights.CopyFrom(onnx.numpy_helper.from_array(table, weights.name))
    monkeypatch.setattr(program, "build", lambda *arguments: replace(graph, proto=damaged))
    differ = r"on 10 rows \(validation\) outputs differ by up to 0\.\d+, \d+ answers differ"
    raises(ModelError, differ, export, run, tmp_path / "out")
    assert not list(tmp_path.iterdir())


# --- what is refused


def test_what_can_not_be_exported(run, exported, tmp_path):
    raises(UserError, "already exists", export, run, exported)
    raises(ModelError, "is already exported", export, exported, tmp_path / "out")
    raises(
        UserError, "max_drop must be a finite number", export, run, tmp_path / "out", int8=True, max_drop=inf
    )
    raises(UserError, "max_drop has no effect without int8", export, run, tmp_path / "out", max_drop=0.1)
    raises(DataError, r"has no data.*\n.*as `data`", export, run / "model", tmp_path / "out")
    moved = shutil.copytree(run, tmp_path / "moved")
    kept = moved / "recipe.yaml"
    kept.write_text(kept.read_text().replace("train.jsonl", "gone.jsonl"))
    raises(
        DataError,
        r"gone(.|\n)*compared with the run on labelled rows\n.*as `data`",
        export,
        moved,
        tmp_path / "out",
    )
    assert not (tmp_path / "out").exists()


def refused(exported, folder, model, match):
    shutil.copytree(exported, folder, dirs_exist_ok=True)
    (folder / "model.onnx").write_bytes(model)
    raises(ModelError, match, load, folder)


def test_damaged_folders(exported, tmp_path):
    whole = (exported / "model.onnx").read_bytes()
    refused(exported, tmp_path, whole[: len(whole) // 2], "ONNX Runtime .* rejects it")
    refused(exported, tmp_path, b"", "rejects it|not the graph")
    opset = onnx.load_from_string(whole)
    operator = onnx.load_from_string(whole)
    opset.opset_import[0].version = 999
    refused(exported, tmp_path, opset.SerializeToString(), "rejects it: .*opset")
    operator.graph.node[-1].op_type = "NoSuchOperator"
    refused(exported, tmp_path, operator.SerializeToString(), "rejects it: .*NoSuchOperator")
    for given, made, said in (
        ("input_ids", "other", "has no output logits"),
        ("strange", "logits", "needs strange"),
    ):
        ends = [helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in (given, made)]
        graph = helper.make_graph(
            [helper.make_node("Identity", [given], [made])], "other", ends[:1], ends[1:]
        )
        other = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
        refused(
            exported,
            tmp_path,
            other.SerializeToString(),
            f"not the graph that config.json describes: it {said}",
        )
    (tmp_path / "model.onnx").unlink()
    raises(ModelError, r"has no model\.onnx", load, tmp_path)


def test_a_config_of_another_graph_is_refused(made, tmp_path):
    shutil.copytree(made["ner-crf-windows-bioes"].folder, tmp_path, dirs_exist_ok=True)
    own = read_json(tmp_path / "config.json")["bertkit"]
    other = {"tags": "O S-X B-X I-X E-X".split(), "labels": ["X"]}
    for wrong in ({"task": own["task"] | other}, {"onnx": own["onnx"][:2]}, {"onnx": []}):
        change_json(tmp_path / "config.json", bertkit=own | wrong)
        with pytest.raises(ModelError, match=r"config\.json"):
            load(tmp_path)({"tokens": ["cat", "dog"]})


def test_what_can_not_be_asked_of_it(exported, monkeypatch):
    raises(ModelError, "cannot run in bf16", load, exported, precision="bf16")
    raises(UserError, "precision: expected fp32, bf16 or fp16", load, exported, precision="float16")
    theirs = load(exported)
    batch = batch_of(theirs.task, theirs.task.encode(Dataset.from_dict({"text": ["cat"]})), [0])
    long = {name: values.repeat(40, axis=1) for name, values in batch.items()}
    raises(ModelError, r"cannot be run on input_ids \(1, 120\)", theirs.model, long)
    assert theirs("cat " * 500)["truncated"] is True
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    raises(UserError, r"pip install \"bertkit\[onnx-runtime\]\"", load, exported)
    # as transformers raises it
    error = ModuleNotFoundError("Could not import module 'EarlyStoppingCallback'.")
    error.__cause__ = ModuleNotFoundError("No module named 'accelerate'", name="accelerate")
    assert re.search(r"accelerate is not installed\n.*bertkit\[torch\]", str(not_installed(error)))
    # a module of ours that is missing is a bug
    raises(
        ModuleNotFoundError,
        "no such module",
        not_installed,
        ModuleNotFoundError("no such module", name="bertkit.nowhere"),
    )


def test_near_ties_may_change_ranks():
    assert same([{"score": 0.5, "rank": 7}], [{"score": 0.5 + 1e-7, "rank": 8}])
    assert not same([{"score": 0.5, "rank": 7}], [{"score": 0.6, "rank": 7}])


@pytest.mark.parametrize(
    "fault",
    [
        {"output_difference": 2e-4},
        {"answers_differ": 1},
        {"metrics": {"torch": {"f1": 0.5}, "onnx": {"f1": 0.6}}},
    ],
)
def test_each_disagreement_alone_stops_an_export(fault):
    metrics = {"torch": {"f1": 0.5}, "onnx": {"f1": 0.5}}
    fine = {"rows": 10, "output_difference": 1e-6, "answers_differ": 0, "metrics": metrics}
    reference = program.Reference(None, "validation", None)
    program._require_agreement(reference, fine)
    message = "outputs differ by up to"
    raises(ModelError, message, program._require_agreement, reference, fine | fault)


def test_outputs_that_cannot_be_compared_differ_without_bound():
    one = {"y": np.array([0.5, 1.0], dtype=np.float32)}
    for other in ([0.5, np.nan], [0.5], [0.5, np.inf]):
        assert output_difference(one, {"y": np.array(other, dtype=np.float32)}) > 1e30
    assert output_difference(one, one) == 0
    assert output_difference({"y": np.array([1000.0])}, {"y": np.array([1001.0])}) == pytest.approx(1e-3)


def test_int8_whose_metric_is_undefined_is_refused(graph, tmp_path, monkeypatch):
    figures = {"drop": float("nan"), "answered": {"torch": 1.0, "onnx": 1.0}, "metrics": {}}
    for name, value in (("quantized", None), ("_opened", lambda sample: {}), ("compared", figures)):
        monkeypatch.setattr(program, name, lambda *_, value=value: value)
    task = SimpleNamespace(metrics=["accuracy"])
    reference = program.Reference(SimpleNamespace(task=task), "validation", [])
    more = (graph, tmp_path, [], {}, {}, 0.005)
    raises(ModelError, "accuracy falls by nan", program._quantize, reference, *more)
