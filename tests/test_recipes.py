"""Every shipped recipe, found by glob: loaded, resolved, round-tripped, and run for two optimizer steps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import small
from clocked import Time

from bertkit.engine.clock import Clock
from bertkit.models.encoder import PACKAGED
from bertkit.recipe.recipe import Recipe, load_recipe
from bertkit.recipe.shipped import shipped_recipes
from bertkit.sections import seconds
from bertkit.tasks import TASKS
from bertkit.training import seed
from bertkit.training.train import train

ROOT = Path(__file__).resolve().parent.parent
SEVERAL = "multi-task"  # the folder of recipes of several tasks
FILES = sorted(file for file in (ROOT / "recipes").glob("*/*.yaml") if file.parent.name != SEVERAL)
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

COLUMNS = ("text", "text_a", "text_b", "query", "document", "label", "labels", "score", "target")


def values(column: str, number: int) -> str:
    """What a small file has in a canonical column."""
    side = number % 2
    if column == "label":
        return str(side)
    if column == "query":
        return small.text(number // 2, 0).strip()
    if column == "labels":
        return str(side) if number % 3 else "0|1"
    return f"{5.0 * side:.1f}" if column == "score" else small.text(number, side).strip()


def write_questions(folder: Path) -> list[str]:
    """A small file in SQuAD's layout, and the overrides that put it in the place of the recipe's."""
    paragraphs = []
    for number in range(8):
        context = small.text(number, number % 2)
        answer = {"text": "was", "answer_start": context.index("was")}
        question = {"id": str(number), "question": "the cat ?", "answers": [answer] if number % 4 else []}
        paragraphs.append({"context": context, "qas": [question]})
    path = folder / "small.json"
    path.write_text(json.dumps({"version": "x", "data": [{"title": "a", "paragraphs": paragraphs}]}))
    return [f"data.source.{split}={path}" for split in ("train", "validation")]


def write_sentences(folder: Path, recipe: Recipe) -> list[str]:
    """Small CoNLL files with as many fields as the recipe names, and the overrides that put them in its place."""
    spec, overrides = recipe.data, []
    fields = spec.header if isinstance(spec.header, list) else ["tokens", "tags"]
    for split in spec.source:
        lines = [(spec.delimiter or " ").join(["-DOCSTART-", *["x"] * (len(fields) - 1)]), ""]
        for number in range(16):
            for place, word in enumerate(small.text(number, number % 2).split()):
                tag = "B-LOC" if place == 1 else "O"
                values = {"tokens": word, "tags": tag}
                lines.append((spec.delimiter or " ").join(values.get(field, "x") for field in fields))
            lines.append("")
        path = folder / f"{split}.conll"
        path.write_text("\n".join(lines))
        overrides.append(f"data.source.{split}={path}")
    return overrides


def write_documents(folder: Path, recipe: Recipe) -> list[str]:
    """Small documents, and the overrides that put them in the place of the recipe's."""
    path = folder / "small.txt"
    path.write_text("\n\n".join(f"{small.text(n, 0)}.\n{small.text(n + 3, 1)}." for n in range(40)))
    return [f"data.source={{train: {path}}}", "data.validation=0.2"]


