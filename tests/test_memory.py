"""Rows from Python, `bertkit.train(task, output_dir, data=…)`: the run that keeps them, and its fresh
processes.
"""

import gc
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
import small
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, Value
from safetensors.torch import load_file
from small import raises, read_data, refuses, write_rows
from transformers import TrainerCallback

import bertkit
from bertkit.cli.main import main
from bertkit.data import load, read_rows
from bertkit.data.python_inputs import data_section
from bertkit.data.python_rows import column_names, store_rows
from bertkit.data.sources import samples_folder
from bertkit.explanations.explain import explain_rows
from bertkit.files import read_json, sha256
from bertkit.recipe.recipe import Recipe, read, to_yaml
from bertkit.sections import DataSpec
from bertkit.tasks import get_task
from bertkit.tasks.text_classification import TextClassification

TRAIN, VALIDATION, TEST = (small.rows("single-label", *place) for place in ((16,), (10, 16), (7, 26)))
QUICK = {"epochs": 1, "per_device_train_batch_size": 4, "max_length": 32, "verify": False, "explain": False}


def columns(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


LIBRARIES = {
    "pandas": pandas.DataFrame,
    "pandas with an index of its own": lambda rows: pandas.DataFrame(rows, index=range(100, 100 + len(rows))),
    "pandas categories": lambda rows: pandas.DataFrame(rows).astype({"label": "category"}),
    "polars": polars.DataFrame,
    "polars categories": lambda rows: polars.DataFrame(rows, schema_overrides={"label": polars.Categorical}),
    "Dataset": Dataset.from_list,
    "Dataset with a selection": lambda rows: Dataset.from_list(rows[::-1]).select(range(len(rows))[::-1]),
    "pyarrow": pa.Table.from_pylist,
    "rows": list,
    "columns": columns,
    "arrays": lambda rows: {name: np.array(values) for name, values in columns(rows).items()},
}


def loaded(section):
    """The rows by split that a run would train on."""
    spec = bertkit.Recipe(task="text-classification", model="m", data=section).data
    data = load(spec, TextClassification.schema)
    return {split: list(each) for split, each in data.rows.items()}


# --- the forms of data


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_form_of_rows_is_read_as_the_same_rows(library):
    of = LIBRARIES[library]
    assert loaded(of(TRAIN)) == {"train": TRAIN}
    by_split = loaded({"train": of(TRAIN), "val": of(VALIDATION), "test": of(TEST)})
    assert by_split == {"train": TRAIN, "validation": VALIDATION, "test": TEST}
    assert list(by_split) == ["train", "validation", "test"]
    held_out = loaded({"train": of(TRAIN), "validation": 0.25})
    assert {split: len(rows) for split, rows in held_out.items()} == {"train": 12, "validation": 4}
    held_out = loaded({"train": of(TRAIN), "dev": 0.25, "test": 2})
    assert {split: len(rows) for split, rows in held_out.items()} == {"train": 10, "validation": 4, "test": 2}
    assert loaded({"source": of(TRAIN), "columns": {"text": "id"}})["train"][0]["text"] == "row-0"


def test_missing_values_are_missing_and_a_named_index_of_pandas_is_a_column():
    for frame in (
        pandas.DataFrame({"text": ["a", None, "b"], "label": [1.0, 0.0, 1.0]}),
        pandas.DataFrame({"text": ["a", float("nan"), "b"], "label": [1, 0, 1]}, dtype=object),
        pandas.DataFrame(
            {"text": pandas.array(["a", pandas.NA, "b"], dtype="string"), "label": [True, False, True]}
        ),
        polars.DataFrame({"text": ["a", None, "b"], "label": [1, 0, 1]}),
        [{"text": "a", "label": 1}, {"label": 0}, {"text": "b", "label": 1}],
    ):
        assert [row["text"] for row in loaded(frame)["train"]] == ["a", "", "b"]
    frame = pandas.DataFrame(TRAIN).set_index("text")
    assert loaded(frame)["train"][3]["text"] == TRAIN[3]["text"]
    raises(bertkit.DataError, r"needs a column `text`.*found: 'id', 'label'", loaded, frame.rename_axis(None))


def test_a_data_set_keeps_its_class_names_and_a_datasetdict_is_read_like_one_of_the_hub(tiny_encoder):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["worse", "good", "absent"])})
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    assert [row["label"] for row in loaded(rows)["train"]] == ["good", "worse"]
    spec = bertkit.Recipe(task="text-classification", model=tiny_encoder, data=rows).data
    assert load(spec, TextClassification.schema).class_names == ["worse", "good", "absent"]
    one = Dataset.from_list(TRAIN)
    given = DatasetDict({"train": one, "dev": one.select(range(3)), "unsupervised": one})
    assert {split: len(rows) for split, rows in loaded(given).items()} == {"train": 16, "validation": 3}
    named = loaded({"source": given, "splits": {"test": "unsupervised"}})
    assert list(named) == ["train", "validation", "test"]
    raises(bertkit.DataError, "no split train; it has a", data_section, DatasetDict({"a": one}))


