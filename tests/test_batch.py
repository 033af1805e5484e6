"""`bertkit.batch`: the answers and vectors of a predictor, whatever a batch is made of, and in any
process.
"""

import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from cases import BY_ID, TEXTS
from datasets import Dataset
from finished import finished, saved
from small import raises

import bertkit
from bertkit.errors import DataError, Problem, RowsError, UserError
from bertkit.inference.display import flat
from bertkit.inference.predictor import load
from bertkit.inference.runner import Runner

SCALING = Path(__file__).resolve().parent.parent / "docs/scaling.md"
COLUMNS = {"id": list(range(len(TEXTS))), "text": TEXTS}
KINDS = {
    "lists": dict,
    "arrays": lambda columns: {
        name: np.array(values, dtype=object if isinstance(values[0], list) else None)
        for name, values in columns.items()
    },
    "pandas": lambda columns: pd.DataFrame(columns, index=[f"row {n}" for n in columns["id"]]),
    "polars": pl.DataFrame,
    "arrow": pa.table,
}


@pytest.fixture(scope="module")
def model(tiny_encoder, tmp_path_factory):
    return finished(BY_ID["single-label"], tiny_encoder, tmp_path_factory.mktemp("batch") / "run").model


@pytest.fixture(scope="module")
def predictor(model):
    return load(model)


@pytest.fixture(scope="module")
def similar(tiny_encoder, tmp_path_factory):
    case = replace(
        BY_ID["similarity-mse"], options={**BY_ID["similarity-mse"].options, "query_prefix": "very "}
    )
    return finished(case, tiny_encoder, tmp_path_factory.mktemp("similar") / "run").model


def columns_of(given):
    """The columns of a batch as lists."""
    if isinstance(given, pa.Table):
        return dict(given.to_pydict())
    if isinstance(given, pl.DataFrame):
        return given.to_dict(as_series=False)
    return {name: values if isinstance(values, list) else values.tolist() for name, values in given.items()}


# --- answers


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_predictor_beside_the_own_columns(kind, model, predictor):
    given = KINDS[kind](COLUMNS)
    made = bertkit.batch(model)(given)
    assert type(made) is type(given)
    told = [dict(flat(answer, "answer.")) for answer in predictor(TEXTS)]
    assert len({row["answer.scores.good"] for row in told}) == len(TEXTS)  # a wrong order would show
    assert columns_of(made) == COLUMNS | {name: [row[name] for row in told] for name in told[0]}
    assert columns_of(given) == COLUMNS


def test_an_index_types_columns_and_decisions_are_kept(model, predictor):
    frame = pd.DataFrame(COLUMNS, index=[0, 0, 1, 1, 2, 2, 3, 3])
    answers = bertkit.batch(model)
    assert answers(frame).index.equals(frame.index)
    made = answers(KINDS["arrays"](COLUMNS))
    assert made["answer.score"].dtype == np.float64
    assert made["answer.truncated"].dtype == bool
    assert answers({"id": [], "text": []}).keys() == answers(COLUMNS).keys()
    limit = sorted(answer["score"] for answer in predictor(TEXTS))[4]
    answers = bertkit.batch(model, columns={"text": "body"}, decisions={"threshold": limit})
    made = answers({"body": TEXTS, "text": ["bad"] * len(TEXTS)})
    told = predictor.with_decisions(threshold=limit)(TEXTS)
    assert made["answer.score"] == [answer["score"] for answer in told]
    assert made["answer.label"] == [answer["label"] for answer in told]
    assert made["answer.label"].count(None) == 4


def test_a_column_that_is_not_there_is_not_another(model):
    mapped = bertkit.batch(model, columns={"text": "bodyy"})
    raises(DataError, "no column 'bodyy'; found text, body", mapped, {"text": ["a"], "body": ["b"]})


# --- columns and types, which are those of every batch


def types_of(made):
    """The columns of a batch with their types; lists have none."""
    if isinstance(made, dict):
        return {name: getattr(values, "dtype", None) for name, values in made.items()}
    if isinstance(made, pd.DataFrame):
        return dict(made.dtypes)
    return (
        dict(zip(made.schema.names, made.schema.types, strict=True))
        if isinstance(made, pa.Table)
        else made.schema
    )


