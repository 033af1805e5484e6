"""Export: the graph says what the model says, for every task; and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from cases import CASES, Case, encoder
from datasets import Dataset
from onnx import TensorProto, helper
from small import read_rows, recipe

import bertkit
from bertkit.errors import DataError, ModelError, UserError
from bertkit.evaluation.evaluate import score
from bertkit.export import program
from bertkit.export.agreement import output_difference, same
from bertkit.export.graph import Graph, Reduced, batch_of, build
from bertkit.export.program import export
from bertkit.export.quantize import search
from bertkit.export.session import OnnxModel, first_line
from bertkit.export.viterbi import viterbi
from bertkit.files import sha256
from bertkit.heads import crf
from bertkit.heads.crf import Chain
from bertkit.inference import Predictor, load
from bertkit.training.train import train

ROOT = Path(__file__).resolve().parent.parent
PROVIDERS = ["CPUExecutionProvider"]
TEXTS = ["the cat was good", "a dog was awful and it sat on the mat " * 3, "yes"]


@pytest.fixture(scope="module")
def run(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    return train(recipe(folder, tiny_encoder), folder / "run").folder


@pytest.fixture(scope="module")
def graph(run: Path) -> Graph:
    """The graph of the run, which costs seconds to make, as `exported` has it."""
    made: list[Graph] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "build", lambda *arguments: made.append(build(*arguments)) or made[0])
        export(run, run.parent / "onnx")
    return made[0]


@pytest.fixture(scope="module")
def exported(run: Path, graph: Graph) -> Path:
    return run.parent / "onnx"


def scores(answer: dict[str, Any]) -> list[float]:
    return list(answer["scores"].values())


# --- the folder


def test_load_gives_the_same_predictor(run: Path, exported: Path) -> None:
    ours, theirs = load(run, precision="fp32"), load(exported)
    assert (ours.backend, theirs.backend) == ("torch", "onnx")
    assert theirs.task.options == ours.task.options
    for one, other in zip(ours(TEXTS), theirs(TEXTS), strict=True):
        assert scores(one) == pytest.approx(scores(other), abs=1e-6)
    file = run.parent / "test.jsonl"
    rows = Dataset.from_list([{"text": row["text"], "label": row["label"]} for row in read_rows(file)])
    assert same(bertkit.evaluate(exported, file=file)["metrics"], score(ours, rows)[1]["metrics"])


def test_export_json_says_what_was_measured(run: Path, exported: Path) -> None:
    said = json.loads((exported / "export.json").read_text())
    assert said["fp32"]["rows"] == 10
    assert said["fp32"]["answers_differ"] == 0
    assert said["fp32"]["output_difference"] < 1e-5
    assert said["fp32"]["metrics"]["onnx"] == pytest.approx(said["fp32"]["metrics"]["torch"])
    assert said["sha256"] == sha256(exported / "model.onnx")
    assert "ONNX fp32" in (exported / "README.md").read_text()
    assert {file.name for file in exported.iterdir()} == {
        *("model.onnx", "config.json", "tokenizer.json", "tokenizer_config.json", "export.json", "README.md")
    }


def test_int8(run: Path, graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "build", lambda *arguments: graph)
    said = export(run, tmp_path / "int8", int8=True, max_drop=1.0)
    assert said["precision"] == "int8"
    kinds = {node.op_type for node in onnx.load(tmp_path / "int8" / "model.onnx").graph.node}
    assert "MatMulInteger" in kinds
    near = np.array([scores(answer) for answer in load(tmp_path / "int8")(TEXTS)])
    exact = np.array([scores(answer) for answer in load(run, precision="fp32")(TEXTS)])
    assert 0 < np.abs(near - exact).max() < 0.1


def test_without_torch(exported: Path) -> None:
    """torch and accelerate can not be found in a fresh process; transformers and datasets do without."""
    code = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in ("torch", "accelerate") else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import json, bertkit
print(json.dumps(bertkit.load(sys.argv[1])(sys.argv[2:])))
assert "torch" not in sys.modules
"""
    told = subprocess.run(
        [sys.executable, "-c", code, str(exported), *TEXTS], capture_output=True, text=True, check=True
    )
    for one, other in zip(json.loads(told.stdout.splitlines()[-1]), load(exported)(TEXTS), strict=True):
        assert one == other


def test_python_without_bertkit(exported: Path) -> None:
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    room: dict[str, Any] = {}
    exec(code.replace("DIR", str(exported)), room)
    assert room["answer"] == pytest.approx(load(exported)("the cat was good")["scores"], abs=1e-6)


