"""Small files and recipes that train in under a second: what the tests of the whole program share."""

import csv
import importlib.util
import json
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tokenizers import normalizers
from transformers import AutoConfig, AutoModel, TrainingArguments

from bertkit.cli.main import main
from bertkit.data import load
from bertkit.recipe.recipe import load_recipe
from bertkit.run import Run
from bertkit.sections import DataSpec
from bertkit.tasks import get_task
from bertkit.training.train import train

ROOT = Path(__file__).resolve().parent.parent  # of the checkout
WORDS = "cat dog mat one two three four five".split()
SIZES = {"train": 16, "validation": 10, "test": 7}
WRONG = (18, 21, 27)  # rows of validation and test with a wrong label, so that no score is perfect
# The name in the installed transformers: gradient_checkpointing before 5.23.
CHECKPOINTING = next(
    name for name in TrainingArguments.__dataclass_fields__ if name.endswith("_checkpointing")
)
# Overrides with which a model learns the small rows, in some three seconds.
LEARN = ("training.num_train_epochs=25", "training.learning_rate=1e-2")
LEARN += ("training.eval_strategy=steps", "training.eval_steps=20")


@torch.no_grad()
def stir(parameters):
    """Add large random numbers to these weights."""
    for parameter in parameters:
        parameter.add_(torch.randn_like(parameter), alpha=0.3)


def recompute_activations(model):
    """What the trainer does where activation_checkpointing is true."""
    getattr(model, f"{CHECKPOINTING}_enable")()


def install(folder, pyproject):
    """What pip writes about a package, of its pyproject.toml."""
    project = pyproject["project"]
    about = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"].items()
    lines = [
        line
        for group, points in groups
        for line in (f"[{group}]", *(f"{n} = {v}" for n, v in points.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))


def read_data(spec, kind, options, **more):
    """The rows of a data section, as this task reads them."""
    return load(spec, kind.schema_of(options), kind.rules(options), **more)


def read_as(task, source, *, splits=None, **settings):
    """The rows of a file or of files by split, as this section of a recipe reads them."""
    kind = get_task(task["name"])
    files = {"": source} if not isinstance(source, dict) else source
    files = {split: str(file) if isinstance(file, Path) else file for split, file in files.items()}
    source = files.get("", files)
    options = kind.Options.model_validate(task)
    return read_data(DataSpec(source=source, **settings), kind, options, splits=splits)


def text(number, side):
    """A sentence that is about its side, of a length that depends on its number."""
    return f"the {WORDS[number % 8]} was {('good', 'bad')[side]} " + "and it sat on the mat " * (number % 4)


def rows(kind, count, start=0):
    """Rows with the target of this kind, and a column `id` that no task knows."""
    made = []
    for number in range(start, start + count):
        row = {"id": f"row-{number}", "text": text(number, number % 2)}
        side = number % 2 if number not in WRONG else 1 - number % 2
        if kind == "regression":
            row["score"] = 2.0 * side + number % 4 / 10
        elif kind == "multi-label":
            row["labels"] = [("good", "bad")[side], *(["long"] if number % 4 > 1 else [])]
        else:
            row["label"] = ("good", "bad")[side]
        made.append(row)
    return made


def write_rows(path, values):
    """The rows as JSON lines; or a text as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = values if isinstance(values, str) else "".join(json.dumps(row) + "\n" for row in values)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def files(folder):
    """The contents of the files in this folder and below it, by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_rows(path):
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n")]


def read_csv(path):
    """The rows of a file of csv, as spreadsheets read it."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def change_json(path, **changed):
    """The JSON file with some of its keys changed."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changed), encoding="utf-8")
    return path


def raises(error, pattern, call, *arguments, **settings):
    """The error of this type which this call raises; the pattern is found in its message."""
    with pytest.raises(error, match=pattern) as caught:
        call(*arguments, **settings)
    return caught.value


def raised(error, call, *arguments, **settings):
    """The error of this type which this call raises."""
    return raises(error, None, call, *arguments, **settings)


def message_of(*call, **settings):
    """That of the error which this call raises."""
    return str(raised(*call, **settings))


def problems_of(*call, **settings):
    """Those of the error which this call raises."""
    return raised(*call, **settings).problems


def refuses(error, pattern, recipe, folder, **settings):
    """`train` refuses this recipe with this error, and writes nothing into `folder`."""
    raises(error, pattern, train, recipe, folder / "run", **settings)
    assert not (folder / "run").exists()


def notes(data):
    """What was found in these data."""
    return [finding.what for finding in data.findings]


def memory(kind):
    """KiB of this kind that are in the memory of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(kind))


def said(capsys, *words):
    """What a command that works writes to stdout."""
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def refused(capsys, *words):
    """What a command that the user has to put right writes to stderr: at least one message, and no
    traceback.
    """
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.startswith("error: ") or "\nerror: " in captured.err
    assert "Traceback" not in captured.err
    return captured.err


def write_recipe(folder, encoder, kind="single-label", splits=("train", "validation", "test")):
    """A recipe file in `folder`, with small files beside it."""
    start = 0
    for split in splits:
        write_rows(folder / f"{split}.jsonl", rows(kind, SIZES[split], start))
        start += SIZES[split]
    sources = ", ".join(f"{split}: {split}.jsonl" for split in splits)
    file = folder / "small.yaml"
    file.write_text(
        f"task: {{name: text-classification}}\n"
        f"model: {{name: {encoder}, max_length: 32}}\n"
        f"data: {{source: {{{sources}}}}}\n"
        "training: {num_train_epochs: 2, per_device_train_batch_size: 4, per_device_eval_batch_size: 3,"
        " learning_rate: 3e-3}\n"
        "verify: false\nexplain: false\n",
        encoding="utf-8",
    )
    return file


def recipe(
    folder,
    encoder,
    *overrides,
    kind="single-label",
    splits=("train", "validation", "test"),
):
    """The recipe of `write_recipe`, loaded with these overrides."""
    return load_recipe(write_recipe(folder, encoder, kind, splits), overrides)


def trained(folder, encoder, *overrides, **more):
    """The run, in `folder`, that trains the recipe of `recipe`."""
    return train(recipe(folder, encoder, *overrides, **more), folder / "run")


def program(file):
    """The module in a file that is no part of the package."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_of(run, folder):
    """One that a test may change."""
    return Run(Path(shutil.copytree(run.folder, folder)))


def of_family(kind, encoder, folder, **fields):
    """An encoder of another architecture with the tokenizer of this one, whose sizes are those of the tiny
    BERT.
    """
    shutil.copytree(encoder, folder, ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    given = {"vocab_size": 42, "max_position_embeddings": 66, "pad_token_id": 0, **sizes, **fields}
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model(kind, **given)).save_pretrained(folder)
    return folder


def panic_on_bytes_beyond_ascii(tokenizer):
    """Damage the tokenizer: its normalizer, in Rust, panics on a text that is not ASCII."""
    trie = bytes(4 * 128)  # each byte of a text is an index into it
    tokenizer.backend_tokenizer.normalizer = normalizers.Precompiled(len(trie).to_bytes(4, "little") + trie)


@contextmanager
def largest_file(size):
    """Within the block no file grows beyond so many bytes: as on a full disk, but for the text of the
    error.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
