"""A frozen encoder in scikit-learn: vectors against transformers' own hidden states, and scikit-learn's own
tools.
"""

import errno
import json
import os
import pickle
import shutil
import warnings
from functools import cache

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from conftest import build_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import get_tags
from small import of_family, raised, raises, write_rows
from transformers import AutoModel, AutoTokenizer

from bertkit.data.word_spans import words
from bertkit.errors import DataError, ModelError
from bertkit.vectors import embed
from bertkit.vectors.embed import embed_file
from bertkit.vectors.features import Features
from bertkit.vectors.layer_reader import LayerReader

TEXTS = [
    "the cat sat on the mat .",
    "a dog",
    "",
    "not very good , but it was fine and awful and bad and good and fine !",
]
TEXTS += ["  blue \n green \u200b dogs , cats", "🎫", "\x00 the \ud83d"]
LONG = "the cat sat on the mat . " * 20  # 140 pieces; the encoder reads 64


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/vectors")


@pytest.fixture
def encoded(monkeypatch):
    """The texts that went through the encoder."""
    seen = []
    real = LayerReader.vectors

    def counting(self, texts):
        seen.extend(texts)
        return real(self, texts)

    monkeypatch.setattr(LayerReader, "vectors", counting)
    return seen


def features(model, **settings):
    return Features(str(model), **({"precision": "fp32"} | settings))