def test_node_without_bertkit(exported: Path) -> None:
    script = ROOT / "tests" / "node" / "answer.mjs"
    assert f"```js\n{script.read_text(encoding='utf-8')}```" in (ROOT / "docs" / "export.md").read_text(
        encoding="utf-8"
    )
    if shutil.which("node") is None or not (script.parent / "node_modules").is_dir():
        pytest.skip("no node, or no tests/node/node_modules: npm install in tests/node")
    done = subprocess.run(["node", script, exported, *TEXTS[::2]], capture_output=True, text=True, check=True)
    for one, other in zip(json.loads(done.stdout), load(exported)(TEXTS[::2]), strict=True):
        assert one == pytest.approx(other["scores"], abs=1e-5)


# --- the graph of every task


def opened(graph: Graph, file: Path) -> OnnxModel:
    graph.write(file)
    session = onnxruntime.InferenceSession(str(file), providers=PROVIDERS)
    return OnnxModel(session, None, [each.name for each in session.get_inputs()], graph.reduced)  # type: ignore[arg-type]


NAMED = ("qa-windows-or-none", "ner-crf-windows-bioes", "retrieval", "ranking-binary")
SOME = [case for case in CASES if case.id in NAMED]


@pytest.mark.parametrize("case", SOME, ids=[case.id for case in SOME])
def test_answers_are_those_of_torch(case: Case, tiny_encoder: Path, tmp_path: Path) -> None:
    task = case.task(tiny_encoder)
    model: Any = task.model(encoder(tiny_encoder)).eval()
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.5 if parameter.ndim > 1 or "crf" in name else 0.1)
    ours = Predictor(task, model, torch.device("cpu"), "fp32", 3, {})
    features = task.encode(case.rows())
    sample = batch_of(task, features, range(2))
    graph = build(ours, sample, 20)
    theirs = opened(graph, tmp_path / "model.onnx")
    rows = case.rows().select_columns(sorted(task.accepted[0]))
    expected = list(task.answer(rows, ours.predict_features))
    found = list(task.answer(rows, Predictor(task, theirs, None, "fp32", 5, {}).predict_features))
    assert len(found) == len(expected)
    assert all(same(*pair) for pair in zip(expected, found, strict=True))

    batch = batch_of(task, features, range(len(features)))
    tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
    with torch.inference_mode():
        published = {name: values.numpy() for name, values in Reduced(task, model)(tensors).items()}
    names = [each.name for each in theirs.session.get_outputs()]
    given = dict(zip(names, theirs.session.run(names, batch), strict=True))
    assert output_difference(published, given) < 1e-4
    if "transitions" in published:
        joint = crf.constrain(Chain(*model.crf()), crf.forbidden(task.options.tags))
        mask = torch.arange(given["emissions"].shape[1]) < torch.from_numpy(given["words"])[:, None]
        path = crf.decode(torch.from_numpy(given["emissions"]).double(), mask, joint)
        np.testing.assert_array_equal(given["tags"], path.numpy())


# --- the best path


@pytest.mark.parametrize("opset", [18, 20, 24])
def test_a_thousand_sequences_have_the_path_of_decode(opset: int) -> None:
    """Batches of any size and length; the emissions of a third are whole numbers, so that there are ties."""
    rng, tags, count = np.random.default_rng(opset), ["O", "B-A", "I-A", "B-B", "I-B"], 0
    while count < 1000:
        temperature, batch, words = float(rng.uniform(0.5, 2)), int(rng.integers(1, 40)), int(rng.integers(1, 20))
        parts = (torch.from_numpy(rng.normal(size=shape)) / temperature for shape in ((5, 5), 5, 5))
        joint = crf.constrain(Chain(*parts), crf.forbidden(tags))
        emissions = (3 * rng.normal(size=(batch, words, 5))).astype(np.float32)
        emissions = emissions.round() if count % 3 == 0 else emissions
        lengths = rng.integers(1, words + 1, size=batch)
        model = viterbi([part.numpy() for part in joint], temperature)
        model.opset_import[0].version = opset
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=PROVIDERS)
        path, chance = session.run(["tags", "score"], {"emissions": emissions, "words": lengths})
        mask = torch.arange(words) < torch.from_numpy(lengths)[:, None]
        tempered = torch.from_numpy(emissions).double() / temperature
        expected = crf.decode(tempered, mask, joint)
        np.testing.assert_array_equal(path, expected.numpy())
        np.testing.assert_allclose(chance, (-crf.nll(tempered, expected, mask, joint)).exp(), rtol=1e-5, atol=1e-7)
        count += batch


# --- the gate of int8

LAYERS = {"a": ["1"], "b": ["2", "3"], "c": ["4"]}
HARM = {"1": 0.1, "2": 0.9, "4": 0.5}