def test_paths_names_and_columns_called_source_stay_what_they_are(tmp_path):
    assert data_section("sample:sentiment") == ({"source": "sample:sentiment"}, {})
    assert data_section(tmp_path) == ({"source": str(tmp_path)}, {})
    files = {"train": "a.csv", "test": ["b.csv", "c.csv.gz"]}
    assert data_section({**files, "validation": 0.1}) == ({"validation": 0.1, "source": files}, {})
    assert data_section({"source": "me/data", "subset": "x"}) == ({"source": "me/data", "subset": "x"}, {})
    assert data_section({"columns": {"text": "t"}}) == ({"columns": {"text": "t"}}, {})
    rows = {"source": ["a", "b"], "text": ["x", "y"], "label": ["1", "2"]}
    assert data_section(rows) == ({}, {"train": rows})


UNSTORED = "train: `text` cannot be stored,"
NO_DATA = [
    (None, "data: missing"),
    (5, "expected rows, found int 5"),
    (pandas.Series(["a"]), "Give a frame or"),
    (polars.DataFrame({"text": ["a"]}).lazy(), r"frame.collect\(\)"),
    (IterableDataset.from_generator(lambda: iter(TRAIN)), "without streaming"),
    ({"train": ["a", "b"], "test": ["c", "d"]},
     "ambiguous: `train` is the name of a split(?s:.*)ambiguous: `test`"),
    ({"train": pandas.DataFrame(TRAIN), "test": "t.csv"}, "train as rows, but test as files"),
    ({"train": TRAIN, "eval": TRAIN}, r"data\['eval'\]: neither a split nor a column"),
    ({"train": "a.csv", "encoding": "cp1252"}, r"'encoding'\]: belongs beside the source\n *.*'encoding': 'cp1252'}"),
    ({"train": TRAIN, "validation": 0.1, "dev": TRAIN}, "a second name for validation"),
    ({"train": TRAIN, "validation": 1.5}, "data.validation: expected a share of train below 1"),
    ({"train": 0.8}, "expected rows, found the number 0.8\n.*Only validation and test can be a share"),
    ({"validation": 0.1}, "data.source: missing"),
    ({"validation": 0.1, "test": 3}, "data.source: missing"),
    ([], "train: is empty: it has no rows"),
    ([{"text": "a"}, "b"], "train, row 2: expected a dict of columns, found 'b'"),
    ({"text": ["a", "b"], "label": ["x"]}, "different lengths: `text` 2, `label` 1"),
    ({"text": ["a", None, 5, "b"], "label": ["x"] * 4}, f"{UNSTORED} with 'a' in row 1, 5 in row 3"),
    (pandas.DataFrame({"text": ["a", object()]}), f"{UNSTORED} with 'a' in row 1, <object object"),
    ({"text": ["\ud83d", "b"]}, rf"{UNSTORED} with '\\ud83d'(?s:.*)in UTF-8"),
    ([{"x": {"a": 1}}, {"x": {"b": "x"}}, {"x": {"b": 2}}], "train: `x` cannot be stored, with "),
    ([{**row, "meta": {}} for row in TRAIN], "train: cannot be stored: .*meta"),
    (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), "several columns are called text"),
    ({"test": TRAIN}, "no train split; available: test"),
    ([*TRAIN[:11], {**TRAIN[11], "text": 12.5}, *TRAIN[12:]], rf"{UNSTORED} with 'the cat.*, 12.5 in row 12"),
    (pandas.DataFrame(TRAIN).assign(label=[None if number == 11 else "good" for number in range(16)]),
     "1 of 16 rows of train has no `label`: train, row 12"),
    ({"words": ["a"], "label": ["b"]}, (r"train: needs a column `text`.*found: 'words', " r"'label'(?s:.*)text: " r"words")),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), NO_DATA)
