"""The packaged samples: recipes find them, their tasks read them without complaint, and their pages count right."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import small

from bertkit.data import check
from bertkit.data.sources import open_source, samples_folder
from bertkit.errors import UserError
from bertkit.models.bert.byte_level import train_byte_level
from bertkit.models.encoder import load_tokenizer, resolve_encoder
from bertkit.sections import DataSpec, ModelSpec
from bertkit.tasks import get_task

SAMPLES = {  # task, suffix of its files, the column of its page that counts rows
    "sentiment": ("text-classification", "jsonl", None),
    "ner": ("token-classification", "jsonl", 0),
    "personal-data": ("token-classification", "jsonl", 0),
    "qa": ("question-answering", "json", 1),
    "retrieval": ("retrieval", None, None),  # a split has the documents that no query is judged with, too
    "similarity": ("sentence-similarity", "jsonl", 0),
    "translation": ("text2text-generation", "jsonl", 0),
}
# Of all files. Whoever changes one reads the new rows: no two may be alike, and names, grades and answers are right.
DIGEST = "67c8e4652943c343e4928da647eb10dbb3ea9ec7f31593277565655cd94ced66"


def test_they_are_the_files_that_were_proofread() -> None:
    files = sorted(path for path in samples_folder().rglob("*") if path.is_file())
    content = b"".join(str(path.relative_to(samples_folder())).encode() + path.read_bytes() for path in files)
    assert hashlib.sha256(content).hexdigest() == DIGEST


@pytest.mark.parametrize("name", SAMPLES)
def test_its_task_reads_it_and_its_page_counts_it(name: str) -> None:
    folder, (task, suffix, column) = samples_folder() / name, SAMPLES[name]
    splits = ("train", "validation", "test")
    if suffix:
        parts = open_source(DataSpec(source=f"sample:{name}"), None, ())
        names = {split: [part.name for part in own] for split, own in parts.items()}
        assert names == {split: [str(folder / f"{split}.{suffix}")] for split in splits}
    kind = get_task(task)
    data = small.read_data(DataSpec(source=f"sample:{name}"), kind, kind.Options.model_validate({"name": task}))
    assert [finding.what for finding in check(data) if finding.level in ("fail", "severe")] == []
    for split in splits if column is not None else ():
        (cells,) = re.findall(rf"^\| {split} \|(.*)\|$", (folder / "README.md").read_text(encoding="utf-8"), re.M)
        assert int(cells.split("|")[column].replace(",", "")) == len(data.rows[split])


def test_the_tokenizer_of_translations_is_that_of_its_command(tmp_path: Path) -> None:
    folder = samples_folder() / "translation"
    train_byte_level([folder / "train.jsonl"], tmp_path / "out", vocab_size=600, columns=["text", "target"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (folder / "tokenizer" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    tokenizer = load_tokenizer(folder / "tokenizer")
    targets = [row["target"] for row in small.read_rows(folder / "test.jsonl")]
    assert tokenizer.batch_decode(tokenizer(targets)["input_ids"], skip_special_tokens=True) == targets
    assert resolve_encoder(ModelSpec(config="tiny", tokenizer="sample:translation")).config.vocab_size == 600


@pytest.mark.parametrize("name", ["sample:sentiment", "sample:translations"])
def test_other_samples_have_no_tokenizer(name: str) -> None:
    with pytest.raises(UserError, match=r"no tokenizer could be loaded|no such sample; did you mean"):
        resolve_encoder(ModelSpec(config="tiny", tokenizer=name))
