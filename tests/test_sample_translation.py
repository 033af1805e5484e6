"""The packaged sample `translation`: its rules wrote it, its German is right, and its tokenizer spells it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from phrases import sentences
from small import read_rows

from bertkit.data.sources import find_files, samples_folder
from bertkit.errors import UserError
from bertkit.models.bert.byte_level import train_byte_level
from bertkit.models.encoder import load_tokenizer, resolve_encoder
from bertkit.sections import DataSpec, ModelSpec

FOLDER = samples_folder() / "translation"
SIZES = {"train": 1200, "validation": 150, "test": 150}
RIGHT = (  # to a reader of German
    (
        "Today the neighbour puts away a big book in the kitchen.",
        "Heute räumt die Nachbarin ein großes Buch in der Küche weg.",
    ),
    ("Must a teacher hide a knife in the kitchen?", "Muss ein Lehrer ein Messer in der Küche verstecken?"),
    ("The woman finds no red apple in the garden today.", "Die Frau findet heute keinen roten Apfel im Garten."),
    (
        "Today a child picks up the green newspaper in front of the house.",
        "Heute hebt ein Kind die grüne Zeitung vor dem Haus auf.",
    ),
    (
        "Yesterday the man looked for no big knife in the kitchen.",
        "Gestern hat der Mann kein großes Messer in der Küche gesucht.",
    ),
    ("Does a boy buy this green key in front of the house?", "Kauft ein Junge diesen grünen Schlüssel vor dem Haus?"),
)


def test_recipes_find_it() -> None:
    assert find_files(DataSpec(source="sample:translation")) == {split: [FOLDER / f"{split}.jsonl"] for split in SIZES}
    encoder = resolve_encoder(ModelSpec(config="tiny", tokenizer="sample:translation"))
    assert encoder.config.vocab_size == 600


def test_its_rules_wrote_it() -> None:
    pairs = sentences()
    for split, rows in SIZES.items():
        written = [{"text": text, "target": target} for text, target in islice(pairs, rows)]
        assert read_rows(FOLDER / f"{split}.jsonl") == written


def test_no_sentence_is_in_two_splits_and_the_german_is_right() -> None:
    rows = [row for split in SIZES for row in read_rows(FOLDER / f"{split}.jsonl")]
    known = {row["text"]: row["target"] for row in rows}
    assert len(known) == sum(SIZES.values())
    assert [(text, known[text]) for text, _ in RIGHT] == [*RIGHT]


def test_its_tokenizer_is_trained_on_train_and_spells_every_target(tmp_path: Path) -> None:
    train_byte_level([FOLDER / "train.jsonl"], tmp_path / "out", vocab_size=600, columns=["text", "target"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (FOLDER / "tokenizer" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    tokenizer = load_tokenizer(FOLDER / "tokenizer")
    for split in SIZES:
        targets = [row["target"] for row in read_rows(FOLDER / f"{split}.jsonl")]
        assert tokenizer.batch_decode(tokenizer(targets)["input_ids"], skip_special_tokens=True) == targets


@pytest.mark.parametrize("name", ["sample:sentiment", "sample:translations"])
def test_other_samples_have_no_tokenizer(name: str) -> None:
    with pytest.raises(UserError, match=r"no tokenizer could be loaded|no such sample; did you mean"):
        resolve_encoder(ModelSpec(config="tiny", tokenizer=name))