def test_what_is_no_data_is_refused_with_what_to_write(given, message, tmp_path, tiny_encoder):
    recipe = {"task": "text-classification", "model": {"name": tiny_encoder, "max_length": 32}, "data": given}
    refuses(bertkit.UserError, message, recipe, tmp_path)


# --- runs


@pytest.fixture(scope="module")
def run(tiny_encoder, tmp_path_factory):
    """Trained on frames, of two libraries."""
    data = {"train": pandas.DataFrame(TRAIN), "validation": VALIDATION, "test": polars.DataFrame(TEST)}
    folder = tmp_path_factory.mktemp("memory") / "run"
    return bertkit.train("text-classification", folder, data=data, model=str(tiny_encoder), **QUICK)


def test_a_frame_trains_as_its_file_does(run, tiny_encoder, tmp_path):
    for split, rows in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST)):
        write_rows(tmp_path / f"{split}.jsonl", rows)
    from_files = bertkit.train(
        "text-classification", tmp_path / "run", data=tmp_path, model=str(tiny_encoder), **QUICK
    )
    ours, theirs = (load_file(each.model / "model.safetensors") for each in (run, from_files))
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    facts = [read_json(each.folder / "data.json") for each in (run, from_files)]
    assert facts[0]["fingerprints"] == facts[1]["fingerprints"]
    assert "files" not in facts[1]
    assert not (from_files.folder / "data").exists()


def test_the_run_keeps_the_rows_and_its_recipe_says_so(run):
    names = ["test.parquet", "train.parquet", "validation.parquet"]
    assert sorted(file.name for file in (run.folder / "data").iterdir()) == names
    kept = read_json(run.folder / "data.json")["files"]
    assert kept == {f"data/{name}": sha256(run.folder / "data" / name) for name in names}
    assert pandas.read_parquet(run.folder / "data/train.parquet").to_dict("records") == TRAIN
    text = (run.folder / "recipe.yaml").read_text()
    assert "  source: memory\n  fingerprint: " in text
    assert "folder" not in text
    assert run.recipe.data.source == "memory"
    assert to_yaml(run.recipe) == text
    card = (run.model / "README.md").read_text()
    assert "datasets:" not in card
    assert "rows passed from Python" in card


def test_everything_that_reads_the_rows_works_in_another_place(run, tmp_path, monkeypatch):
    """The run was moved, and the cache is another one."""
    moved = tmp_path / "moved"
    shutil.copytree(run.folder, moved)
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/empty")
    expected = run.results["splits"]["test"]["metrics"]
    assert bertkit.evaluate(moved)["metrics"] == expected
    for command in (["evaluate", str(moved)], ["check", f"{moved}/recipe.yaml"], ["report", str(moved)]):
        assert main(command) == 0
    again = bertkit.train(bertkit.load_recipe(moved / "recipe.yaml"), tmp_path / "again")
    assert again.results["splits"]["test"]["metrics"] == expected
    assert (again.folder / "data/train.parquet").is_file()


def test_an_interrupted_run_continues_from_its_folder_alone(run, tiny_encoder, tmp_path, monkeypatch):
    class Stop(TrainerCallback):
        def on_epoch_end(self, *_, **__):
            raise KeyboardInterrupt

    data = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
    with pytest.raises(KeyboardInterrupt):
        bertkit.train(
            "text-classification",
            tmp_path / "run",
            data=data,
            callbacks=[Stop()],
            model=tiny_encoder,
            **QUICK,
        )
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/empty")
    other = {**data, "train": TRAIN[:-1]}
    given = {"data": other, "resume": True, "model": tiny_encoder, **QUICK}
    said = "another recipe; new lines: fingerprint"
    raises(bertkit.RecipeError, said, bertkit.train, "text-classification", tmp_path / "run", **given)
    assert main(["train", f"{tmp_path}/run/recipe.yaml", "--output-dir", f"{tmp_path}/run", "--resume"]) == 0
    resumed = bertkit.Run(tmp_path / "run")
    assert resumed.results["splits"]["test"] == run.results["splits"]["test"]


