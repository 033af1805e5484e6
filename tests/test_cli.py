"""The command line: what every command prints, and that what the user can mend is a message and exit code
2.
"""

import errno
import gc
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import chain, cycle
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import jsonschema
import pytest
import torch
from cases import CASES, DRAWN, encoder
from small import (
    ROOT,
    SIZES,
    panic_on_bytes_beyond_ascii,
    raised,
    raises,
    read_rows,
    refused,
    said,
    write_recipe,
    write_rows,
)

import bertkit
from bertkit import __version__
from bertkit.cli import doctor as doctor_module
from bertkit.cli import main as cli
from bertkit.cli.doctor import doctor_text, examine
from bertkit.cli.main import main
from bertkit.data.schema import LEVELS
from bertkit.engine.trainer import Trainer
from bertkit.errors import UserError
from bertkit.files import read_json
from bertkit.inference import predictor
from bertkit.recipe import shipped_recipes
from bertkit.recipe.recipe import read
from bertkit.recipe.training_arguments import training_fields
from bertkit.report.score_tables import first_to_try
from bertkit.run import Run
from bertkit.tasks import OURS
from bertkit.tasks.text_classification import TextClassification
from bertkit.text import json_line
from bertkit.training.seed import save


@pytest.fixture
def recipe(tiny_encoder, tmp_path):
    return write_recipe(tmp_path, tiny_encoder)


# --- what it costs to ask


def test_help_and_import_load_nothing_heavy():
    program = """
import contextlib, io, sys
started = set(sys.modules)
import bertkit
imported = set(sys.modules)
from bertkit.cli import main as cli
from bertkit.cli.main import main
for words in (["--help"], ["--version"], ["train", "--help"], ["embed", "--help"], ["tokenizer", "train", "--help"]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as told:
        main(words)
    assert told.getvalue().strip(), words
for modules in (imported - started, set(sys.modules) - started):
    print(*sorted({name.partition(".")[0] for name in modules} - sys.stdlib_module_names))
import bertkit.data
print(*sorted({"datasets", "pyarrow", "torch", "transformers", "numpy"} & set(sys.modules)))
from bertkit.evaluation import baselines, calibration, graded, intervals, metrics
from bertkit.recipe.recipe import load_recipe
from bertkit.data.python_inputs import data_section
from bertkit.data.python_rows import is_frame
load_recipe("quickstart", check_files=False)
data_section({"text": ["a"], "label": ["b"]})
assert not is_frame([{}])
bertkit.Recipe(task="text-classification", model="m", data="sample:sentiment")
heavy = {"torch", "transformers", "datasets", "sklearn", "scipy", "evaluate", "pandas", "polars"}
print(*sorted(heavy & set(sys.modules)))
"""
    training_fields.cache_clear()
    training_fields()  # which are on disk from then on
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["bertkit", "bertkit", "", ""]


# --- recipes, show, copy, check


def test_recipes_lists_every_recipe(capsys):
    lines = said(capsys, "recipes").splitlines()
    assert lines[0].split() == "recipe task encoder expected".split()
    assert {line.split()[0] for line in lines[2:]} == set(shipped_recipes())
    assert "-classification" in " ".join(lines)


def test_show_is_itself_a_recipe(capsys, tmp_path, recipe):
    text = said(capsys, "show", recipe, "training.learning_rate=1e-5", "~verify", "seeds=[1, 2]")
    (tmp_path / "shown.yaml").write_text(text)
    shown = read(tmp_path / "shown.yaml")
    assert (shown.training["learning_rate"], shown.verify, shown.seeds) == (1e-5, True, [1, 2])
    assert said(capsys, "show", tmp_path / "shown.yaml") == text
    assert "sample:sentiment" in said(capsys, "show", "quickstart")


