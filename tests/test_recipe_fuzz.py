"""Whatever is called a recipe gives a Recipe or a RecipeError, and a recipe that is written reads back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertkit.errors import RecipeError
from bertkit.recipe.recipe import Recipe, load_recipe, to_yaml
from bertkit.text import escape_controls

RECIPE = """\
# a recipe with every section
task: {name: text-classification, kind: multi-label, labels: {0: a, "1": 'b'}, thresholds: 0.5}
model:
  name: some/model
  revision: "12345678"
data:
  source: sample:sentiment
  splits: {train: tr, test: te}
  columns: {text: sentence}
  limit: {train: 10}
training:
  learning_rate: 2e-5
  optim: adafactor
  report_to: [none]
  lr_scheduler_kwargs: {min_lr: 1e-6}
seeds: [1, 2]
early_stopping: {patience: 2}
peft: {target_modules: [query]}
expected:
  accuracy: [0.9, 1]
  date: 2026-11-01
  note: |
    two
    lines
"""

# what YAML gives a meaning, what recipes are made of, and what breaks parsers
PIECES = [
    ": ", ":", "- ", "? ", ", ", "[", "]", "{", "}", "'", '"', "#", " #", "|", ">", "|2", "&a ", "*a", "!", "!!", "%",
    "@", "\n", "\n\n", "\n  ", "  ", "\t", "\r", "\r\n", "---", "\n---\n", "...", "<<: ", "=", "~", "\\", '"\\x41"',
    "\\U00110000", "!!python/object:os.system ", "!!binary ", "!!set ", "%YAML 1.1\n", "%YAML 9.9\n",
    "%TAG ! tag:x,2000:\n", "%FOO\n", "null", "true", "no", "1", "-1", "2e-5", "1e999", "0o17", "0x1F", ".inf", ".nan",
    "9" * 200, "1_000", "'1'", "\0", "\x07", "\x85", "\u2028", "\ufeff", "\ud800", "é", "😀", "a" * 200, "[" * 30,
    "{a: " * 30, "- " * 30,
    *"task model data training seeds name source text-classification learning_rate ./x.csv".split(),
]  # fmt: skip
fragments = st.one_of(st.sampled_from(PIECES), st.text(max_size=4), st.integers(-3, 300).map(str))
snippets = st.lists(fragments, max_size=12).map("".join)
keys = st.sampled_from(
    "task.name task.kind task.labels task.class_weights task.thresholds task.stride task.overflow model.name "
    "model.max_length data.source data.source.train data.limit data.header data.columns training.learning_rate "
    "training.warmup_ratio training.seed training.optim training.report_to training.metric_for_best_model seeds "
    "early_stopping early_stopping.patience peft freeze expected verify training task model data ~model "
    "~training.optim ~data.source x.y".split()
)
overrides = st.one_of(snippets, st.builds("{}={}".format, keys, snippets), keys)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "my.yaml"


def read(file: Path, content: bytes, *overrides: str) -> None:
    """Load it; everything but a recipe and a RecipeError fails the test."""
    file.write_bytes(content)
    error = None
    try:
        recipe = load_recipe(file, overrides)
    except RecipeError as caught:
        error = caught
    if error is None:
        file.write_text(to_yaml(recipe), encoding="utf-8")
        assert load_recipe(file) == recipe
    else:
        assert error.problems
        assert all(problem.where and problem.what for problem in error.problems)
        assert all(line == escape_controls(line) for line in str(error).split("\n"))


@settings(max_examples=60)
@given(st.one_of(st.binary(max_size=200), snippets.map(lambda text: text.encode(errors="surrogatepass"))))
@example(b"a: &a [*a]")
@example(b"? " * 500)
@example(b"- " * 5000)
@example(b"[" * 50_000)
@example(b"&a " * 1000)
@example(b"a:\n" * 2000)
@example(b'"\\' * 1000)
@example(b"!" * 10_000)
@example(b"%YAML 1." + b"9" * 5000 + b"\n---\na: 1")
@example(RECIPE.encode("utf-16"))
def test_any_bytes(file: Path, content: bytes) -> None:
    read(file, content)


@settings(max_examples=60)
@given(st.data())
def test_a_recipe_with_a_piece_changed(file: Path, data: st.DataObject) -> None:
    text = RECIPE
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(snippets) + text[end:]
    read(file, text.encode(errors="surrogatepass"))


@settings(max_examples=60)
@given(st.lists(overrides, min_size=1, max_size=4))
@example(["data.source=~nobody/x.csv"])
@example(["model.name=" + "x/" * 3000])
@example(["data.source=" + "x" * 5000 + ".csv"])
@example(["a." * 5000 + "b=1"])
@example(["seeds=[" + "9" * 100 + "]"])
@example(["task.temperature=" + "9" * 100])
@example(["training.learning_rate=" + "9" * 100])
def test_any_overrides(file: Path, words: list[str]) -> None:
    read(file, RECIPE.encode(), *words)


# plain data, by where it is put; text without what no file can hold
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
words = st.one_of(texts, st.sampled_from(PIECES[:-10])).filter(lambda text: "\0" not in text and "\ud800" not in text)
numbers = st.one_of(st.integers(-(10**30), 10**30), st.floats(allow_nan=False, allow_infinity=False))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=8,
)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@settings(max_examples=60)
@given(
    task=st.fixed_dictionaries(
        {"name": st.just("text-classification")},
        optional={
            "labels": st.one_of(
                st.none(),
                st.lists(words.filter(bool), unique=True, min_size=1),
                st.dictionaries(words, words.filter(bool), min_size=1),
            ),
            "temperature": st.one_of(st.none(), st.floats(1e-3, 1e9), st.integers(1, 10)),
            "stride": st.integers(0, 10**9),
        },
    ),
    data=st.fixed_dictionaries(
        {"source": st.just("sample:sentiment")},
        optional={
            "subset": words,
            "columns": st.dictionaries(words, words),
            "header": st.one_of(st.booleans(), st.lists(words)),
            "delimiter": st.characters(codec="utf-8", exclude_characters="\0"),
            "limit": st.one_of(st.none(), st.integers(1, 10**30), st.dictionaries(st.just("train"), st.integers(1, 9))),
        },
    ),
    training=st.fixed_dictionaries(
        {},
        optional={
            "learning_rate": positive,
            "run_name": words,
            "report_to": st.one_of(st.none(), st.lists(words)),
            "lr_scheduler_kwargs": st.dictionaries(words, anything, max_size=3),
        },
    ),
    expected=st.one_of(
        st.none(), st.dictionaries(words, st.one_of(words, st.integers(), st.just([0.5, 0.75])), max_size=4)
    ),
)
def test_what_is_written_reads_back_equal(file: Path, **sections: Any) -> None:
    recipe = Recipe.model_validate({"model": {"name": "some/model"}, **sections})
    file.write_bytes(to_yaml(recipe).encode())
    assert load_recipe(file) == recipe
    assert to_yaml(load_recipe(file)) == to_yaml(recipe)
