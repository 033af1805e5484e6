"""A folder of texts by label: reviews/positive/*.txt, or train/positive/*.txt as in the archive of IMDB."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from bertkit.data.reader import read_text
from bertkit.data.table import NumberedRows
from bertkit.sections import DataSpec

UNLABELLED = ("unsup", "unlabeled", "unlabelled")  # folders of texts that are left out: IMDB has one
Texts = Mapping[str, Sequence[Path]]  # label -> its files, sorted


def text_folders(folder: Path, names: Collection[str]) -> dict[str, Texts]:
    """Split at the source -> label -> its texts; empty where the folder holds something else.

    names: of splits. Without a folder of such a name, all texts are train.
    """
    splits = {part.name: _by_label(part) for part in _folders(folder) if part.name in names}
    return {name: texts for name, texts in (splits or {"train": _by_label(folder)}).items() if texts}


def text_rows(texts: Texts, spec: DataSpec) -> NumberedRows:
    """The rows of a split, of each label in turn: the folder of a text is its `label`, its path the `id`.

    Raises DataError with what is wrong with their bytes.
    """
    files = filter(None, chain.from_iterable(zip_longest(*texts.values())))
    for number, file in enumerate(files, 1):
        label = file.parent.name
        text = read_text(file, spec).strip()
        yield number, {"id": f"{label}/{file.name}", "text": text, "label": label}


def _folders(folder: Path) -> Iterator[Path]:
    return (part for part in sorted(folder.iterdir()) if part.is_dir() and part.name[0] != ".")


def _by_label(folder: Path) -> Texts:
    """Label -> its texts; empty where a folder holds none, or there is only one."""
    labels = [part for part in _folders(folder) if part.name not in UNLABELLED]
    texts = {part.name: sorted(part.glob("*.txt")) for part in labels}
    return texts if len(texts) > 1 and all(texts.values()) else {}
