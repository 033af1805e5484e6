"""GLUE: every layout of its files, and the suite in benchmarks/glue.py."""

import itertools
import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import small
from small import ROOT, read_data, read_rows, write_rows

from bertkit.engine.clock import Clock
from bertkit.recipe.recipe import load_recipe
from bertkit.run import Run
from bertkit.tasks.text_classification import TextClassification
from bertkit.training import seed as seeds

PAGE = (ROOT / "docs/glue.md").read_text()
SIZES = {"train": 8, "dev": 6, "test": 3}
QUICK = ["training.max_steps=1", "verify=false", "explain=false"]
FILES = re.findall(r"^\| `(\w+)` \| `(data=\{.*\})` \|", PAGE, re.M)
NLI = ("entailment", "neutral", "contradiction")
TWO = ("entailment", "not_entailment")
MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
    "sentence2_parse"
)
MNLI = f"{MNLI} sentence1 sentence2"
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2"
TEST = "index sentence1 sentence2"
PAIRS = "#1_ID #2_ID #1_String #2_String"  # in the files with spaces, as all others here have tabs


@dataclass(frozen=True)
class Layout:
    """GLUE's files of one task: the names of their columns, and what the task reads."""

    train: str
    test: str
    inputs: tuple[str, ...]
    target: str
    labels: tuple[str, ...]  # as the files have them; none: scores
    dev: str = ""  # if it is not as train
    header: bool = True  # of train and dev; test has one
    splits: tuple[str, ...] = ("",)  # of dev and test


LAYOUTS = {
    "CoLA": Layout("source label star sentence", "index sentence", ("sentence",), "label", ("0", "1"), header=False),
    "SST-2": Layout("sentence label", "index sentence", ("sentence",), "label", ("0", "1")),
    "MRPC": Layout(f"Quality {PAIRS}", f"index {PAIRS}", ("#1_String", "#2_String"), "Quality", ("0", "1")),
    "STS-B": Layout(f"{STSB} score", STSB, ("sentence1", "sentence2"), "score", ()),
    "QQP": Layout("id qid1 qid2 question1 question2 is_duplicate", "id question1 question2", ("question1", "question2"),
                  "is_duplicate", ("0", "1")),
    "MNLI": Layout(f"{MNLI} label1 gold_label", MNLI, ("sentence1", "sentence2"), "gold_label", NLI,
                   dev=f"{MNLI} label1 label2 label3 label4 label5 gold_label", splits=("_matched", "_mismatched")),
    "QNLI": Layout("index question sentence label", "index question sentence", ("question", "sentence"), "label", TWO),
    "RTE": Layout(f"{TEST} label", TEST, ("sentence1", "sentence2"), "label", TWO),
    "WNLI": Layout(f"{TEST} label", TEST, ("sentence1", "sentence2"), "label", ("0", "1")),
}  # fmt: skip


def text(split, number, side):
    """A sentence that no other place has; one has a quote that is never closed."""
    start = {"train": 0, "dev": 20, "dev_matched": 20, "dev_mismatched": 40}.get(split, 60)
    quote = '"' if number == 2 else ""
    return f"{quote}{small.text(start + number + 8 * side, number % 2)}. {start} {number} {side}"


def answer(layout, number):
    return layout.labels[number % len(layout.labels)] if layout.labels else f"{number % 6}.{number % 4 * 2}00"


def rows(task, split):
    """What is to be read of a file, in canonical columns: the oracle of the layouts."""
    layout = LAYOUTS[task]
    found = []
    names = ("text",) if len(layout.inputs) == 1 else ("text_a", "text_b")
    for number in range(SIZES[split.partition("_")[0]]):
        row = {name: text(split, number, side) for side, name in enumerate(names)}
        value = answer(layout, number)
        found.append(row | ({"label": value} if layout.labels else {"score": float(value)}))
    return found