def test_show_schema_is_a_json_schema(capsys):
    # checked in test_recipe.py
    schema = jsonschema.Draft202012Validator(json.loads(said(capsys, "show", "--schema")))
    one = {"task": {"name": "text-classification"}, "model": {"name": "a"}, "data": {"source": "b"}}
    part = {name: one[name] for name in ("task", "data")}
    several = {
        "tasks": {"a": part, "b": {**part, "weight": 2}},
        "mixing": {"a": 1, "b": 3},
        "model": one["model"],
    }
    for right in (
        one,
        {**one, "folds": 2},
        several,
        {**several, "seeds": [1], "training": {"learning_rate": 1e-4}},
    ):
        schema.validate(right)
    alone = {"task": {"name": "retrieval"}, "data": part["data"]}
    for wrong in (
        part,
        {**one, "mixing": "sqrt"},
        {**several, "folds": 2},
        {**several, "tasks": {"a": alone}},
    ):
        raised(jsonschema.ValidationError, schema.validate, wrong)
    assert "recipe" in refused(capsys, "show")


COPIED = """\
# mine
task: {name: text-classification}  # in pairs
model: {name: enc, max_length: 32}
data:
  source: {train: "train it.jsonl", validation: [./v.jsonl, /v.jsonl, ~/v.jsonl]}
  exclude: >-
    out.jsonl

  # after a block
  columns: {text: train.jsonl}
distillation:
    teacher: ../teacher   # the large one
"""


@pytest.mark.parametrize("target", "there/b.yaml there/deep/er/b.yaml b.yaml here/b.yaml".split())
def test_a_copy_reads_what_the_recipe_reads(target, capsys, tmp_path, monkeypatch):
    """Whichever folder it is in; values that are no paths, comments and layout stay."""
    for folder in "there/deep/er there/enc here/enc enc".split():
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "there/train it.jsonl").touch()
    file = tmp_path / "there/a.yaml"
    copy = tmp_path / target
    several = (
        "tasks:\n  one: {task: {name: token-classification}, data: {source: x.conll}}\nmodel: {name: ./enc}\n"
    )
    for text in (COPIED, several, COPIED.replace("\n", "\r\n")):
        file.write_bytes(text.encode())
        monkeypatch.chdir(tmp_path / "here")
        said(capsys, "copy", os.path.relpath(file), os.path.relpath(copy))
        assert read(copy, check_files=False) == read(file, check_files=False)
        made = copy.read_bytes().decode()
        assert (made == text) == (target == "there/b.yaml")
        assert re.findall("#.*", made) == re.findall("#.*", text)
        copy.unlink()