def test_layers_that_cost_most_stay_in_fp32() -> None:
    def drop(nodes: list[str]) -> float:
        return 0.02 - 0.01 * len({"2", "4"} & set(nodes))

    excluded, steps = search(LAYERS, lambda nodes: HARM[nodes[0]], drop, 0.005)
    assert excluded == ["b", "c"]
    assert [step["drop"] for step in steps] == pytest.approx([0.02, 0.01, 0.0])


def test_nothing_is_left_out_where_nothing_is_lost() -> None:
    def unasked(nodes: list[str]) -> float:
        raise AssertionError("layers are ranked only where it is needed")

    assert search(LAYERS, unasked, lambda nodes: -0.01, 0.005)[0] == []


def test_int8_that_costs_too_much_is_refused_with_the_figures() -> None:
    with pytest.raises(ModelError, match=r"more than 0\.005.*0 layers in fp32: 0\.3000; 1 layers"):
        search(LAYERS, lambda nodes: HARM[nodes[0]], lambda nodes: 0.3, 0.005)
    with pytest.raises(ModelError, match="nan"):
        search(LAYERS, lambda nodes: HARM[nodes[0]], lambda nodes: float("nan"), 0.005)


# --- what is refused


def test_an_export_that_is_another_model_is_not_written(
    run: Path, graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = onnx.ModelProto()
    damaged.CopyFrom(graph.proto)
    weights = next(each for each in damaged.graph.initializer if each.name.endswith("classifier.weight"))
    table = onnx.numpy_helper.to_array(weights) + np.array([[0.5], [0.0]], dtype=np.float32)
    weights.CopyFrom(onnx.numpy_helper.from_array(table, weights.name))
    monkeypatch.setattr(program, "build", lambda *arguments: replace(graph, proto=damaged))
    with pytest.raises(
        ModelError, match=r"on 10 rows \(validation\) outputs differ by up to 0\.\d+, \d+ answers differ"
    ):
        export(run, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_can_not_be_exported(run: Path, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is there already"):
        export(run, exported)
    with pytest.raises(UserError, match=r"--opset: 7 is not an opset that can be written\n    Write 18 to 24"):
        export(run, tmp_path / "out", opset=7)
    with pytest.raises(ModelError, match="is an exported model already"):
        export(exported, tmp_path / "out")
    with pytest.raises(DataError, match=r"no rows of its own.*\n.*--data FILE"):
        export(run / "model", tmp_path / "out")
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    kept = moved / "recipe.yaml"
    kept.write_text(kept.read_text().replace("train.jsonl", "gone.jsonl"))
    with pytest.raises(DataError, match=r"can not be read any more\n.*--data FILE"):
        export(moved, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def refused(exported: Path, folder: Path, model: bytes, match: str) -> None:
    shutil.copytree(exported, folder, dirs_exist_ok=True)
    (folder / "model.onnx").write_bytes(model)
    with pytest.raises(ModelError, match=match):
        load(folder)


def test_damaged_folders(exported: Path, tmp_path: Path) -> None:
    whole = (exported / "model.onnx").read_bytes()
    refused(exported, tmp_path, whole[: len(whole) // 2], "ONNX Runtime .* does not take it")
    refused(exported, tmp_path, b"", "does not take it|not the graph")
    proto = onnx.load_from_string(whole)
    proto.opset_import[0].version = 999
    refused(exported, tmp_path, proto.SerializeToString(), "does not take it: .*opset")
    proto = onnx.load_from_string(whole)
    proto.graph.node[-1].op_type = "NoSuchOperator"
    refused(exported, tmp_path, proto.SerializeToString(), "does not take it: .*NoSuchOperator")
    value = helper.make_tensor_value_info("other", TensorProto.FLOAT, [1])
    other = helper.make_model(
        helper.make_graph([], "other", [value], [value]), ir_version=10, opset_imports=[helper.make_opsetid("", 20)]
    )
    refused(
        exported, tmp_path, other.SerializeToString(), "not the graph that config.json describes: it gives no logits"
    )
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(ModelError, match=r"has no model\.onnx"):
        load(tmp_path)


def test_a_missing_runtime_is_named(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match=r"pip install \"bertkit\[onnx-runtime\]\""):
        load(exported)


def test_what_can_not_be_asked_of_it(exported: Path) -> None:
    with pytest.raises(ModelError, match="can not be asked for bf16"):
        load(exported, precision="bf16")
    theirs = load(exported)
    batch = batch_of(theirs.task, theirs.task.encode(Dataset.from_dict({"text": ["cat"]})), [0])
    long = {name: values.repeat(40, axis=1) for name, values in batch.items()}
    with pytest.raises(ModelError, match=r"can not be run on input_ids \(1, 120\)"):
        theirs.model(long)
    assert theirs("cat " * 500)["truncated"] is True


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