def lines(layout, split, columns, header):
    """The lines of a file."""
    names = columns.split()
    if header:
        yield "\t".join(name.replace("_ID", " ID").replace("_String", " String") for name in names)
    for number in range(SIZES[split.partition("_")[0]]):
        values = {name: f"{name} {number}" for name in names} | {
            "index": str(number),
            "id": str(number),
            "star": "",
        }
        values |= {name: text(split, number, side) for side, name in enumerate(layout.inputs)}
        yield "\t".join({**values, layout.target: answer(layout, number)}[name] for name in names)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The folder of GLUE's files."""
    home = tmp_path_factory.mktemp("GLUE_data")

    def write(path, made, mark=""):
        write_rows(home / path, mark + "".join(f"{line}\n" for line in made))

    for task, layout in LAYOUTS.items():
        mark = "\ufeff" if task == "MRPC" else ""
        for end in layout.splits:
            write(
                f"{task}/dev{end}.tsv",
                lines(layout, f"dev{end}", layout.dev or layout.train, layout.header),
                mark,
            )
            write(f"{task}/test{end}.tsv", lines(layout, f"test{end}", layout.test, True))
        write(f"{task}/train.tsv", lines(layout, "train", layout.train, layout.header), mark)
    pairs = LAYOUTS["MRPC"]
    for split in ("train", "test"):
        write(f"MRPC/msr_paraphrase_{split}.txt", lines(pairs, split, pairs.train, True), "\ufeff")
    # a row in two lines, one without its end, and a whole one
    with (home / "QQP/train.tsv").open("a") as file:
        file.write('8\t1\t2\tthe "cat\n was good ?\tthe dog ?\t1\n9\t1\t2\tthe cat\n10\t3\t4\tlast\trow\t0\n')
    return home


@pytest.fixture(scope="module")
def glue():
    return small.program(ROOT / "benchmarks/glue.py")


@pytest.fixture(scope="module")
def suite(glue, data, tiny_encoder, tmp_path_factory):
    """All nine tasks, trained on the files for one step and two seeds: the arguments, and the folder of the
    runs.
    """
    folder = tmp_path_factory.mktemp("suite")
    arguments = ["--data", str(data), "--seeds", "1", "2", "--output-dir", str(folder)]
    arguments += [
        "--overrides",
        f"model.name={tiny_encoder}",
        "model.max_length=32",
        "~model.revision",
        *QUICK,
    ]
    arguments += ["training.save_strategy=no", "training.eval_strategy=no"]
    glue.main(arguments)
    return SimpleNamespace(arguments=arguments, folder=folder / "bert-base")


# --- layouts


@pytest.mark.parametrize(("name", "word"), FILES)
def test_each_line_of_the_table_reads_its_files(name, word, data, monkeypatch):
    monkeypatch.chdir(data)
    recipe = load_recipe(name, [word])
    read = read_data(recipe.data, TextClassification, recipe.task)
    train = recipe.data.source["train"]
    task = Path(train).parent.name
    found = {split: list(part) for split, part in read.rows.items()}
    found = {
        split: [{k: v for k, v in row.items() if k != "id"} for row in part] for split, part in found.items()
    }
    last = {"text_a": "last", "text_b": "row", "label": "0"}
    if recipe.data.validation:
        kept = sorted([*found["train"], *found["validation"]], key=str)
        assert (kept, found["test"]) == (sorted(rows(task, "train"), key=str), rows(task, "test"))
    else:
        assert found["train"] == rows(task, "train") + ([last] if task == "QQP" else [])
        dev = [f"dev{end}" for end in LAYOUTS[task].splits]
        assert [found[split] for split in list(found)[1:]] == [rows(task, split) for split in dev]
    noted = [finding.what for finding in read.findings if "too few fields" in finding.what]
    left = f"{train}: 3 rows with too few fields left out: " + ", ".join(f"{train}:{n}" for n in (10, 11, 12))
    assert noted == [left] * (task == "QQP")


def test_the_table_has_all_recipes_and_says_what_they_say():
    assert {name for name, _ in FILES} == set("cola sst2 mrpc stsb qqp mnli qnli rte wnli".split())
    for name, word in FILES:
        recipe = load_recipe(name, check_files=False)
        assert recipe.data.source == "nyu-mll/glue"
        minilm = load_recipe(f"{name}-minilm", check_files=False)
        if name != "stsb" and "msr_" not in word:
            assert minilm.data == load_recipe(name, [word], check_files=False).data
        numbered = LAYOUTS[re.search(r"train: ([\w-]+)/", word)[1]].labels == ("0", "1")
        assert list(minilm.task.labels or ()) == ["0", "1"] * numbered


# --- the suite


