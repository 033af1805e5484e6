"""Parallel texts, NAME.en and NAME.de: rows, splits and their locations, and errors with file and line."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from bertkit.data import load
from bertkit.data.table import Data
from bertkit.errors import DataError
from bertkit.recipe.recipe import load_recipe
from bertkit.sections import DataSpec
from bertkit.tasks.text2text_generation import Text2TextGeneration

COLUMNS = {"text": "en", "target": "de"}
PAIRS = [("A dog.", "Ein Hund."), ("A cat\u2028sleeps.", "Eine Katze schläft."), ("Tea", "Tee")]


def write(folder: Path, name: str, pairs: list[tuple[str, str]] = PAIRS, ends: str = "\n") -> Path:
    folder.mkdir(exist_ok=True)
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_bytes("".join(pair[side] + ends for pair in pairs).encode())
    return folder / name


def read(source: Any, **settings: Any) -> Data:
    spec = DataSpec.model_validate({"source": source, "columns": COLUMNS, **settings})
    return load(spec, Text2TextGeneration.schema)


def pairs(data: Data, split: str) -> list[tuple[str, str]]:
    return list(zip(data.rows[split]["text"][:], data.rows[split]["target"][:], strict=True))


def refused(source: Any, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(str(source) if isinstance(source, Path) else source, **settings)
    return str(caught.value)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_folder_has_a_pair_of_files_per_split(ends: str, tmp_path: Path) -> None:
    write(tmp_path, "train", ends=ends)
    write(tmp_path, "val", PAIRS[:1], ends)
    (tmp_path / "train.fr").write_text("of another pair\n")
    data = read(str(tmp_path))
    assert pairs(data, "train") == PAIRS
    assert pairs(data, "validation") == PAIRS[:1]
    assert data.origins["train"][2] == f"{tmp_path}/train.{{de,en}}:3"


def test_files_may_be_compressed_and_named_otherwise(tmp_path: Path) -> None:
    stem = write(tmp_path, "corpus.tok")
    packed = stem.with_name("corpus.tok.de")
    packed.with_name("corpus.tok.de.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    assert pairs(read(str(stem)), "train") == PAIRS
    assert pairs(read({"train": str(stem), "test": [str(stem), str(stem)]}), "test") == PAIRS * 2
    assert pairs(read(str(tmp_path), splits={"train": "corpus.tok"}), "train") == PAIRS


def test_a_recipe_names_them_relative_to_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "data", "train")
    write(tmp_path / "data", "dev")
    recipe = tmp_path / "recipe.yaml"
    for source in ("data", "{train: data/train, validation: data/dev}"):
        given = f"{{source: {source}, columns: {{text: en, target: de}}}}"
        recipe.write_text(f"task: {{name: text2text-generation}}\nmodel: {{name: x/y}}\ndata: {given}\n")
        data = load(load_recipe(recipe).data, Text2TextGeneration.schema)
        assert [*data.rows] == ["train", "validation"]
        assert pairs(data, "validation") == PAIRS


def test_what_is_wrong_names_file_and_line(tmp_path: Path) -> None:
    stem = write(tmp_path, "train")
    assert "train.de, train.en" in refused(tmp_path, columns={})
    german = tmp_path / "train.de"
    german.write_text("Ein Hund.\nEine Katze.\n")
    assert refused(stem).startswith(f"{german}:2: the file ends here, but another one has 3 lines")
    german.write_bytes(b"Ein Hund.\nM\xe4use\nTee\n")
    assert f"{german}:2: byte 0xE4" in refused(stem)
    english = tmp_path / "train.en"
    text = english.read_bytes()
    english.write_bytes(b"A dog.\n\xffA cat sleeps.\nT\xffea\n")
    told = refused(stem)
    assert all(f"{place}: byte 0x" in told for place in (f"{german}:2", f"{english}:2", f"{english}:3"))
    english.write_bytes(text)
    german.unlink()
    assert f"{tmp_path}/train.en: no {german}" in refused(stem)
    assert "is a folder" in refused({"train": "."}, columns={"text": "a/b", "target": "de"})
