"""What ships: every recipe, found by glob and run for two optimizer steps, and the samples that they read."""

import hashlib
import re
from functools import partial
from pathlib import Path

import pytest
import small
from small import ROOT
from steps import Time

from bertkit.data import check
from bertkit.data.sources import open_source, samples_folder
from bertkit.engine.clock import Clock
from bertkit.errors import UserError
from bertkit.models.encoder import PACKAGED, load_tokenizer, resolve_encoder
from bertkit.recipe import shipped_recipes
from bertkit.recipe.recipe import load_recipe
from bertkit.sections import DataSpec, ModelSpec, seconds
from bertkit.tasks import OURS, get_task
from bertkit.tokenizer.train import train_tokenizer
from bertkit.training import seed
from bertkit.training.train import train

SEVERAL = "multi-task"  # the folder of recipes of several tasks
FILES = sorted(file for file in (ROOT / "recipes").glob("*/*.yaml") if file.parent.name != SEVERAL)
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

COLUMNS = {  # task -> the columns that it reads; of other tasks, those that the recipe maps
    "question-answering": ("question", "context", "answers"),
    "token-classification": ("tokens", "tags", "document"),
    "retrieval": ("query", "document", "grade"),
    "pretraining": ("text",),
}


def value(column, number):
    """What a small row has in a canonical column."""
    side = number % 2
    text = small.text(number, side).strip()
    known = {
        **{
            "label": str(side),
            "labels": [str(side)] if number % 3 else ["0", "1"],
            "score": 5.0 * side,
            "grade": 1,
        },
        **{"query": small.text(number // 2, 0).strip(), "question": "the cat ?", "context": text},
        **{"answers": "was" if number % 4 else [], "tokens": text.split()},
        "tags": ["B-LOC" if place == 1 else "O" for place in range(len(text.split()))],
    }
    return known.get(column, f"{text} {number}.\n{small.text(number + 3, 1)}.")


def write_data(folder, recipe):
    """Small files of rows in canonical columns, and the override that puts them in the place of the recipe's
    data.
    """
    columns = COLUMNS.get(recipe.task.name, recipe.data.columns)
    spec = recipe.data
    splits = spec.source if isinstance(spec.source, dict) else ("train", "validation")
    for split in splits:
        rows = [{column: value(column, number) for column in columns} for number in range(40)]
        small.write_rows(folder / f"{split}.jsonl", rows)
    held_out = ", validation: 0.2" if "validation" not in splits else ""
    return f"data={{source: {{{', '.join(f'{s}: {folder / s}.jsonl' for s in splits)}}}{held_out}}}"


def test_there_are_recipes():
    assert len(FILES) >= 9
    several = {path.stem: path for path in (ROOT / "recipes" / SEVERAL).glob("*.yaml")}
    for name, path in several.items():
        assert f"\n# Run:  bertkit train {name} --output-dir runs/{name}" in path.read_text()
    assert {path.stem: path for path in FILES} | several == shipped_recipes()
    assert {file.parent.name for file in FILES} == {*OURS}


def test_they_say_what_they_are_and_how_they_are_run_and_pin_what_is_from_the_hub(subtests):
    for file in FILES:
        with subtests.test(file.stem):
            text = file.read_text()
            header = text[: text.index("\ntask:")].splitlines()
            assert all(line.startswith("# ") for line in header)
            command = " ".join(
                line.removeprefix("#").strip().removesuffix("\\").strip() for line in header[1:]
            )
            assert command.startswith(f"Run:  bertkit train {file.stem} --output-dir runs/{file.stem}")
            assert "\nexpected:" in text
            recipe = load_recipe(file.stem, check_files=False)
            if isinstance(recipe.data.source, str) and HUB_ID.fullmatch(recipe.data.source):
                assert COMMIT.fullmatch(str(recipe.data.revision))
            # these have a sha256
            if HUB_ID.fullmatch(recipe.model.name or "") and recipe.model.name not in PACKAGED:
                assert COMMIT.fullmatch(str(recipe.model.revision))


def cases():
    """Those with the task and columns of another one (a twin for MiniLM, sst2 or mnli) are trained with --all
    alone.
    """
    alike = {f"{name}-minilm" for name in "cola mrpc qnli qqp rte wnli".split()}
    for file in FILES:
        twin = file.stem in alike or file.with_stem(f"{file.stem}-minilm").exists()
        yield pytest.param(file, id=file.stem, marks=pytest.mark.rare if twin else ())


@pytest.mark.parametrize("file", list(cases()))
def test_it_trains(file, tiny_encoder, tmp_path, monkeypatch):
    shipped = load_recipe(file.stem, check_files=False)
    short = "training.max_steps=2 training.per_device_train_batch_size=4 verify=false explain=false".split()
    swapped = [
        f"model.{'tokenizer' if shipped.model.config else 'name'}={tiny_encoder}",
        "model.max_length=32",
    ]
    if isinstance(config := shipped.model.config, dict):
        modern = str(config.get("preset")).startswith(("modernbert", "ettin"))
        swapped.append(f"model.config.preset={'modernbert-tiny' if modern else 'tiny'}")
    swapped += ["~model.revision"] if shipped.model.revision else []
    swapped.append(
        "data.limit=40" if str(shipped.data.source)[:7] == "sample:" else write_data(tmp_path, shipped)
    )
    if shipped.task.name == "text2text-generation":
        swapped.append("task.generation.max_new_tokens=32")
    if shipped.batching:
        swapped.append("~batching")
    if shipped.distillation:  # from the recipe of its teacher, made as short
        teacher = train(
            load_recipe(Path(shipped.distillation.teacher).name, [*swapped, *short]), tmp_path / "teacher"
        )
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
    assert run.results["headline"] == shipped.training.get(
        "metric_for_best_model", run.load().task.metrics[0]
    )
    labels = getattr(shipped.task, "labels", None)
    assert not labels or run.load().task.names == list(
        labels.values() if isinstance(labels, dict) else labels
    )


# --- the packaged samples

SAMPLES = {  # task, suffix of its files, the column of its page that counts rows
    "sentiment": ("text-classification", "jsonl", None),
    "ner": ("token-classification", "jsonl", 0),
    "personal-data": ("token-classification", "jsonl", 0),
    "qa": ("question-answering", "json", 1),
    "retrieval": ("retrieval", None, None),  # a split has the documents that no query is judged with, too
    "similarity": ("sentence-similarity", "jsonl", 0),
    "translation": ("text2text-generation", "jsonl", 0),
}
# Of all files. Whoever changes one reads the new rows: no two may be alike, and names, grades and answers are
# right.
DIGEST = "67c8e4652943c343e4928da647eb10dbb3ea9ec7f31593277565655cd94ced66"


def test_they_are_the_files_that_were_proofread():
    files = sorted(path for path in samples_folder().rglob("*") if path.is_file())
    content = b"".join(str(path.relative_to(samples_folder())).encode() + path.read_bytes() for path in files)
    assert hashlib.sha256(content).hexdigest() == DIGEST


@pytest.mark.parametrize("name", SAMPLES)
def test_its_task_reads_it_and_its_page_counts_it(name):
    folder, (task, suffix, column) = samples_folder() / name, SAMPLES[name]
    splits = ("train", "validation", "test")
    if suffix:
        parts = open_source(DataSpec(source=f"sample:{name}"), None, ())
        names = {split: [part.name for part in own] for split, own in parts.items()}
        assert names == {split: [f"{folder}/{split}.{suffix}"] for split in splits}
    kind = get_task(task)
    data = small.read_data(DataSpec(source=f"sample:{name}"), kind, kind.Options(name=task))
    assert [finding.what for finding in check(data) if finding.level in ("fail", "severe")] == []
    for split in splits if column is not None else ():
        (cells,) = re.findall(rf"^\| {split} \|(.*)\|$", (folder / "README.md").read_text(), re.M)
        assert int(cells.split("|")[column].replace(",", "")) == len(data.rows[split])


def test_the_tokenizer_of_translations_is_that_of_its_command(tmp_path):
    folder = samples_folder() / "translation"
    train_tokenizer(
        [folder / "train.jsonl"],
        tmp_path / "out",
        vocab_size=600,
        byte_level=True,
        columns=["text", "target"],
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (folder / "tokenizer" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    tokenizer = load_tokenizer(folder / "tokenizer")
    targets = [row["target"] for row in small.read_rows(folder / "test.jsonl")]
    assert tokenizer.batch_decode(tokenizer(targets)["input_ids"], skip_special_tokens=True) == targets
    assert resolve_encoder(ModelSpec(config="tiny", tokenizer="sample:translation")).config.vocab_size == 600


@pytest.mark.parametrize("name", ["sample:sentiment", "sample:translations"])
def test_other_samples_have_no_tokenizer(name):
    with pytest.raises(UserError, match=r"no tokenizer could be loaded|no such sample; did you mean"):
        resolve_encoder(ModelSpec(config="tiny", tokenizer=name))