def write_beir(folder: Path) -> list[str]:
    """A small folder in BEIR's layout, and the override that puts it in the place of the recipe's."""
    home = folder / "beir"
    (home / "qrels").mkdir(parents=True)
    texts = [json.dumps({"_id": str(number), "title": "", "text": small.text(number, 0)}) for number in range(8)]
    for name in ("corpus", "queries"):
        (home / f"{name}.jsonl").write_text("\n".join(texts))
    for split in ("train", "test"):
        pairs = "".join(f"{number}\t{number}\t1\n" for number in range(8))
        (home / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{pairs}")
    return [f"data.source={home}"]


def write(folder: Path, recipe: Recipe, canonical: list[str]) -> list[str]:
    """Small files with the recipe's own column names, and the overrides that put them in the place of its data."""
    spec = recipe.data
    source = {spec.columns.get(name, name): name for name in canonical}
    names = spec.header if isinstance(spec.header, list) else ["line", *source]
    tabs = spec.format == "tsv" or "tsv" in str(spec.source)
    overrides = []
    for split in spec.source if isinstance(spec.source, dict) else ("train", "validation"):
        count = 16 if split == "train" else 8
        lines = [names] if spec.header is True else []
        lines += [[values(source[n], i) if n in source else f"{n} {i}" for n in names] for i in range(count)]
        path = folder / f"{split}.{'tsv' if tabs else 'csv'}"
        path.write_text("".join(("\t" if tabs else ",").join(line) + "\n" for line in lines))
        overrides.append(f"data.source.{split}={path}")
    return overrides


def test_there_are_recipes() -> None:
    assert len(FILES) >= 9
    several = {path.stem: path for path in (ROOT / "recipes" / SEVERAL).glob("*.yaml")}
    assert {path.stem: path for path in FILES} | several == shipped_recipes()
    assert {file.parent.name for file in FILES} == {task.name for task in TASKS}


def test_they_say_what_they_are_and_how_they_are_run_and_pin_what_is_from_the_hub(subtests: pytest.Subtests) -> None:
    for file in FILES:
        with subtests.test(file.stem):
            text = file.read_text()
            header = text[: text.index("\ntask:")].splitlines()
            assert all(line.startswith("# ") for line in header)
            command = " ".join(line.removeprefix("#").strip().removesuffix("\\").strip() for line in header[1:])
            assert command.startswith(f"Run:  bertkit train {file.stem} --output-dir runs/{file.stem}")
            assert "\nexpected:" in text
            recipe = load_recipe(file.stem, check_files=False)
            if isinstance(recipe.data.source, str) and HUB_ID.fullmatch(recipe.data.source):
                assert COMMIT.fullmatch(str(recipe.data.revision))
            if HUB_ID.fullmatch(recipe.model.name or "") and recipe.model.name not in PACKAGED:  # these have a sha256
                assert COMMIT.fullmatch(str(recipe.model.revision))


def cases() -> Iterator[Any]:
    """Recipes of which there is one for MiniLM too, and so for their task and columns, are trained with --all alone."""
    for file in FILES:
        twin = file.with_stem(f"{file.stem}-minilm").exists()
        yield pytest.param(file, id=file.stem, marks=pytest.mark.rare if twin else ())


@pytest.mark.parametrize("file", list(cases()))
def test_it_trains(file: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = load_recipe(file.stem, check_files=False)
    short = ["training.max_steps=2", "training.per_device_train_batch_size=4", "verify=false", "explain=false"]
    swapped = [f"model.{'tokenizer' if shipped.model.config else 'name'}={tiny_encoder}", "model.max_length=32"]
    if isinstance(config := shipped.model.config, dict):
        modern = str(config.get("preset")).startswith(("modernbert", "ettin"))
        swapped.append(f"model.config.preset={'modernbert-tiny' if modern else 'tiny'}")
    swapped += ["~model.revision"] if shipped.model.revision else []
    mapped = shipped.data.columns
    if str(shipped.data.source).startswith("sample:"):
        swapped.append("data.limit=40")
    elif shipped.task.name == "question-answering":
        swapped += write_questions(tmp_path)
    elif shipped.task.name == "pretraining":
        swapped += write_documents(tmp_path, shipped)
    elif shipped.task.name == "retrieval":
        swapped += write_beir(tmp_path)
    elif shipped.task.name == "token-classification":
        swapped += write_sentences(tmp_path, shipped)
    else:
        canonical = [name for name in COLUMNS if name in mapped]
        if isinstance(shipped.data.source, str):
            named = ("source", "revision", "subset", "splits")
            swapped += [f"~data.{key}" for key in named if getattr(shipped.data, key)]
        swapped += write(tmp_path, shipped, canonical)
    if shipped.task.name == "text2text-generation":
        swapped.append("task.generation.max_new_tokens=32")
    if shipped.batching:
        swapped.append("~batching")
    if shipped.distillation:  # from the recipe of its teacher, made as short
        teacher = train(load_recipe(Path(shipped.distillation.teacher).name, [*swapped, *short]), tmp_path / "teacher")
        swapped += [f"distillation.teacher={teacher.folder}", f"model.name={teacher.model}"]
        swapped += ["distillation.student.layers=1"] if shipped.distillation.student else []
    head = dict(shipped.task).get("method") == "head"
    callbacks = []
    if budget := shipped.training.get("budget"):  # by a clock of its own, which two steps take
        callbacks = [Time(lambda _: seconds(budget) / 2)]
        monkeypatch.setattr(seed, "Clock", partial(Clock, now=callbacks[0]))
    short = short[2:] if head else short[1:] if budget else short
    recipe = load_recipe(file.stem, [*swapped, *short])
    run = train(recipe, tmp_path / "run", callbacks=callbacks)
    outcomes = run.results["seeds"]
    assert [outcome["seed"] for outcome in outcomes] == shipped.seeds
    assert {outcome["steps"] for outcome in outcomes} == {0 if head else 2}
    assert run.results["headline"] == shipped.training.get("metric_for_best_model", run.load().task.metrics[0])
    labels = getattr(shipped.task, "labels", None)
    assert not labels or run.load().task.names == list(labels.values() if isinstance(labels, dict) else labels)