def parts(kind, columns):
    """All rows of these columns as one batch, none, and the first and the last alone."""
    count = len(next(iter(columns.values())))
    whole = KINDS[kind]({"id": [*range(count)], **columns})
    chosen = [slice(None), slice(0), slice(1), slice(count - 1, count)]
    if isinstance(whole, dict):
        return [{name: values[rows] for name, values in whole.items()} for rows in chosen]
    return [whole[rows] for rows in chosen]


def test_labels_that_the_model_never_gives_are_text(predictor, monkeypatch):
    never = predictor.with_decisions(threshold=1.0)
    monkeypatch.setattr("bertkit.inference.batch.load", lambda *_, **__: never)
    made = bertkit.batch("a model")(pa.table(COLUMNS))["answer.label"]
    assert (made.type, made.null_count) == (pa.string(), len(TEXTS))


def without_none(rows):
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


LABELLED = ("single-label", "multi-label")
COVERED = ("single-label", "regression")
OTHERS = "multi-label qa qa-windows-or-none ner-crf words-crf-windows similarity-labels similarity-in-batch".split()
OTHERS += "ranking-binary text-to-text ner-document mlm-nsp".split()


@pytest.mark.parametrize(
    ("case", "decisions"),
    [
        *((case, {}) for case in (*COVERED, *OTHERS)),
        *((case, {"coverage": 0.5}) for case in COVERED),
        *((case, {"top_k": 1}) for case in LABELLED),
        ("single-label", {"top_k": 1, "coverage": 0.5}),
    ],
)
def test_columns_and_types_are_the_same_in_every_batch_of_a_task(case, decisions, tiny_encoder, tmp_path):
    known = BY_ID[case]
    task = saved(known, tiny_encoder, tmp_path / "model")
    read = {*task.schema.context}.union(*task.inputs)
    columns = {name: values for name, values in known.columns.items() if name in read}
    if case == "mlm-nsp":
        columns["text"] = [text if n % 3 else f"{text} [MASK]" for n, text in enumerate(columns["text"])]
    answers = bertkit.batch(tmp_path / "model", decisions=decisions)
    predictor = load(tmp_path / "model").with_decisions(**decisions)
    for kind in ("arrow", "pandas", "arrays"):
        types = []
        for given in parts(kind, columns):
            own = answers(given)
            types.append(types_of(own))
            if kind == "arrow" and len(given):
                told = [dict(flat(answer, "answer.")) for answer in predictor(given.select(list(columns)))]
                found = own.drop_columns(given.column_names).to_pylist()
                assert {*found[0]} >= {name for each in told for name in each}
                assert without_none(found) == without_none(told)
        assert all(list(each.items()) == list(types[0].items()) for each in types), kind
        if case.startswith("qa") and kind == "arrow":
            assert types[0]["answer.start"] == pa.int64()


# --- vectors


@pytest.mark.parametrize("side", ["text", "query", "document"])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_predictor(kind, side, similar):
    wanted = load(similar).encode(TEXTS, side)
    made = bertkit.batch(similar, side=side)(KINDS[kind](COLUMNS))
    if kind == "arrow":
        assert made.schema.field("vector").type == pa.list_(pa.float32(), 6)
    vectors = np.array(
        made["vector"].to_pylist() if kind == "arrow" else list(made["vector"]), dtype=np.float32
    )
    assert vectors.tobytes() == wanted.tobytes()
    assert (wanted != load(similar).encode(TEXTS, "text")).any() == (side == "query")


def test_vectors_of_a_column_of_another_name(similar):
    answers = bertkit.batch(similar, side="text", columns={"text": "body"})
    assert answers({"body": TEXTS})["vector"].tobytes() == load(similar).encode(TEXTS).tobytes()
    empty = bertkit.batch(similar, side="text")(pa.table(COLUMNS)[:0])
    assert empty.schema.field("vector").type == pa.list_(pa.float32(), 6)
    raises(DataError, "no column 'body'; found id, text", answers, COLUMNS)
    other = bertkit.batch(similar, side="document", columns={"document": "id"})
    raises(DataError, "reads texts, not document", other, COLUMNS)


# --- processes and threads