def test_a_recipe_may_come_from_a_pipe(capsys, tmp_path, monkeypatch):
    """It is read once, and its paths start from the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("train it.jsonl").touch()
    Path("enc").mkdir()
    Path("a.yaml").write_text(COPIED)
    os.mkfifo("pipe")

    def piped(*words):
        with ThreadPoolExecutor() as pool:
            written = pool.submit(Path("pipe").write_text, COPIED)
            shown = said(capsys, *words)
            written.result()
        return shown

    assert piped("show", "pipe") == said(capsys, "show", "a.yaml")
    piped("copy", "pipe", "b.yaml")
    assert Path("b.yaml").read_text() == COPIED


def test_copy_never_overwrites(capsys, tmp_path):
    mine = tmp_path / "mine.yaml"
    assert "bertkit check" in said(capsys, "copy", "sst2", mine)
    assert mine.read_text() == shipped_recipes()["sst2"].read_text()
    mine.write_text("changed")
    assert "already exists" in refused(capsys, "copy", "sst2", mine)
    assert mine.read_text() == "changed"
    assert "did you mean 'sst2'" in refused(capsys, "copy", "sst3", tmp_path / "other.yaml")
    assert not (tmp_path / "other.yaml").exists()


def test_check_says_what_it_found_and_trains_nothing(capsys, tmp_path, recipe):
    before = sorted(tmp_path.rglob("*"))
    assert main(["check", str(recipe), "model.max_length=12"]) == 0
    captured = capsys.readouterr()
    assert "single texts, single-label, 2 labels: bad, good" in captured.out
    assert "[CLS] the cat was good" in captured.out
    assert captured.out.endswith("\nready to train\n")
    for finding in (
        "train: 16 rows",
        "bad 8 (50.0%)",
        "repeat an earlier row",
        "in train too",
        "truncated at 12",
    ):
        assert finding in captured.err, finding
    levels = re.findall(r"^(severe|warn|note):", captured.err, re.M)
    assert levels == sorted(levels, key=LEVELS.index)
    assert {"severe", "note"} < set(levels)
    assert "    Raise model.max_length, or set task.overflow: window." in captured.err
    assert "ready to train 5 times: 3 folds, and on all rows" in said(
        capsys, "check", recipe, "folds=3", "seeds=[1,2]"
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_tracker_that_is_not_installed_is_named_without_a_traceback(capsys, tmp_path, recipe, monkeypatch):
    name = next(
        each for each in "neptune mlflow dagshub comet_ml".split() if not importlib.util.find_spec(each)
    )
    ignored = []
    monkeypatch.setattr("sys.unraisablehook", ignored.append)
    run = tmp_path / "run"
    for command in (["check", str(recipe)], ["train", str(recipe), "--output-dir", str(run)]):
        assert f"training.report_to: {name}: not installed\n    pip install {name}" in refused(
            capsys, *command, f"training.report_to=[{name}]"
        )
    gc.collect()
    assert ignored == []
    assert not run.exists()


# --- train, evaluate, predict


def test_train_prints_scores_and_what_to_type_next(capsys, tmp_path, recipe):
    folder = tmp_path / "run"
    again = ("train", recipe, "training.max_steps=2", "training.logging_steps=1", "--output-dir", folder)
    assert main([*map(str, again)]) == 0
    captured = capsys.readouterr()
    predict = f"bertkit predict {shlex.quote(str(folder))}"
    printed = ("this model", "95 % interval", "majority", "tfidf", predict, "validation (10 rows)")
    logged = (
        "encoder: ",
        "task: text-classification",
        "step 1/2",
        "loss ",
        "initialised, to be trained: classifier",
    )
    assert [words for words in printed if words not in captured.out] == []
    assert [words for words in logged if captured.err.count(words) == 0] == []
    assert captured.err.count("randomly initialised, to be trained") == 1
    assert Run(folder).results["seeds"][0]["steps"] == 2
    assert "holds a finished run" in refused(capsys, *again)
    assert "this model" in said(capsys, *again, "--resume")


def test_a_label_does_not_control_the_terminal(capsys, tmp_path, recipe):
    """Neither in what check and train print, nor on pages, nor in a file for spreadsheets."""
    evil = "\x1b]0;title\x07\x1b[2J\x9b\u202e\nsevere: no rows"
    for split in SIZES:
        rows = read_rows(tmp_path / f"{split}.jsonl")
        named = [{**row, "label": row["label"].replace("good", f"good{evil}")} for row in rows]
        write_rows(tmp_path / f"{split}.jsonl", named)
    words = ("training.max_steps=2", "training.logging_steps=1", "--output-dir", tmp_path / "run")
    assert main(["check", str(recipe)]) == main(["train", str(recipe), *map(str, words)]) == 0
    printed = capsys.readouterr()
    said(
        capsys,
        "predict",
        tmp_path / "run",
        "--input",
        tmp_path / "test.jsonl",
        "--output",
        tmp_path / "answers.csv",
    )
    answers = said(capsys, "predict", tmp_path / "run", "--input", tmp_path / "test.jsonl")
    pages = [tmp_path / "run" / name for name in ("model/README.md", "report.html", "mistakes.csv")]
    texts = [printed.out, printed.err, answers]
    assert not [line for text in texts for line in text.splitlines() if line.startswith("severe: no rows")]
    texts += [file.read_text("utf-8-sig") for file in (*pages, tmp_path / "answers.csv")]
    texts += [bertkit.Run(tmp_path / "run")._repr_html_()]
    assert not [text for text in texts if set(evil) & set(text) & set("\x1b\x07\x9b\u202e")]
    assert r"good\x1b]0;title\x07" in printed.out
    assert json.loads(answers.splitlines()[0])["label"] in ("bad", f"good{evil}")


def test_a_line_of_json_is_safe_to_print_and_holds_the_same_text():
    text = "".join(map(chr, range(0x250))) + "\u2028\u202e\ud800 é 😀"
    written = json_line({"text": text})
    assert written.replace("\xad", "").replace("\xa0", "").isprintable()
    assert json.loads(written) == {"text": text}


HINTED = "single-label pair qa ner-crf similarity-cls similarity-in-batch retrieval ranking-binary".split()
HINTED += ["text-to-text", "mlm-nsp"]


@pytest.mark.parametrize(
    "case", [case for case in [*CASES, *DRAWN] if case.id in HINTED], ids=lambda case: case.id
)
def test_what_to_type_next_works_as_it_stands(case, tiny_encoder, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "a run"
    task = case.task(tiny_encoder)
    save(task.model(encoder(tiny_encoder)), task, folder / "model", {"version": __version__})
    typed, _, command = first_to_try(folder).rpartition(" | ")
    if typed:
        echoed = shlex.split(typed)[1]
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(echoed.encode())))
    told = said(capsys, *shlex.split(command)[1:])
    assert len(told.splitlines()) == 1
    assert {each.options["name"] for each in [*CASES, *DRAWN] if each.id in HINTED} == {*OURS}
    if typed:  # and a text alone is answered with that command
        assert f"{typed} | {command}" in refused(capsys, "predict", folder, "a text")
    if case.id == "mlm-nsp":
        assert "(" in told  # the mask was filled


def test_evaluate_as_table_and_as_json_and_what_it_refuses(capsys, learned, tmp_path):
    told = json.loads(said(capsys, "evaluate", learned.folder, "--split", "validation", "--json"))
    assert told == {"split": "validation", **learned.results["splits"]["validation"]}
    table = said(capsys, "evaluate", learned.folder)
    assert table.startswith("test (7 rows)")
    assert f"{learned.results['splits']['test']['metrics']['accuracy']:.4f}" in table
    assert "only keys of `data`" in refused(capsys, "evaluate", learned.folder, "training.learning_rate=1")
    assert "has no data: it is not a run" in refused(capsys, "evaluate", learned.model)
    assert "nowhere.jsonl" in refused(
        capsys, "evaluate", learned.folder, "--data", tmp_path / "nowhere.jsonl"
    )


def test_evaluate_a_file_with_names_of_its_own_and_rows_to_leave_out(capsys, learned, tmp_path):
    rows = [
        {"sentence": r["text"], "label": r["label"]} for r in read_rows(learned.folder.parent / "test.jsonl")
    ]
    file = write_rows(tmp_path / "other.jsonl", rows)
    words = ("evaluate", learned.folder, "--data", file, "--json")
    told = json.loads(said(capsys, *words, "data.columns.text=sentence"))
    assert told["metrics"] == learned.results["splits"]["test"]["metrics"]
    assert "columns: {text: sentence}" in refused(capsys, *words)
    model = ("evaluate", learned.model, "--data", file, "--json", "data.columns.text=sentence")
    assert json.loads(said(capsys, *model)) == told
    rows = [*read_rows(learned.folder.parent / "test.jsonl"), {"text": "a cat", "label": None}]
    file = write_rows(tmp_path / "other.jsonl", rows)
    assert main(["evaluate", str(learned.folder), "--data", str(file), "data.missing_labels=ignore"]) == 0
    assert "note: 1 of 8 rows of test has no `label`; left out: " in capsys.readouterr().err
    assert main(["evaluate", str(learned.folder)]) == 0
    assert "warn" not in capsys.readouterr().err  # of the run's own data training has told it


def test_predict_texts(capsys, learned, tmp_path):
    lines = said(capsys, "predict", learned.folder, "the cat was good", "the dog was bad").splitlines()
    assert [line.split()[0] for line in lines] == ["good", "bad"]
    (tmp_path / "letter.txt").write_text("a")
    told = refused(capsys, "predict", learned.folder, "a", "--context", tmp_path / "letter.txt")
    assert "--context is for questions; this model reads text" in told
    assert lines[0].endswith("the cat was good")
    told = [
        json.loads(x)
        for x in said(capsys, "predict", "--json", learned.folder, "the cat was good", "").splitlines()
    ]
    assert [each["text"] for each in told] == ["the cat was good", ""]
    assert [each["answer"] for each in told] == learned.load()(["the cat was good", ""])  # batches as there
    assert (
        said(capsys, "predict", learned.folder, "--", "-3 degrees, bad")
        .splitlines()[0]
        .endswith("-3 degrees, bad")
    )
    cut = said(capsys, "predict", learned.folder, "cat " * 50)
    assert cut.rstrip().endswith("(truncated)")
    for neither_or_both in ((), ("a text", "--input", "-")):
        assert "bertkit predict RUN" in refused(capsys, "predict", learned.folder, *neither_or_both)


def test_a_panic_in_a_library_is_an_error(capsys, learned, monkeypatch):
    def load_tokenizer(folder, real=predictor.load_tokenizer, **options):
        tokenizer = real(folder, **options)
        panic_on_bytes_beyond_ascii(tokenizer)
        return tokenizer

    monkeypatch.setattr(predictor, "load_tokenizer", load_tokenizer)
    assert "good" in said(capsys, "predict", learned.folder, "the cat was good")
    told = refused(capsys, "predict", learned.folder, "好")
    assert "a library in Rust, such as tokenizers, crashed: index out of bounds" in told


def test_too_little_memory_of_a_device_is_an_error(capsys, learned, monkeypatch):
    full = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 MiB."))
    monkeypatch.setattr(TextClassification, "forward", full)
    told = refused(capsys, "predict", learned.folder, "the cat was good")
    assert told.startswith("error: CUDA out of memory.\n")
    assert "smaller batches" in told


READERS = {
    "predict": "predict {run} --input {file} --output {new}.jsonl",
    "explain": "explain {run} --input {file} --output {new}.html",
    "embed": "embed {encoder} --input {file} --output {new}.npy",
    "index": "index {encoder} --documents {file} --store {new}",
    "tokenizer train": "tokenizer train --vocab-size 60 --output {new} --input {file}",
}
ODD_FILES = {
    "odd.csv": 'id;text\n1;"the cat; was good"\n2;the dog was bad\n',
    "odd.json": '{"id": 1, "text": "the cat was good"}\n{"id": 2, "text": "the dog was bad"}\n',
}


@pytest.mark.parametrize(("command", "name"), list(zip(READERS, cycle(ODD_FILES), strict=False)))
def test_what_a_message_tells_to_type_can_be_typed(capsys, learned, tiny_encoder, tmp_path, command, name):
    (tmp_path / name).write_text(ODD_FILES[name])
    places = {
        "run": learned.folder,
        "encoder": tiny_encoder,
        "file": tmp_path / name,
        "new": tmp_path / "new",
    }
    words = [word.format(**places) for word in READERS[command].split()]
    (fix,) = re.findall(r"on the command line: '(data\..*)'\)", refused(capsys, *words))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    said(capsys, *words, fix)
    assert len(list(tmp_path.iterdir())) == 2
    told = refused(capsys, *words, fix, "data.validation=0.1")
    assert "only the layout of the file can be set here: data.format, data.sheet, data.header" in told


def test_explain_reads_columns_of_other_names(capsys, learned, tmp_path):
    file = write_rows(tmp_path / "named.jsonl", [{"review": "the dog was bad"}])
    words = ("explain", learned.folder, "--input", file, "--json")
    assert "name it in `columns`" in refused(capsys, *words)
    told = said(capsys, *words, "--column", "text=review")
    assert told == said(capsys, "explain", learned.folder, "the dog was bad", "--json")
    assert "the model does not read 'txt'" in refused(capsys, *words, "--column", "txt=review")
    told = refused(capsys, "explain", learned.folder, "the dog was bad", "--column", "text=review")
    assert "--column works only with --input FILE" in told


def test_documents_are_indexed_from_columns_of_other_names(capsys, tiny_encoder, tmp_path):
    file = tmp_path / "faq.csv"
    store = tmp_path / "store"
    file.write_text("nr,question,text,lang\n7,the cat,not this,en\n")
    names = "--column id=nr --column text=question".split()
    assert "documents: 1 added" in said(
        capsys, "index", tiny_encoder, "--documents", file, "--store", store, *names
    )
    hit = json.loads(said(capsys, "search", store, "cat", "--json"))
    assert (hit["id"], hit["text"], hit["metadata"]) == ("7", "the cat", {"lang": "en"})
    again = ("index", tiny_encoder, "--documents", file, "--store", tmp_path / "other")
    assert "documents: 1 added" in said(capsys, *again, "--column", "id=nr", "--column", "title=nr")
    told = refused(
        capsys, "index", tiny_encoder, "--documents", file, "--store", store, "--column", "id=number"
    )
    assert "faq.csv:2: `id`: expected text or a whole number, found None" in told
    told = refused(capsys, *again, "--column", "title=headlin")
    assert "faq.csv: no column 'headlin'; found nr, question, text, lang" in told


def test_a_file_in_place_of_a_text_is_noticed(capsys, learned, tmp_path):
    named = tmp_path / "reviews.txt"
    named.write_text("the cat was good\n")
    for text, noticed in ((str(named), True), ("the cat was good " * 400, False), ("a\0b", False)):
        assert main(["predict", str(learned.folder), text]) == 0
        assert (f"--input {named}" in capsys.readouterr().err) is noticed


def test_closed_streams_are_said(capsys, learned):
    """As by >&-: Python then has no sys.stdout, and print discards its text. Errors are never on stdout."""
    with patch.object(sys, "stdout", None):
        assert main(["recipes"]) == 2
    assert capsys.readouterr().err.startswith("error: stdout is closed")
    with patch.object(sys, "stdin", None):
        assert main(["predict", str(learned.folder), "--input", "-"]) == 2
    assert "stdin is closed" in capsys.readouterr().err
    with patch.object(sys, "stderr", None):
        assert main(["show", "no-such-recipe"]) == 2
        sys.stderr.close()
    assert capsys.readouterr().out == ""


# --- what the user has to put right


@pytest.mark.parametrize("command", [("show",), ("check",), ("train", "--output-dir", "run")])
def test_recipes_that_are_not_there_or_not_right(command, capsys, recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = refused(capsys, *command, "quickstrat")
    assert told.count("error: ") == 1
    assert "did you mean 'quickstart'" in told
    told = refused(capsys, *command, recipe, "training.learning_rte=1", "model.max_length=long", "nonsense")
    assert told.count("error: ") == 3
    assert "learning_rate" in told
    if command != ("show",):
        alike = [{"text": f"cat {n}", "score": 1.0} for n in range(9)]
        for split in SIZES:
            write_rows(tmp_path / f"{split}.jsonl", alike)
        assert "train: every row has the number 1; there is nothing" in refused(capsys, *command, recipe)
        (tmp_path / "test.jsonl").unlink()
        told = refused(capsys, *command, recipe)
        assert told.count("error: ") == 1
        assert f"{tmp_path}/test.jsonl" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_run_that_is_none(command, capsys, learned, tiny_encoder, tmp_path):
    words = ("a text",) if command == "predict" else ()
    (tmp_path / "empty").mkdir()
    write_rows(tmp_path / "killed/recipe.yaml", (learned.folder / "recipe.yaml").read_text())
    for folder, what in (
        (tmp_path / "nowhere", "no such folder"),
        (tmp_path / "empty", "neither a run nor a model folder"),
        (tmp_path / "killed", "--resume"),
        (tmp_path / "kild", f"Runs in {tmp_path}: killed."),
        (tiny_encoder, "Pass its task"),
        (Path("nobody/nothing"), "the Hub cannot be reached"),
    ):
        told = refused(capsys, command, folder, *words)
        assert what in told
        assert told.count("error: ") == 1


def test_a_model_of_someone_else_is_answered_with_its_task_named(capsys, learned, tmp_path, tiny_encoder):
    foreign = shutil.copytree(learned.model, tmp_path / "foreign")
    config = read_json(foreign / "config.json")
    del config["bertkit"]
    (foreign / "config.json").write_text(json.dumps(config))
    assert "Pass its task" in refused(capsys, "predict", foreign, "the dog was bad")
    assert said(capsys, "predict", foreign, "the dog was bad", "--task", "text-classification").startswith(
        "bad"
    )
    assert "no task 'nonsense'" in refused(
        capsys, "predict", foreign, "the dog was bad", "--task", "nonsense"
    )
    assert "was trained for text-classification" in refused(
        capsys, "predict", learned.model, "a", "--task", "fill-mask"
    )
    assert "classifier" in refused(capsys, "predict", tiny_encoder, "a", "--task", "text-classification")
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": "the dog was bad", "label": "bad"}])
    told = said(
        capsys,
        "export",
        foreign,
        "--output",
        tmp_path / "onnx",
        "--data",
        rows,
        "--task",
        "text-classification",
    )
    assert "1 equal predictions" in told


PARSED = [  # words that the parser refuses, and what it says
    ("", "    bertkit train quickstart --output-dir runs/quickstart\n"),
    ("nonsense", "nonsense"),
    ("-- predict run", "no command '--'"),
    ("train quickstart", "--output-dir"),
    ("recipes more", "unrecognized arguments: more"),
    ("recipes -- -x", "unrecognized arguments: -x\n"),
    ("predict run -x", "unrecognized arguments: -x (put a text that starts with - after --)\n"),
    ("predict run --nonsense", "has no option '--nonsense' (put a text that starts with - after --)\n"),
    ("serve runs/none --api-key key", "has no option '--api-key'; did you mean '--api-key-file'?\n"),
    ("trian x", "no command 'trian'; did you mean 'train'?\n"),
    ("predict", "required: RUN, and TEXT or --input FILE\n"),
    ("search", "required: STORE, and QUERY or --input FILE\n"),
    ("explain", "required: RUN\n"),
]


def test_what_the_parser_refuses_exits_with_2(capsys, subtests):
    for words, part in PARSED:
        with subtests.test(words):
            raises(SystemExit, "2", main, words.split())
            told = capsys.readouterr().err
            assert "usage: bertkit" in told
            assert part in told


def test_words_after_two_hyphens_are_texts_wherever_they_stand():
    for command in chain.from_iterable(cli.COMMANDS.values()):
        required = [
            word for name, options in command.arguments if options.get("required") for word in (name, "x")
        ]
        first = ["x" for name, _ in command.arguments if name[0] != "-" and name != "rest"]
        for before in ([*first, *required], [*required, *first]) if "rest" in dict(command.arguments) else ():
            args = cli.parse([*command.name.split(), *before, "--", "-x", "y", "--", "--top-k"])
            assert (args.command, args.rest) == (command, "-x y -- --top-k".split())
    args = cli.parse("predict --top-k 1 -- -run -x".split())
    assert (args.source, args.rest, args.top_k) == ("-run", ["-x"], 1)
    assert cli.parse(["report", "--", "-run"]).runs == [Path("-run")]


def test_help_has_an_example_that_parses_and_a_page(capsys):
    for command in chain.from_iterable(cli.COMMANDS.values()):
        words = shlex.split(re.sub(r'^eval "\$\((.*)\)"$', r"\1", command.example))
        assert words[0] == "bertkit"
        assert cli.parse(words[1:]).command == command
        assert (ROOT / "docs" / f"{command.page}.md").is_file()
        shown = f"example:\n  {command.example}\n\n{cli.SITE}/docs/{command.page}.html\n"
        raises(SystemExit, "0", main, [*command.name.split(), "--help"])
        assert shown in capsys.readouterr().out
    assert (
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"] == cli.SITE
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, capsys):
    pytest.importorskip("shtab")
    script = said(capsys, "completion", shell)
    assert "tokenizer" in script
    assert "output-dir" in script


def test_an_interrupt_is_not_a_traceback(capsys, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "training_step", Mock(side_effect=KeyboardInterrupt))
    assert main(["train", str(recipe), "--output-dir", f"{tmp_path}/run"]) == 130
    told = capsys.readouterr().err
    assert "--resume" in told
    assert "Traceback" not in told


def test_a_terminal_of_few_characters_stops_nothing():
    program = (
        "import bertkit.cli.main as c; c._set_up_output(); print('h\\u00e9 \\ud83d \\u2588 \\U0001f600')"
    )
    command = [sys.executable, "-X", "utf8=0", "-c", program]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert (
        subprocess.check_output(command, text=True, env=ascii_only)
        == r"h\u00e9 \ud83d \u2588 \ud83d\ude00" + "\n"
    )


@pytest.mark.parametrize("words", [["predict", "x", "a text"], ["evaluate", "x"], ["serve", "x"]])
def test_few_kernels_are_kept_for_prediction(words, monkeypatch):
    """Unless the user's environment says how many."""
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    seen = []

    def load(*args, **options):
        seen.append(os.environ[name])
        raise UserError("no model")

    for module in ("predictor", "evaluate"):
        monkeypatch.setattr(f"bertkit.inference.{module}.load", load)
    monkeypatch.setattr("bertkit.serving.server.load", load)
    monkeypatch.setenv(name, "500")
    assert main(words) == 2
    monkeypatch.delenv(name)
    assert main(words) == 2
    assert seen == ["500", "64"]