def test_a_recipe_without_its_rows_says_where_they_are(run, tmp_path, monkeypatch):
    copy = shutil.copy(run.folder / "recipe.yaml", tmp_path / "copy.yaml")
    assert bertkit.load_recipe(copy).data.source == "memory"
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/empty")
    lost = r"given from Python, and its `data` folder is not beside it(?s:.*)data.folder="
    raises(bertkit.DataError, lost, bertkit.train, bertkit.load_recipe(copy), tmp_path / "run")
    for override in (
        [f"data.folder={run.folder}/data"],
        [f"data.source={run.folder}/data", "~data.fingerprint"],
    ):
        again = bertkit.train(bertkit.load_recipe(copy, override), tmp_path / f"run{len(override)}")
        assert again.results["splits"]["test"] == run.results["splits"]["test"]
    (tmp_path / "data").mkdir()  # another folder of this name
    pandas.DataFrame(TRAIN).to_parquet(tmp_path / "data/train.parquet")
    refuses(bertkit.DataError, "is not beside it, or was changed", bertkit.load_recipe(copy), tmp_path)


def test_a_sweep_of_rows_given_from_python_keeps_them(tiny_encoder, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    from bertkit.sweeps.sweep import sweep

    data = {"train": TRAIN, "validation": VALIDATION}
    recipe = read("text-classification", data, {"model": tiny_encoder, **QUICK})
    (tmp_path / "space.yaml").write_text("training.learning_rate: [1e-3, 1e-4]\n")
    done = sweep(recipe, tmp_path / "space.yaml", tmp_path / "sweep", trials=1, confirm=1)
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/empty")
    assert bertkit.evaluate(done.folder / "best")["rows"] == 10
    assert bertkit.train(bertkit.load_recipe(done.folder / "best.yaml"), tmp_path / "run").finished


def test_rows_are_kept_as_long_as_a_recipe_names_them(tmp_path, tiny_encoder, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/cache")

    def kept():
        gc.collect()
        return [*tmp_path.rglob("*.parquet")]

    settings = {"training": {"max_steps": 1}, "verify": False, "explain": False}
    model = {"name": str(tiny_encoder), "max_length": 32}
    recipe = bertkit.Recipe(task="text-classification", model=model, data=TRAIN, **settings)
    assert (
        store_rows({"train": TRAIN})["fingerprint"] == recipe.data.fingerprint != store_rows({"train": TEST})
    )
    assert [file.parent.stat().st_mode & 0o777 for file in kept()] == [0o700]
    for change in (
        lambda r: r.with_(epochs=2),
        lambda r: r.with_("seeds=[1]"),
        lambda r: Recipe(**r.model_dump()),
    ):
        recipe = change(recipe)  # and the one before is gone
        assert len(kept()) == 1
    recipe = recipe.with_(data={"train": TRAIN, "validation": VALIDATION})
    assert len(kept()) == 2
    run = bertkit.train(recipe, tmp_path / "run")
    bertkit.evaluate(run.folder, TEST)
    in_run = [run.folder / "data" / f"{split}.parquet" for split in ("train", "validation")]
    assert {*in_run} < {*kept()}
    del recipe
    assert sorted(kept()) == in_run
    program = (
        "import bertkit; kept = bertkit.load_recipe({'task': 'text-classification', 'model': 'm', 'data': "
    )
    program += f"{TRAIN}}}); print(kept.data.folder)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    assert not Path(done.stdout.strip()).exists()


def test_a_folder_for_rows_that_cannot_be_made_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", f"{tmp_path}/none")
    said = r"none: rows and answers cannot be written there(?s:.*)TMPDIR"
    raises(bertkit.DataError, said, bertkit.Recipe, task="text-classification", model="m", data=TRAIN)


# --- a model on frames


def test_a_run_is_scored_on_frames_as_on_its_own_rows(run, tmp_path):
    expected = run.results["splits"]["test"]["metrics"]
    for given in (
        pandas.DataFrame(TEST),
        polars.DataFrame(TEST),
        Dataset.from_list(TEST),
        TEST,
        {"test": TEST},
    ):
        done = bertkit.evaluate(run.folder, given)
        assert (done["split"], done["metrics"]) == ("test", expected)
    both = {"validation": VALIDATION, "test": TEST}
    for given in (both, {"validation": VALIDATION}, {"validation": pandas.DataFrame(VALIDATION)}):
        done = bertkit.evaluate(run.folder, given, split="validation")
        assert done["metrics"] == run.results["splits"]["validation"]["metrics"]
    assert bertkit.evaluate(run.folder, both)["metrics"] == expected
    # a model folder has no data
    assert bertkit.evaluate(run.model, pandas.DataFrame(TEST))["metrics"] == expected
    file = write_rows(tmp_path / "test.jsonl", TEST)
    assert bertkit.evaluate(run.folder, file)["metrics"] == expected
    renamed = pandas.DataFrame(TEST).rename(columns={"text": "review"})
    section = {"source": {"test": str(write_rows(tmp_path / "r.jsonl", renamed.to_dict("records")))}}
    assert bertkit.evaluate(run.model, section | {"columns": {"text": "review"}})["metrics"] == expected
    assert (
        bertkit.evaluate(run.folder, renamed, overrides=["data.columns.text=review"])["metrics"] == expected
    )
    assert (
        bertkit.evaluate(run.folder, {"source": renamed, "columns": {"text": "review"}})["metrics"]
        == expected
    )
    file = {"source": section["source"]["test"], "columns": {"text": "review"}}
    assert bertkit.evaluate(run.folder, file)["metrics"] == expected
    misspelt = {"source": renamed, "colums": {}}
    raises(bertkit.RecipeError, "colums", bertkit.evaluate, run.folder, misspelt)
    dev = str(write_rows(tmp_path / "dev.jsonl", VALIDATION))
    done = bertkit.evaluate(run.folder, {"validation": dev}, split="validation")
    assert done["metrics"] == run.results["splits"]["validation"]["metrics"]
    for wrong, message in (
        ({"validation": 0.5}, "no rows to score"),
        ([{"text": "a", "label": "new"}], "test, row 1: test has 1 row with the label 'new'"),
        (
            [{"text": "a"}],
            r"no column `label`.*to score answers by.*\n.*data\.columns\.COLUMN=NAME",
        ),
        ({"train": TEST}, "no test split; available: train"),
        (pandas.DataFrame({"words": ["a"], "label": ["good"]}), "test: needs a column `text`"),
        (5, "expected rows, found int 5"),
    ):
        raises(bertkit.DataError, message, bertkit.evaluate, run.folder, wrong)


def test_frames_are_answered_as_their_rows_are(run):
    predictor = run.load()
    expected = predictor(TEST)
    for of in (pandas.DataFrame, polars.DataFrame, pa.Table.from_pylist, Dataset.from_list):
        assert predictor(of(TEST)) == expected
        assert list(predictor.stream(of(TEST))) == expected
    frame = pandas.DataFrame(TEST)
    assert predictor(frame["text"]) == predictor(frame["text"].tolist()) == expected
    assert predictor(pandas.DataFrame({"text": ["a cat"], "other": [object()]})) == predictor(["a cat"])
    for columns, found in (
        ({"words": ["a"]}, "words"),
        ({"review": ["a"], "label": ["good"]}, "review, label"),
    ):
        raises(
            bertkit.DataError,
            rf"row 1: no text .*in this row; it has {found}\n",
            predictor,
            pandas.DataFrame(columns),
        )
    assert predictor(frame[:0]) == []


def test_a_frame_is_answered_by_a_frame_of_its_library(run):
    predictor = run.load()
    best = predictor.with_decisions(top_k=1)
    answers = predictor(TEST)
    frame = pandas.DataFrame(TEST, index=[f"r{number}" for number in range(7)])
    table = predictor.frame(frame)
    assert isinstance(table, pandas.DataFrame)
    assert table.index.equals(frame.index)
    assert list(table.columns) == "label score bad good truncated empty unreadable".split()
    assert table["label"].tolist() == [answer["label"] for answer in answers]
    assert table["good"].tolist() == [answer["scores"]["good"] for answer in answers]
    joined = frame.join(table.add_prefix("predicted_"))  # as one looks at it
    assert joined.loc["r3", "predicted_label"] == answers[3]["label"]
    for of, kind in (
        (polars.DataFrame, polars.DataFrame), (pa.Table.from_pylist, pa.Table), (Dataset.from_list, Dataset),
        (lambda rows: [row["text"] for row in rows], pandas.DataFrame),
    ):  # fmt: skip
        other = predictor.frame(of(TEST))
        assert isinstance(other, kind)
        assert [str(each) for each in other["label"]] == table["label"].tolist()
        assert column_names(best.frame(of(TEST[:1]))) == column_names(other)
    assert best.frame(frame[:1])[["good", "bad"]].notna().sum().sum() == 1
    assert predictor.frame(frame["text"]).equals(table)
    assert predictor.frame("a cat").equals(predictor.frame(["a cat"]))
    said = r"row 1: `text` holds \['a cat', 'a dog'\], where text is expected"
    raises(bertkit.DataError, said, predictor.frame, {"text": ["a cat", "a dog"]})
    assert isinstance(predictor.frame(polars.Series(frame["text"].tolist())), polars.DataFrame)
    for empty in (frame[:0], polars.DataFrame(frame)[:0], pa.Table.from_pandas(frame)[:0], []):
        assert column_names(predictor.frame(empty)) == list(table)
    assert len(predictor.frame(frame[:0])) == 0


def test_a_label_called_as_a_column_of_the_answer_keeps_its_prefix(tiny_encoder, tmp_path):
    rows = [{**row, "label": {"good": "score", "bad": "bad"}[row["label"]]} for row in TRAIN]
    data = {"train": rows, "validation": 0.25}
    predictor = bertkit.train(
        "text-classification", tmp_path / "run", data=data, model=tiny_encoder, **QUICK
    ).load()
    names = "label score bad scores.score truncated empty unreadable".split()
    best = predictor.with_decisions(top_k=1)
    assert [list(each.frame(rows[:1])) for each in (predictor, best)] == [names, names]


def test_vectors_are_of_texts_not_of_a_frames_names(tiny_encoder, tmp_path):
    predictor = bertkit.load(tiny_encoder, task="sentence-similarity")
    series = pandas.Series(["a cat", "the dog"], index=[7, 3])
    assert (predictor.encode(series) == predictor.encode(series.tolist())).all()
    assert (predictor.encode(polars.Series(series.tolist())) == predictor.encode(series.tolist())).all()
    vectors = predictor.encode(series)
    for texts in (
        (text for text in series),
        map(str, series),
        dict.fromkeys(series).keys(),
        series.to_numpy(),
    ):
        assert (predictor.encode(texts) == vectors).all()
    for none in ([], iter(())):
        assert (predictor.encode(none).shape, predictor.encode(none).dtype) == (
            (0, vectors.shape[1]),
            vectors.dtype,
        )
    said = r"expected texts, found columns(?s:.*)frame\[\"text\"\]"
    for columns in (series.to_frame("text"), {"text": series.tolist()}):
        raises(bertkit.DataError, said, predictor.encode, columns)
    for other in (np.array("a cat"), 5):
        for call in (predictor.encode, predictor, predictor.frame, partial(explain_rows, predictor)):
            raises(bertkit.DataError, "expected texts or rows, found", call, other)
    wrong = pandas.Series(["a", None, 3])
    raises(
        bertkit.DataError, "row 2: holds None, where text is expected; also in row 3", predictor.encode, wrong
    )
    raises(bertkit.DataError, "expected several texts, found one", predictor.encode, "a cat")


NESTED = [("ner", "token-classification", "polars"), ("qa", "question-answering", "columns")]


@pytest.mark.parametrize(
    ("sample", "task", "library"), [*NESTED, ("similarity", "sentence-similarity", "polars")]
)
def test_rows_of_every_task_are_those_of_their_files(sample, task, library):
    """Words, tags and answers too, which are nested."""
    files = {file.stem: file for file in (samples_folder() / sample).glob("*.json*")}
    rows = {
        split: [row for _, row in read_rows(file, DataSpec(source=str(file)))]
        for split, file in files.items()
    }
    kind = get_task(task)
    recipe = read(
        task, {split: LIBRARIES[library](each) for split, each in rows.items()}, {"model": "some/model"}
    )
    both = (recipe.data, DataSpec(source=f"sample:{sample}"))
    ours, theirs = (read_data(spec, kind, recipe.task) for spec in both)
    assert list(ours.fingerprints) == ["train", "validation", "test"]
    assert ours.fingerprints == theirs.fingerprints