@cache
def hidden(model, text):
    """transformers' own hidden states of one text, `(layers + 1, pieces, size)`."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    inputs = tokenizer(text.replace("\ud83d", "\ufffd"), return_tensors="pt", truncation=True)
    with torch.no_grad():
        states = AutoModel.from_pretrained(model)(**inputs, output_hidden_states=True).hidden_states
    return torch.stack(states)[:, 0].numpy()


POOLS = {
    "mean": lambda states: states.mean(0), "cls": lambda states: states[0], "max": lambda states: states.max(0)
}  # fmt: skip
COMBINES = {
    "concat": lambda states: np.concatenate(list(states), axis=-1), "sum": lambda states: states.sum(0),
    "mean": lambda states: states.mean(0),
}  # fmt: skip


# --- the numbers


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("layers", [(-1,), (0, 2), [-2, 0, -1]])
def test_vectors_are_those_of_transformers(tiny_encoder, pool, combine, layers):
    got = features(tiny_encoder, layers=layers, combine=combine, pool=pool, batch_size=3).fit_transform(TEXTS)
    expected = [POOLS[pool](COMBINES[combine](hidden(tiny_encoder, text)[list(layers)])) for text in TEXTS]
    assert got.dtype == np.float32
    assert_allclose(got, np.stack(expected), atol=1e-5)


def test_words_have_the_vector_of_their_first_piece_in_long_texts_too(tiny_encoder):
    text = "dogs sat \x7f , cats"  # dog ##s sat , cat ##s; the control character has no piece
    (got,) = features(tiny_encoder, pool="none", layers=[1, -1]).fit_transform([text])
    states = COMBINES["concat"](hidden(tiny_encoder, text)[[1, 2]])
    assert [text[start:end] for start, end in words(text)] == "dogs sat \x7f , cats".split()
    assert_allclose(got[[0, 1, 3, 4]], states[[1, 3, 4, 5]], atol=1e-5)
    assert not got[2].any()
    assert got.dtype == np.float32
    empty, long = features(tiny_encoder, pool="none").fit_transform(["", LONG])
    assert empty.shape == (0, 16)
    assert long.shape == (140, 16)
    assert np.abs(long).sum(axis=1).all()
    assert_allclose(long[0], hidden(tiny_encoder, LONG)[-1, 1], atol=1e-5)


def test_a_cut_text_is_counted_and_told_once_even_from_the_cache(tiny_encoder, encoded):
    model = features(tiny_encoder).fit(TEXTS)
    for _ in range(2):
        with pytest.warns(
            UserWarning, match=r"2 of 3 texts \(66.7%\) are cut at 64 tokens; 156 tokens"
        ) as told:
            got = model.transform([LONG, "a dog", LONG])
        assert len(told) == 1
        assert told[0].filename == __file__
    assert encoded == [LONG, "a dog"]
    assert_allclose(got[0], hidden(tiny_encoder, LONG)[-1].mean(0), atol=1e-5)
    vectors, lost = model.vectors([LONG, "a dog"])
    assert lost.tolist() == [78, 0]
    assert vectors.shape == (2, 16)
    with pytest.warns(UserWarning, match="cut at 8 tokens"):
        features(tiny_encoder, max_length=8).fit_transform([LONG])


def test_bf16_is_near_fp32(tiny_encoder):
    one, other = (features(tiny_encoder, precision=p).fit_transform(TEXTS) for p in ("fp32", "bf16"))
    assert 0 < np.abs(one - other).max() < 0.1


def test_a_run_folder_is_its_model(tmp_path, tiny_encoder):
    shutil.copytree(tiny_encoder, tmp_path / "run/model")
    got = features(tmp_path / "run").fit_transform(TEXTS)
    assert_array_equal(got, features(tiny_encoder).fit_transform(TEXTS))


# --- in scikit-learn


TABLE = pd.DataFrame(
    {"text": "good bad fine awful".split() * 6, "age": range(24), "city": "x y x z".split() * 6},
    index=[f"p{n}" for n in range(24)],
)
LABELS = [1, 0, 1, 0] * 6


def test_texts_may_come_as(tiny_encoder):
    model = features(tiny_encoder)
    texts = TEXTS[:4]
    column = np.asarray(texts, dtype=object)[:, None]
    frame = pd.DataFrame({"review": texts})
    for kind in (texts, tuple(texts), np.asarray(texts), column, pd.Series(texts, index=list("dcba")), frame):
        assert_array_equal(model.fit_transform(kind), model.transform(texts))


def test_parameters_count_from_the_next_fit_on(tiny_encoder):
    model = features(tiny_encoder)
    raised(NotFittedError, model.transform, TEXTS)
    before = model.fit(TEXTS).transform(TEXTS)
    model.set_params(layers=[0], pool="cls", combine="sum", cache=False)
    assert_array_equal(model.transform(TEXTS), before)
    assert model.get_feature_names_out()[0] == "layer2_0"
    assert not np.allclose(model.fit_transform(TEXTS), before)
    assert model.get_feature_names_out()[0] == "sum_0"


def test_skops_keeps_a_pipeline(tiny_encoder):
    skops = pytest.importorskip("skops.io")
    columns = [("text", features(tiny_encoder, layers=[0, -1]), "text"), ("city", OneHotEncoder(), ["city"])]
    pipeline = make_pipeline(ColumnTransformer(columns), LogisticRegression()).fit(TABLE, LABELS)
    data = skops.dumps(pipeline)
    untrusted = skops.get_untrusted_types(data=data)
    of_sklearn = [name for name in untrusted if name.startswith("sklearn.")]  # of its older versions
    assert {*untrusted} - {*of_sklearn} == {"bertkit.vectors.features.Features"}
    again = skops.loads(data, trusted=[Features, *of_sklearn])
    assert_array_equal(again.predict_proba(TABLE), pipeline.predict_proba(TABLE))
    assert list(again[0].get_feature_names_out()) == list(pipeline[0].get_feature_names_out())


def test_a_model_that_changes_after_its_features_were_saved_is_an_error(tmp_path):
    folder = build_encoder(tmp_path / "model", seed=0)
    saved = pickle.dumps(features(folder).fit(TEXTS))
    assert pickle.loads(saved).transform(TEXTS).shape == (len(TEXTS), 16)
    build_encoder(folder, seed=1)
    again = pickle.loads(saved)
    for _ in range(2):
        raises(ModelError, "changed since it was fitted", again.transform, TEXTS)
    assert again.fit_transform(TEXTS).shape == (len(TEXTS), 16)


def test_what_was_fitted_is_kept_with_its_precision(tiny_encoder, monkeypatch):
    model = Features(str(tiny_encoder), cache=False).fit(TEXTS)
    other = {"fp32": "bf16", "bf16": "fp32"}[model.reader_.precision]
    monkeypatch.setattr("bertkit.vectors.features.best_precision", lambda device: other)
    data = pickle.dumps(model)
    assert len(data) < (tiny_encoder / "model.safetensors").stat().st_size, (
        "it is pickled without its weights"
    )
    again = pickle.loads(data)
    assert again.precision is None
    assert_array_equal(again.transform(TEXTS), model.transform(TEXTS))


def test_scikit_learn_is_told_that_texts_come_in():
    tags = get_tags(Features("any"))
    assert (tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array) == (
        True,
        True,
        False,
    )
    assert tags.transformer_tags.preserves_dtype == []  # always float32


# --- the cache


def test_the_second_pass_skips_the_encoder(tiny_encoder, encoded):
    first = features(tiny_encoder, layers=[2]).fit_transform(TEXTS)  # -1, by another number
    assert len(encoded) == len(TEXTS)
    again = features(tiny_encoder, batch_size=2).fit(TEXTS)  # how texts are batched decides nothing
    assert_array_equal(again.transform(TEXTS[::-1]), first[::-1])
    assert len(encoded) == len(TEXTS)
    assert "model" not in vars(again.reader_)  # nor were the weights loaded


different = st.fixed_dictionaries(
    {
        "layers": st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=3, unique=True),
        "combine": st.sampled_from(["concat", "sum", "mean"]),
        "pool": st.sampled_from(["mean", "cls", "max"]),
        "max_length": st.sampled_from([8, np.int64(64), None]),
        "precision": st.sampled_from(["fp32", "bf16"]),
    }
)


@settings(max_examples=12)
@given(one=different, other=different)
def test_options_never_hit_each_others_vectors(tiny_encoder, tmp_path_factory, one, other):
    """Whatever was kept before under other options, vectors are those that there are without a cache."""
    texts = ["the cat sat on the mat and the dog ran", "a dog"]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* cut at", UserWarning)
        patch.setenv("BERTKIT_CACHE", str(tmp_path_factory.mktemp("kept")))
        Features(tiny_encoder, **one).fit_transform(texts)
        kept = Features(tiny_encoder, **other).fit_transform(texts)
        alone = Features(tiny_encoder, **other, cache=False).fit_transform(texts)
    assert_allclose(kept, alone, atol=1e-6)


def test_a_changed_model_and_another_device_never_hit(tmp_path, tiny_encoder, monkeypatch):
    folder = build_encoder(tmp_path / "model", seed=0)
    root = tmp_path / "vectors"
    alone = features(folder, cache=False).fit_transform(TEXTS)
    assert not root.exists()  # without a cache nothing is kept
    before = features(folder).fit_transform(TEXTS)
    assert_array_equal(before, alone)
    build_encoder(folder, seed=1)
    after = features(folder).fit_transform(TEXTS)
    assert_array_equal(after, features(folder, cache=False).fit_transform(TEXTS))
    assert not np.allclose(before, after)
    keys = []
    for kind in ("cpu", "meta"):
        monkeypatch.setattr("bertkit.vectors.features.best_device", lambda kind=kind: torch.device(kind))
        keys.append(features(tiny_encoder).fit([]).reader_.key)
    assert keys[0] != keys[1]


# --- what can not be


WRONG = [
    ({"combine": "product"}, "combine: expected one of 'concat', 'sum', 'mean', found 'product'"),
    ({"pool": "first"}, "pool: expected .* found 'first'"),
    ({"precision": "int8"}, "precision: expected .* found 'int8'"),
    ({"max_length": 4}, "max_length: expected an integer from 8 on, found 4"),
    ({"max_length": 65}, "65, but .* at most 64"),
    ({"batch_size": 0}, "batch_size: expected an integer from 1 on, found 0"),
    ({"batch_size": True}, "batch_size: expected an integer from 1 on, found True"),
    *(
        ({"layers": value}, f"layers: expected a list of integers, .*found {value}")
        for value in (-1, None, {-1})
    ),
    ({"layers": []}, "layers"),
    ({"layers": [1.5]}, "layers"),
    ({"layers": [3, -4]}, "layers: no layer 3, -4: the encoder has 2"),
    ({"layers": [-1, 2]}, "layers: .*twice"),
    ({"model": ""}, "model: expected .* found ''"),
    ({"model": "no such folder/really/not"}, "model"),
    ({"pool": "x", "combine": "y", "layers": "z"}, "(?s)combine: .*pool: .*layers: "),
]


def test_parameters_that_can_not_be(tiny_encoder, subtests):
    for wrong, message in WRONG:
        with subtests.test(message), pytest.raises(ModelError, match=message):
            Features(**({"model": str(tiny_encoder)} | wrong)).fit(TEXTS)


NO_TEXT = [
    ("one text", "expected one column of texts, found 'one text'"),
    (TABLE, "3 columns"),
    (TABLE[["text", "city"]].to_numpy(), "2 columns"),
    ([["a"], ["b", "c"]], "rows of different sizes|row 1"),
    (5, "expected one column of texts, found 5"),
    (["a", None, "b", float("nan"), 5], "row 2: .* None(.|\n)*row 4: .* nan(.|\n)*row 5: .* 5"),
    (pd.Series(["a", None]), "row 2: .* (nan|None)"),
    (pd.DataFrame({"text": ["a", np.nan]}), "row 2: .* nan"),
]


def test_what_is_no_text_and_no_texts_at_all(tiny_encoder, subtests):
    for texts, message in NO_TEXT:
        for fitted in (features(tiny_encoder).fit, features(tiny_encoder).fit(["a"]).transform):
            with subtests.test(message), pytest.raises(DataError, match=message):
                fitted(texts)
    assert features(tiny_encoder, layers=[0, 1]).fit([]).transform([]).shape == (0, 32)
    assert features(tiny_encoder, pool="none").fit([]).transform([]) == []


# --- files


def rows(count=11):
    made = [{"text": TEXTS[n % 4] + " a" * n, "n": n, "tags": ["x"] * (n % 3)} for n in range(count)]
    return [row | ({"late": 0.5} if n == 9 else {}) for n, row in enumerate(made)]


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(embed, "CHUNK", 4)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv"])
def test_a_file_becomes_parquet_with_its_own_columns(tiny_encoder, tmp_path, kind):
    table = pd.DataFrame(rows()).to_csv(columns=["text", "n"], index=False)
    content = {".jsonl": rows(), ".json": json.dumps(rows()), ".csv": table}[kind]
    file = write_rows(tmp_path / f"in{kind}", content)
    output = tmp_path / "out.parquet"
    model = features(tiny_encoder).fit([])
    assert embed_file(model.transform, file, output) == 11
    table = pq.read_table(output)
    names = ["text", "n"] if kind == ".csv" else "text n tags late".split()
    assert table.column_names == [*names, "vector"]
    assert str(table.schema.field("vector").type) == "fixed_size_list<element: float>[16]"
    expected = [{name: row.get(name) for name in names} for row in rows()]
    expected = [row | {"n": str(row["n"])} for row in expected] if kind == ".csv" else expected
    assert table.drop_columns("vector").to_pylist() == expected
    assert_array_equal(np.stack(table["vector"].to_numpy()), model.transform([r["text"] for r in rows()]))
    assert pq.ParquetFile(output).num_row_groups == 3
    again = tmp_path / "again.parquet"  # parquet in, parquet out
    pq.write_table(table.drop_columns("vector"), tmp_path / "in.parquet")
    assert embed_file(model.transform, tmp_path / "in.parquet", again) == 11
    assert pq.read_table(again).equals(table)


@pytest.mark.usefixtures("small_chunks")
def test_a_file_becomes_npy(tiny_encoder, tmp_path):
    file = write_rows(
        tmp_path / "in.jsonl", [{"t": row["text"], "odd": row["n"] or "zero"} for row in rows()]
    )
    model = features(tiny_encoder).fit([])
    assert embed_file(model.transform, file, tmp_path / "out.npy", column="t") == 11
    expected = model.transform([row["text"] for row in rows()])
    assert_array_equal(np.load(tmp_path / "out.npy"), expected)


NO_PARQUET = "column `x`: cannot be written as parquet"
UNFIT = [  # rows, the file to write, and what the message says
    (rows(), "out.csv", r"cannot write \.csv"),
    (rows(), "out", "cannot write a file without a suffix"),
    ([{"sentence": "a"}], "out.npy", "in.jsonl:1: no column 'text'; found sentence"),
    ([{"text": "a"}, {"text": None}, {"text": 5}], "out.npy",
     "in.jsonl:2: 'text' holds None, where text is expected; also in .*in.jsonl:3"),
    ([{"text": "a", "vector": 1}], "out.parquet", "have a column `vector` already"),
    ([{"text": "a", "x": 1}, {"text": "a", "x": "one"}], "out.parquet", NO_PARQUET),
    ([*rows(), {"text": "a", "n": "twelve"}], "out.parquet", "column `n`: cannot be written as parquet: .*twelve"),
    ([*rows(), *rows(), {"text": "a", "n": "x"}][10:], "out.parquet", "cannot be written as parquet: .* n "),
    ([{"text": "a", "x": 2**70}], "out.parquet", NO_PARQUET),
    ([{"text": "a", "x": {}}], "out.parquet", "cannot be written as parquet"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "output", "message"), UNFIT)
@pytest.mark.usefixtures("small_chunks")
def test_files_that_can_not_be(tiny_encoder, tmp_path, given, output, message):
    file = write_rows(tmp_path / "in.jsonl", given)
    raises(DataError, message, embed_file, features(tiny_encoder).fit([]).transform, file, tmp_path / output)
    assert [path.name for path in tmp_path.iterdir() if path.name != "vectors"] == ["in.jsonl"]


@pytest.mark.usefixtures("small_chunks")
def test_a_file_that_grows_meanwhile_is_no_file(tmp_path):
    file = write_rows(tmp_path / "in.jsonl", rows())

    def encode(texts):
        with file.open("a") as more:
            more.write('{"text": "one more"}\n')
        return np.zeros((len(texts), 3), dtype=np.float32)

    raises(
        DataError, r"in\.jsonl: has changed while it was read", embed_file, encode, file, tmp_path / "out.npy"
    )
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", ["out.parquet", "out.npy"])
def test_what_fails_half_way_leaves_the_old_output(tmp_path, name):
    file = write_rows(tmp_path / "in.jsonl", rows())
    output = tmp_path / name
    output.write_text("old")
    calls = []

    def encode(texts):
        calls.append(len(texts))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return np.zeros((len(texts), 3), dtype=np.float32)

    raises(OSError, "No space left", embed_file, encode, file, output)
    assert calls == [4, 4]
    assert output.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", name]


@pytest.mark.parametrize("kind", ["convbert", "fnet"])
@pytest.mark.parametrize("pool", ["mean", "none"])
def test_a_vector_depends_on_its_text_alone(kind, pool, tiny_encoder, tmp_path):
    """The states of these encoders change with the padding of a batch."""
    folder = of_family(kind, tiny_encoder, tmp_path / kind, initializer_range=0.5)
    features = Features(folder, pool=pool, cache=False, precision="fp32").fit(TEXTS)
    both = features.transform(["good", "the cat sat on the mat and it was very very good"])
    assert_allclose(both[0], features.transform(["good"])[0], rtol=1e-5, atol=1e-6)


def test_an_encoder_of_more_than_text_or_with_a_decoder_is_refused(tiny_encoder, tmp_path):
    folder = of_family("bros", tiny_encoder, tmp_path / "bros", dim_bbox=8)
    said = (
        r"(?s)this bros cannot read its tokenizer's inputs.*further inputs and fixed lengths are not "
        r"supported"
    )
    raises(ModelError, said, Features(folder, cache=False).fit(TEXTS[:2]).transform, TEXTS[:2])
    sizes = dict.fromkeys(
        "encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads".split(), 2
    )
    folder = of_family(
        "bart", tiny_encoder, tmp_path / "bart", d_model=16, max_position_embeddings=64, **sizes
    )
    raises(ModelError, "a bart has a decoder after its encoder", Features(folder).fit, TEXTS[:2])