def test_the_suite_prints_the_scores_of_all_seeds_and_skips_finished_runs(glue, suite, capsys, monkeypatch):
    monkeypatch.setattr(
        "bertkit.training.train.train_seed", lambda *_: pytest.fail("a finished run is trained again")
    )
    glue.main(suite.arguments)
    printed = capsys.readouterr().out
    found = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in printed.splitlines()[2:]
        if line[:1] == "|"
    ]
    assert [(line[0], line[1]) for line in found] == [
        (figure.title, figure.metric) for figure in glue.FIGURES
    ]
    assert {figure.task for figure in glue.FIGURES} == {name for name, _ in FILES}
    for line, figure in zip(found, glue.FIGURES, strict=True):
        results = Run(suite.folder / figure.task).results
        assert [seed["seed"] for seed in results["seeds"]] == [1, 2]
        a, b = (seed["metrics"][figure.split][figure.metric] for seed in results["seeds"])
        shown = "–" if a is None or b is None else f"{50 * (a + b):.2f} ± {100 * abs(a - b) / 2**0.5:.2f}"
        assert line[2] == shown
    assert [figure.split for figure in glue.FIGURES if figure.task == "mnli"] == ["validation", "test"]


def test_the_suite_reads_the_hub_unless_there_are_files(glue, data, tmp_path):
    hub = glue.recipe_of("mnli", "minilm", None, [7], [])
    assert (hub.data, hub.seeds) == (load_recipe("mnli", check_files=False).data, [7])
    assert hub.model == load_recipe("mnli-minilm", check_files=False).model
    assert (
        glue.recipe_of("stsb", "bert-base", None, [7], []).data == load_recipe("stsb", check_files=False).data
    )
    (tmp_path / "some").mkdir()
    (tmp_path / "some/CoLA").symlink_to(data / "CoLA")
    with pytest.raises(SystemExit, match=r"some/RTE/train\.tsv"):  # before anything is trained
        glue.main(f"--tasks cola rte --data {tmp_path}/some --output-dir {tmp_path}/runs".split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.rare
def test_the_speedrun_from_raw_text_to_its_row(glue, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "glue", glue)  # which lies beside it
    ticks = itertools.count()
    monkeypatch.setattr(seeds, "Clock", partial(Clock, now=lambda: next(ticks)))
    speedrun = small.program(ROOT / "benchmarks/speedrun.py")
    rows = [{"text": f"{small.text(n, 0)}.\n{small.text(n + 3, 1)}."} for n in range(40)]
    corpus = write_rows(tmp_path / "corpus.jsonl", rows)
    folder = tmp_path / "run"
    tiny = ["training.budget=20s", "training.logging_steps=1", "training.per_device_train_batch_size=4"]
    tiny += ["training.gradient_accumulation_steps=1", "model.config={preset: modernbert-tiny}"]
    tiny += "model.max_length=32 data.validation=0.2 verify=false explain=false".split()
    arguments = ["--corpora", str(corpus), "--data", str(data), "--output-dir", str(folder), "--random"]
    arguments += [*"--vocab-size 300 --seeds 1 2 --tasks sst2 --overrides".split(), *tiny]
    arguments += ["--fine-tuning", *QUICK]
    speedrun.main(arguments)
    names, _, *lines = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines())
    pretrained, random = (dict(zip(names, cells, strict=True)) for cells in lines)
    (seed,) = Run(folder / "pretraining").results["seeds"]
    assert (pretrained["what"], pretrained["budget"], pretrained["steps"]) == (
        "speedrun",
        "20s",
        f"{seed['steps']:,}",
    )
    last = read_rows(folder / "pretraining/metrics.jsonl")[-1]
    assert seed["steps"] < last["num_input_tokens_seen"] <= 4 * 32 * seed["steps"]
    assert pretrained["million tokens"] == f"{last['num_input_tokens_seen'] / 1e6:.1f}"
    assert pretrained["perplexity"] == f"{seed['metrics']['validation']['perplexity']:.1f}"
    for start, cells in (("pretrained", pretrained), ("random", random)):
        scored = [
            each["metrics"]["validation"]["accuracy"]
            for each in Run(folder / start / "sst2").results["seeds"]
        ]
        assert cells["SST-2"] == glue.over_seeds(scored)
        assert (cells["CoLA"], cells["RTE"]) == ("–", "–")
    assert random["what"] == "random weights"
    written = (folder / "random/sst2/results.json").stat().st_mtime_ns
    speedrun.main(arguments)  # all of it is finished
    assert capsys.readouterr().out.splitlines()[2].strip("| ").split(" | ") == lines[0]
    assert (folder / "random/sst2/results.json").stat().st_mtime_ns == written