def test_a_copy_has_the_arguments_alone_and_errors_of_workers_have_their_problems(model):
    answers = bertkit.batch(model, precision="fp32", decisions={"threshold": 0.5})
    new = pickle.dumps(answers)
    made = answers(COLUMNS)
    loaded = vars(answers)["_predictor"]
    assert answers(COLUMNS) == made
    assert vars(answers)["_predictor"] is loaded, "the model is loaded once"
    assert pickle.dumps(answers) == new
    assert len(new) < 1000
    # which Dask hashes one by one
    assert all(pickle.dumps(getattr(answers, each.name)) for each in fields(answers))
    copy = pickle.loads(new)
    assert (copy.source, copy.precision, copy.decisions) == (model, "fp32", {"threshold": 0.5})
    assert copy(COLUMNS) == made
    for error in (
        RowsError([(3, "holds nothing", "Write a text.")], {3: "a.csv:5"}.__getitem__),
        DataError([Problem("here", "is wrong", "Mend it."), Problem("", "so is this")]),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_threads_take_turns(model, predictor, monkeypatch):
    """Tokenizers raise where two threads use one, and Dask's DataFrames run in threads."""
    running = [0]
    most = [0]

    def watched(runner, features, real=Runner.__call__):
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.02)
        made = real(runner, features)
        running[0] -= 1
        return made

    monkeypatch.setattr("bertkit.inference.batch.load", lambda *_, **__: predictor)
    monkeypatch.setattr(Runner, "__call__", watched)
    answers = bertkit.batch(model)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(answers, [COLUMNS] * 4))
    assert most == [1]
    assert all(each == made[0] for each in made)


# --- the lines of docs/scaling.md for Dask; Ray Data and Spark are in test_cluster.py


@pytest.mark.filterwarnings("default")
def test_the_lines_for_dask(model, predictor, tmp_path, monkeypatch):
    pytest.importorskip("dask.dataframe", reason="Dask is not installed: pip install 'dask[dataframe]'")
    import dask

    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews").mkdir()
    for number, start in enumerate((0, 4)):
        part = {name: values[start : start + 4] for name, values in COLUMNS.items()}
        pd.DataFrame(part).to_parquet(tmp_path / "reviews" / f"{number}.parquet")
    (code,) = re.findall(r"^```python\n(.*?)^```$", SCALING.read_text(), re.M | re.S)
    exec(code.replace("runs/sst2", str(model)), {"bertkit": bertkit, "dask": dask})
    rows = pd.read_parquet(tmp_path / "answers").sort_values("id", ignore_index=True)
    told = [dict(flat(answer, "answer.")) for part in (TEXTS[:4], TEXTS[4:]) for answer in predictor(part)]
    assert rows.to_dict("list") == COLUMNS | {name: [row[name] for row in told] for name in told[0]}


# --- what is refused


def test_what_is_refused(model, similar, tiny_encoder, tmp_path):
    data = Dataset.from_dict({"text": ["a"]})
    raises(DataError, "expected a batch", bertkit.batch("no model is loaded"), data)
    said = r"expected a batch.*found \['a text'\](?s:.*)bertkit\.load"
    raises(DataError, said, bertkit.batch("no model is loaded"), ["a text"])
    raises(
        DataError,
        r"a column `answer\.label` already",
        bertkit.batch(model),
        {**COLUMNS, "answer.label": TEXTS},
    )
    raises(
        DataError,
        "a column `vector` already",
        bertkit.batch(similar, side="text"),
        {**COLUMNS, "vector": TEXTS},
    )
    said = r"`text` cannot be stored, with 'a' in row 1, \['b'\] in row 2"
    raises(DataError, said, bertkit.batch(model), {"text": ["a", ["b"]]})
    raises(UserError, "does not compute vectors", bertkit.batch(model, side="text"), COLUMNS)
    ranks = finished(BY_ID["retrieval"], tiny_encoder, tmp_path / "run").model
    raises(
        DataError,
        "ranks the documents of all rows",
        bertkit.batch(ranks),
        {"query": ["a"], "document": ["b"]},
    )
    assert bertkit.batch(ranks, side="document")(COLUMNS)["vector"].shape[0] == len(TEXTS)
