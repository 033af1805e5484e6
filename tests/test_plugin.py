"""A package of somebody else (`plugin/`) adds a task, a reader, a loss, an attachment and a metric."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import serving
import small
from starlette.testclient import TestClient

import bertkit
from bertkit import tasks
from bertkit.errors import DataError
from bertkit.serving.limits import Limits

TESTS = Path(__file__).parent
PLUGIN = TESTS / "plugin"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    """The package in a folder of the path, as pip leaves it there, for this process and those that it starts."""
    folder = tmp_path_factory.mktemp("site")
    small.install(folder, tomllib.loads((PLUGIN / "pyproject.toml").read_text()))
    (folder / "word_numbers").symlink_to(PLUGIN / "src" / "word_numbers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(folder), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
        )
        patch.setattr(tasks, "_OTHERS", {})
        yield folder


@pytest.fixture(scope="module")
def recipe(tiny_encoder, tmp_path_factory):
    """Words whose number is how many letters they have, divided by five."""
    folder = tmp_path_factory.mktemp("rows")
    rows = []
    for number in range(24):
        words = small.text(number, number % 2).split()
        rows.append({"tokens": words, "numbers": [len(word) / 5 for word in words]})
    files = {"train": rows[:16], "validation": rows[16:20], "test": rows[20:]}
    source = {split: str(small.write_rows(folder / f"{split}.jsonl", part)) for split, part in files.items()}
    training = {"num_train_epochs": 4, "learning_rate": 1e-2, "per_device_train_batch_size": 4}
    model = {"name": str(tiny_encoder), "max_length": 32}
    return {
        "task": {"name": "word-numbers"},
        "model": model,
        "data": {"source": source},
        "training": training,
    }


@pytest.fixture(scope="module")
def extras():
    from word_numbers import extras

    return {"compute_loss_func": extras.huber, "attachments": [extras.Noise()], "metrics": [extras.Within()]}


@pytest.fixture(scope="module")
def run(recipe, extras, tmp_path_factory):
    return bertkit.train(recipe, tmp_path_factory.mktemp("plugin") / "run", **extras)


@pytest.mark.parametrize(("suite", "least"), [("test_task_contract", 20), ("test_equivalence", 2)])
def test_the_contract_suite_runs_over_it(suite, least):
    paths = os.pathsep.join([str(PLUGIN), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-p", "plugin_cases"]
    found = subprocess.run(
        [*command, f"{TESTS}/{suite}.py", "-k", "word-numbers"],
        cwd=TESTS.parent, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
    assert int(found.stdout.rsplit(" passed", 1)[0].split()[-1]) >= least


@pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")
def test_what_ours_can_do_it_can_do(run, recipe, tmp_path, hub):
    assert run.results["verified"]
    assert run.metrics("test")["pearson"] > 0.5
    assert 0 < run.metrics("test")["within"] <= 1
    names = ["compute_loss_func=word_numbers.extras.huber", "word_numbers.extras.Noise"]
    assert json.loads((run.folder / "environment.json").read_text())["attachments"] == names
    page = (run.folder / "report.html").read_text()
    card = (run.model / "README.md").read_text()
    assert all(text in page for text in ("pearson", *names))
    assert "bertkit.load(" in card or "load(" in card
    assert "farthest" in page or "off by" in page
    assert bertkit.check(recipe).findings.keys() == {"word-numbers"}
    model = bertkit.load(run.folder)
    answer = model("the cat was good")
    assert [word["word"] for word in answer["words"]] == "the cat was good".split()
    assert bertkit.evaluate(run, recipe["data"]["source"]["test"])["metrics"]["pearson"] == pytest.approx(
        run.metrics("test")["pearson"]
    )
    with TestClient(serving.make_app(model, "m", Limits())) as client:
        (served,) = client.post("/predict", json={"rows": ["the cat was good"]}).json()["answers"]
        assert served["words"] == answer["words"]
    exported = bertkit.export(run, tmp_path / "onnx")
    assert exported
    onnx = bertkit.load(tmp_path / "onnx")("the cat was good")
    assert onnx["words"][1]["number"] == pytest.approx(answer["words"][1]["number"], abs=1e-4)
    audited = bertkit.audit(recipe, tmp_path / "audit", folds=2, verify=False, explain=False)
    assert (audited.folder / "audit.html").is_file()
    space = {"training.learning_rate": {"low": 1e-3, "high": 1e-2}}
    swept = bertkit.sweep({**recipe, "verify": False, "explain": False}, space, tmp_path / "sweep", trials=2)
    assert swept
    assert bertkit.push(run, "me/model").repo_id == "me/model"
    assert bertkit.load("me/model")("the cat was good")["words"] == answer["words"]


def test_a_process_without_the_package_names_it(run):
    code = f"import bertkit; bertkit.load({str(run.folder)!r})"
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    what = "its task 'word-numbers' is of the package word-numbers, which is not installed"
    assert found.stderr.rstrip().endswith(f"{what}\n    pip install word-numbers")


def test_an_interrupted_run_goes_on_with_its_loss_and_its_attachment(run, recipe, extras, tmp_path):
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_epoch_end(self, args, state, control, **_):
            if state.epoch >= 3:
                raise RuntimeError("enough")

    small.raises(
        RuntimeError, "enough", bertkit.train, recipe, tmp_path / "run", **extras, callbacks=[Stop()]
    )
    small.raises(DataError, "compute_loss_func", bertkit.train, recipe, tmp_path / "run", resume=True)
    resumed = bertkit.train(recipe, tmp_path / "run", resume=True, **extras)
    assert (resumed.model / "model.safetensors").read_bytes() == (
        run.model / "model.safetensors"
    ).read_bytes()


def test_its_reader_reads_standoff_files(tiny_encoder, tmp_path):
    for split in ("train", "validation"):
        for number in range(3):
            (tmp_path / f"{split}-{number}.txt").write_text("the cat sat on the mat .\nthe dog ran .\n")
            marks = "T1\tANIMAL 4 7\tcat\nR1\tchases Arg1:T1 Arg2:T2\nT2\tANIMAL 29 32\tdog\n"
            (tmp_path / f"{split}-{number}.ann").write_text(marks)
    source = {split: sorted(map(str, tmp_path.glob(f"{split}-*.ann"))) for split in ("train", "validation")}
    model = {"name": str(tiny_encoder), "max_length": 32}
    settings = {"training": {"max_steps": 40, "learning_rate": 1e-2}, "verify": False, "explain": False}
    run = bertkit.train(
        "token-classification", tmp_path / "run", data={"source": source}, model=model, **settings
    )
    assert run.metrics()["f1_strict"] == 1
    (tmp_path / "train-1.ann").write_text("T1\tANIMAL 4 8;9 10\tcat\nT2\tANIMAL 0 4\tdog\nT3\tx\n")
    told = small.message_of(
        DataError, bertkit.check, "token-classification", data={"source": source}, model=model
    )
    assert all(f"train-1.ann:{line}: " in told for line in (1, 2, 3))