# --- doctor: it says what holds on this machine, and tells no secrets


def test_versions_precision_promises_and_threads(capsys):
    found = examine()
    assert found["environment"]["versions"]["torch"] == version("torch")
    assert found["environment"]["threads"] == torch.get_num_threads()
    assert found["precision"]["used"] in ("fp32", "bf16")
    assert found["devices"][-1].startswith("cpu")
    assert found["tested_versions"]["transformers"]
    assert json.loads(said(capsys, "doctor", "--json")).keys() == found.keys()
    text = doctor_text(found)
    for line in (
        "exact resume",
        "int8 exports",
        "kernels in training",
        "sdpa, or eager",
        found["precision"]["why"],
        "tested with",
    ):
        assert line in text


def test_promises_depend_on_the_device():
    assert doctor_module._promises("cpu")["exact resume"].startswith("byte for byte")
    assert "not tested" in doctor_module._promises("mps")["exact resume"]
    assert doctor_module._promises("cuda")["kernels in training"] == "those of torch"


def test_a_token_is_never_told(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_a-very-secret-one")
    found = examine()
    assert found["hub_token"] is True
    assert "very-secret" not in json.dumps(found) + doctor_text(found)


def test_a_full_quota_is_a_full_disk(capfd, monkeypatch, tmp_path):
    full = Mock(side_effect=OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))
    monkeypatch.setattr("os.replace", full)
    assert "Free some space" in refused(capfd, "copy", "quickstart", tmp_path / "a.yaml")


def test_a_slash_is_missing_after_a_tilde(capsys):
    assert "after ~ comes /" in refused(capsys, "predict", "~nobody-here/x", "a text")


def test_an_option_may_begin_at_home(capsys, tmp_path, monkeypatch):
    """In `--output=~/r.yaml` a shell leaves ~ as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    file = write_rows(tmp_path / "a.csv", "text,label\n" + "".join(f"cat {n},{n % 2}\n" for n in range(40)))
    said(capsys, "init", file, "--output=~/r.yaml")
    assert "r.yaml: already exists" in refused(capsys, "init", file, "--output=~/r.yaml")


def test_explain_reads_no_other_column_than_the_named_one(capsys, learned, tmp_path):
    file = write_rows(tmp_path / "a.csv", "text,body\na cat,a dog\n")
    told = refused(capsys, "explain", learned.folder, "--input", file, "--column", "text=bodyy")
    assert "a.csv, row 2: no column 'bodyy'; found text, body" in told
