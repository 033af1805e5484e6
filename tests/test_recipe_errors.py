"""The error table: what is wrong in a recipe is said with its line, in plain words, all at once."""

import pytest
from small import message_of, problems_of

from bertkit.errors import RecipeError
from bertkit.recipe.recipe import load_recipe
from bertkit.recipe.training_arguments import DECIDED

HEAD = """\
task: {name: text-classification}
model: {name: some/model}
data: {source: "sample:sentiment"}
"""  # three lines: what follows starts in line 4


def problems(tmp_path, content, *overrides):
    """(line or override, message and fix) of everything that is wrong."""
    file = tmp_path / "my.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    problems = problems_of(RecipeError, load_recipe, file, overrides, own_metrics=False)
    found = []
    for where, what, fix in problems:
        line = where.removeprefix(f"{file}:")
        found.append((int(line) if line != where else where, f"{what}\n{fix}"))
    return found


def expect(found, *expected):
    assert len(found) == len(expected), found
    for (place, text), (wanted_place, fragment) in zip(found, expected, strict=True):
        assert (place, fragment in text) == (wanted_place, True), (text, fragment)


SYNTAX = {
    "no colon": ("task\nmodel: x\n", (2, "a missing `:` in the line above")),
    "tab": ("task:\n\tname: x\n", (2, "Indent with spaces")),
    "two colons": (
        "task: {name: text-classification}\nmodel: name: x\n",
        (2, "quotes around text that contains `: `"),
    ),
    "open bracket": (HEAD + "seeds: [1,\n", (5, "the end of the text")),
    "open quote": (HEAD + "expected: 'x\n", (5, "started in line 4")),
    "duplicate": (
        HEAD + "seeds: [1]\nverify: true\nseeds: [2]\n",
        (6, "seeds: written twice, in lines 4 and 6"),
    ),
    "object": (
        HEAD + "expected: !!python/object/apply:os.system [ls]\n",
        (4, "tag !!python/object/apply:os.system"),
    ),
    "anchor": (HEAD + "seeds: &a [1]\n", (4, "anchor &a: recipes have no aliases")),
    "alias": (HEAD + "verify: *a\n", (4, "alias *a: recipes have no aliases")),
    "list as key": (HEAD + "? [a]\n: 1\n", (4, "a key is a list or a mapping")),
    "no key": (HEAD + ": 1\n", (4, "a key is empty")),
    "deeper": ("[" * 100_000, (1, "more than 20 levels deep")),
    "big": (b"#" * 300_000, (1, "more than 256 KB")),
    "bad utf-8": (HEAD.encode() + b"a: \xff", (4, "byte 0xff is not UTF-8")),
    "control character": (HEAD + "a: \x07", (4, "control character U+0007")),
    "surrogate": (HEAD + 'expected: {a: "\\ud800"}', (4, "control character U+D800")),
    "beyond unicode": (HEAD + 'expected: {a: "\\U00110000"}', (4, "YAML syntax")),
    "two documents": (HEAD + "---\n" + HEAD, (4, "a second document")),
    "yaml 1.1": ("%YAML 1.1\n---\n" + HEAD, (2, "recipes are YAML 1.2")),
    "list": ("- a\n", (1, "expected a mapping, found a list")),
    "word": ("hello", (1, "expected a mapping, found text 'hello'")),
    "empty": ("", (1, "the recipe is empty")),
    "infinite": (HEAD + "training: {max_grad_norm: .inf}", (4, "'.inf' is not a finite number")),
    "many digits": (HEAD + "seeds: [" + "9" * 5000 + "]", (4, "a number of 5000 digits")),
}


@pytest.mark.parametrize("name", SYNTAX)
def test_text_that_is_no_recipe(tmp_path, name):
    content, expected = SYNTAX[name]
    expect(problems(tmp_path, content), expected)


# one line each, in line 4 (or instead of one of the lines 1 to 3)
VALUES = [
    ("task: ner", 1, "Write task: {name: token-classification}"),
    ("task: regression", 1, "Write task: {name: text-classification}"),
    ("early_stopping: false", 4, "found false\nRemove it."),
    ("early_stopping: no", 4, "found text 'no'\nRemove it."),
    ("hub: off", 4, "found text 'off'\nRemove it."),
    ("model: {name: x, path: x}", 2, "Use `model.name`"),
    ("data: {source: x, train: a.csv}", 3, "Use `data.source.train`"),
    ("data: {source: x, dev: 0.1}", 3, "Use `data.validation`"),
    ("task: {name: qa}", 1, "did you mean 'question-answering'?"),
    ("peft: lora", 4, "Write peft: {r: 8}"),
    ("seeds: 5", 4, "Write seeds: [5] for one seed"),
    ("early_stopping: true", 4, "Write early_stopping: {patience: 3}"),
    ("task: {name: text-classification, class_weights: balanced}", 1, "Write auto"),
    ("data: {source: sst2, text: body}", 3, "data.text: unknown key\nColumns are mapped under data: {columns: {text: body}}"),
    ("warmup_ratio: 0.1", 4, "Use `training.warmup_steps`: a value below 1"),
    ("modle: {name: x}", 4, "modle: unknown key; did you mean 'model'?"),
    ("bogus: 1", 4, "Known here: batching, checkpoints, data, distillation, early_stopping"),
    ("learning_rate: 2e-5", 4, "Move it to `training:`"),
    ("model: {name: x, max_lenght: 128}", 2, "model.max_lenght: unknown key; did you mean 'max_length'?"),
    ("model: {max_length: 128}", 2, "model.name: missing"),
    ("model: {name: x, max_length: 4}", 2, "model.max_length: must be at least 8, found 4"),
    ("model: {name: x, max_length: 128.0}", 2, "expected a whole number, found the number 128.0"),
    ("model: {name: x, max_length: '128'}", 2, "Write 128 without quotes"),
    ("model: {name: x, max_length: 1_000}", 2, "Write 1000"),
    ("model: {name: x, revision: 12345678}", 2, 'Put quotes around it: "12345678"'),
    ("model: x", 2, "model: expected a mapping, found text 'x'\nWrite model: {name: x}"),
    ("model: {name: ./gone}", 2, "model.name: no folder"),
    ("model:", 2, "model: expected a mapping, found nothing"),
    ("task: {name: text-clasification}", 1, ("no task 'text-clasification'; did you mean "
                                             "'text-classification'?")),
    ("task: {name: translation}", 1, "Choose one of text-classification"),
    ("task: text-classification", 1, ("found text 'text-classification'\nWrite task: {name: " "text-classification}")),
    ("data: a.csv", 3, "data: expected a mapping, found text 'a.csv'\nWrite data: {source: a.csv}"),
    ("task: {name: text-classification, kind: multi}", 1, "expected 'single-label', 'multi-label' or 'regression'"),
    ("task: {name: text-classification, kind: multilabel}", 1, "did you mean 'multi-label'?"),
    ("task: {name: text-classification, labels: [a, 0]}", 1, ('task.labels[1]: expected text, found the ' '' '' 'number 0')),
    ("task: {name: text-classification, class_weights: none}", 1, "expected 'auto' or a mapping, found text 'none'"),
    ("task: {name: text-classification, class_weights: {a: 0}}", 1, ("class_weights.a: must be more than "
                                                                     "0, found 0")),
    ("task: {name: text-classification, labels: [good], class_weights: {god: 2}}", 1, "did you mean 'good'?"),
    ("task: {name: text-classification, kind: regression, thresholds: 0.5}", 1, "has no effect with kind regression"),
    ("task: {name: text-classification, kind: regression, class_weights: auto}", 1, "class_weights: has no effect"),
    ("task: {name: text-classification, kind: multi-label, cutoffs: {a: 0.1}}", 1, "Remove it, or use task.thresh"),
    ("task: {name: text-classification, labels: [good], cutoffs: {god: 0.2}}", 1, "did you mean 'good'?"),
    ("task: {name: text-classification, kind: regression, temperature: 2}", 1, "temperature: has no effect"),
    ("task: {name: text-classification, kind: regression, labels: [a, b]}", 1, "labels: has no effect"),
    ("task: {name: text-classification, overflow: window, stride: 126}", 1, "Write at most 125"),
    ("data: {source: 5}", 3, "data.source: expected text or a mapping, found the number 5"),
    ("data: {source: {train: []}}", 3, "data.source.train: must not be empty"),
    ("data: {source: {train: [1]}}", 3, "data.source.train[0]: expected text"),
    ("data: {source: gone.csv}", 3, "data.source: no file or folder"),
    ("data: {source: ./my.yml}", 3, "did you mean 'my.yaml'?"),
    ("data: {source: x, limit: many}", 3, "data.limit: expected a whole number or a mapping, found text 'many'"),
    ("data: {source: x, limit: {dev: 3}}", 3, "data.limit.dev: unknown key"),
    ("data: {source: x, validation: 1.5}", 3,
     "share of train below 1, such as 0.1, or a whole number of rows from 1; found 1.5"),
    *((f"data: {{source: x, test: {size}}}", 3, f"rows from 1; found {size}") for size in ("0", "-0.5", "1.0")),
    ("data: {source: x, test: a tenth}", 3, "data.test: expected a whole number or a number, found text"),
    ("data: {source: x, header: no}", 3, "Write false: in YAML 1.2 this word is text"),
    ("data: {source: x, delimiter: ab}", 3, "must be at most 1 character"),
    ("data: {source: x, format: json, header: [a]}", 3, "json files name their own columns"),
    ("verify: yes", 4, "Write true: in YAML 1.2 this word is text"),
    ("seeds: []", 4, "seeds: must not be empty"),
    ("seeds: [1, 2, 1]", 4, "seeds: 1 is listed 2 times"),
    ("early_stopping: {}", 4, "early_stopping.patience: missing"),
    ("training: {max_seq_length: 256}", 4, "Use `model.max_length`"),
    ("training: {warmup_ratio: 0.06}", 4, "Use `training.warmup_steps`"),
    ("training: {per_gpu_train_batch_size: 1}", 4, "per_device_train_batch_size"),
    ("peft: {target_modules: linear}", 4, "expected 'all-linear' or a list, found text 'linear'; did you mean 'all-l"),
    ("peft: {modules_to_save: [classifier]}", 4, "unknown key\nRemove it; the head is always trained"),
    ("training: {sharded_ddp: x}", 4, "The JSON Schema of recipes lists the keys"),
    ("training: {seed: 3}", 4, "`seeds: [3]`"),
    ("model_name_or_path: x", 4, "Use `model.name`"),
    ("data: {source: x, text_column_name: words}", 3, "Use `data.columns`"),
    ("train_file: train.csv", 4, "Use `data.source.train`"),
    ("training: {learning_rate: '2e-5'}", 4, "Write 2e-5 without quotes"),
    ("training: {learning_rate: 0}", 4, "must be more than 0, found 0"),
    ("training: {weight_decay: -1}", 4, "must be at least 0, found -1"),
    ("training: {label_smoothing_factor: 1}", 4, "must be less than 1"),
    ("training: {bf16: 1}", 4, "expected true or false, found the number 1"),
    ("training: {eval_strategy: false}", 4, "expected 'no', 'steps' or 'epoch', found false"),
    ("seeds: [99999999999]", 4, "must be less than 4294967296"),
    ("training: {eval_strategy: epochs}", 4, "found text 'epochs'; did you mean 'epoch'?"),
    ("training: {optim: adamw}", 4, "Known here: adamw_torch"),
    ("training: {debug: underflow_overflow}", 4, "bertkit's trainer settle it"),
    ("training: {muon_learning_rate: 0.02}", 4, "muon_learning_rate: has no effect without `optim: muon`"),
    ("training: {optim: muon, muon_momentum: 1}", 4, "training.muon_momentum: must be less than 1"),
    ("training: {optim: muon, muon_learning_rate: 0}", 4, "training.muon_learning_rate: must be more than 0"),
    ("training: {deepspeed: zero.json}", 4, "training.deepspeed: bertkit decides this\nRemove it, and start"),
    ("training: {fsdp: full_shard}", 4, "training.fsdp: bertkit decides this\nRemove it, and start"),
    ("task: {name: question-answering, n_best: 1000000000}", 1, "must be at most"),
    ("task: {name: retrieval, query_prefix: " + "a" * 10_001 + "}", 1, "must be at most"),
    ("task: {name: text-ranking, loss: listwise}\ndistillation: {teacher: a/b}", 1, "does not support a teacher"),
    ("task: {name: sentence-similarity, loss: softmax}", 1, "task.loss: softmax classifies pairs; write task: text-"),
    ("task: {name: text-classification, pos_weight: auto}", 1, "pos_weight: unknown key\nUse `task.class_w"),
    ("task: {name: text2text-generation, generation: {num_beam: 2}}", 1, "did you mean 'num_beams'?"),
    ("task: {name: text2text-generation, generation: {metrics: 2}}", 1, "Known here: max_new_tokens, "),
    ("task: {name: pretraining, mask_probability: {start: 0.1, end: 0.2, x: 1}}", 1, "\nKnown here: end, start"),
    ("training: {metric_for_best_model: loss}", 4, "the task has no metric 'loss'"),
    ("training: {metric_for_best_model: eval_loss}", 4, "the task has no metric 'loss'"),
    ("training: {metric_for_best_model: f1_marco}", 4, "did you mean 'f1_macro'?"),
    ("training: {greater_is_better: false}", 4, "better when higher"),
    ("hub: {benchmark: sst2}", 4, "hub.benchmark: data.source is not a data set of the Hub"),
]  # fmt: skip


def test_values_that_can_not_be_run(tmp_path, subtests):
    for line, number, fragment in VALUES:
        with subtests.test(line):
            lines = HEAD.splitlines()
            lines[number - 1 : number] = [line]
            expect(problems(tmp_path, "\n".join(lines)), (number, fragment))


PAIRS = [
    ("early_stopping: {patience: 1}\ntraining: {eval_strategy: no}", 5, "early_stopping needs evaluations"),
    ("early_stopping: {patience: 1}\ntraining: {save_strategy: no}", 5, "early_stopping needs evaluations"),
    (
        "early_stopping: {patience: 1}\ntraining: {load_best_model_at_end: false}",
        5,
        "keeps the best checkpoint",
    ),
    (
        "batching: {tokens: 4096}\ntraining: {per_device_eval_batch_size: 2}",
        5,
        "has no effect when `batching`",
    ),
    (
        "distillation: {teacher: a/b, alpha: 1}\ntraining: {label_smoothing_factor: 0.1}",
        5,
        "leaves the labels out",
    ),
    ("peft: {}\nfreeze: {layers: 2}", 5, "`peft` already freezes the whole encoder"),
]
BEYOND = "for classification with a pretrained encoder"
HEADLESS = [  # task, model -> what is said of its pooling and of its dropout
    ("question-answering", "name: a/b", (BEYOND, BEYOND)),
    ("token-classification", "name: a/b", (BEYOND, None)),
    ("text-classification", "config: mini, tokenizer: a/b", (BEYOND, BEYOND)),
    ("text-classification, method: head", "name: a/b", ("no effect with task.method head",) * 2),
    (
        "text-classification, method: contrastive",
        "name: a/b",
        ("no effect with task.method contrastive",) * 2,
    ),
    *((f"text-{kind}", "name: a/b", (None, None)) for kind in ("classification, method: full", "ranking")),
]


@pytest.mark.parametrize(("task", "model", "expected"), HEADLESS)
def test_pooling_and_dropout_without_a_head_that_reads_them(tmp_path, task, model, expected):
    stated = zip(("pooling: mean", "dropout: 0.0"), expected, strict=True)
    for setting, fragment in stated:
        lines = f"task: {{name: {task}}}\nmodel: {{{model}, {setting}}}\ndata: {{source: x/y}}"
        if fragment is None:
            (tmp_path / "my.yaml").write_text(lines)
            assert load_recipe(tmp_path / "my.yaml").model
        else:
            expect(problems(tmp_path, lines), (2, fragment))


def test_sections_that_contradict_each_other(tmp_path):
    for lines, number, fragment in PAIRS:
        expect(problems(tmp_path, HEAD + lines), (number, fragment))
    smooth = HEAD + "training: {label_smoothing_factor: 0.1}"
    for kind in ("multi-label", "regression"):
        expect(problems(tmp_path, smooth, f"task.kind={kind}"), (4, f"has no effect with task.kind {kind}"))
    crf = problems(tmp_path, smooth, "task={name: token-classification, head: crf}")
    expect(crf, (4, "has no effect with task.head crf"))
    divided = problems(tmp_path, HEAD + "training: {auto_find_batch_size: true}", "task={name: retrieval}")
    expect(divided, (4, "auto_find_batch_size: is not supported for losses that compare the rows"))


def test_what_bertkit_decides(tmp_path):
    found = problems(tmp_path, HEAD + "training:\n" + "".join(f"  {name}: 1\n" for name in DECIDED))
    expect(
        found, *((5 + place, f"training.{name}: bertkit decides this") for place, name in enumerate(DECIDED))
    )
    assert not [text for _, text in found if "{" in text or len(text.splitlines()) != 2]


def test_everything_is_reported_at_once_with_its_line(tmp_path):
    text = """\
task: {name: text-classification, kind: regression, thresholds: 0.5}
model:
  name: ./gone
  max_lenght: 64
data:
  source: {train: gone.csv}
  limit: many
training:
  warmup_ratio: 0.1
  learning_rate: "2e-5"
  learning_rate: 3e-5
  deepspeed: x
  lr_scheduler_type: cosin
seeds: &s [1, 1]
verify: !!bool true
"""
    expect(
        problems(tmp_path, text, "model.nam=x", "noequals", "data.validation=-2"),
        (1, "task.thresholds: has no effect"),
        (3, "model.name: no folder"),
        (4, "model.max_lenght: unknown key"),
        (6, "data.source.train: no file"),
        (7, "data.limit: expected"),
        (9, "training.warmup_steps"),
        (10, "without quotes"),
        (11, "written twice, in lines 10 and 11"),
        (12, "bertkit decides this"),
        (13, "did you mean 'cosine'?"),
        (14, "anchor &s"),
        (14, "seeds: 1 is listed 2 times"),
        (15, "tag !!bool"),
        ("override noequals", "no `=`"),
        ("override model.nam=x", "did you mean 'name'?"),
        ("override data.validation=-2", "a whole number of rows from 1"),
    )


OVERRIDES = [
    ("verify", "no `=`"),
    ("data.delimiter=|", '| is written as "|", in quotes'),
    ("", "no key"),
    ("data.group_by=#customer", "follows # as a comment"),
    ("data.group_by=Sentence #", "Write 'data.group_by=\"Sentence #\"'"),
    ("a..b=3", "no key"),
    ("~", "no key"),
    ("~verify", "verify: not in the recipe"),
    ("~modle.name", "modle: not in the recipe; did you mean 'model'?"),
    ("~model.name.x", "model.name: expected a mapping, found text 'some/model'"),
    ("~verify=3", "Write ~verify"),
    ("~model.name", "model.name: missing"),
    ("data.source.train=x", "Replace all of it: 'data.source={train: x}'"),
    ("data.limit=[", "YAML syntax"),
    ("model.name=" + "x" * 300_000, "more than 256 KB"),
    ("model.\x1b[31m=3", "unknown key"),
    ("model.name=\udcff", "not UTF-8"),
]


def test_overrides_that_can_not_be_applied(tmp_path, subtests):
    for override, fragment in OVERRIDES:
        with subtests.test(override[:60].encode(errors="replace").decode()):
            ((place, text),) = problems(tmp_path, HEAD, override)
            assert str(place).startswith("override ")
            assert len(str(place)) < 120
            assert fragment in text
            assert (str(place) + text.replace("\n", "")).isprintable()


def test_thousands_of_problems_are_counted_not_listed(tmp_path):
    found = problems(tmp_path, HEAD, *(f"k{number}=1" for number in range(500)))
    assert [place for place, _ in found] == [
        *(f"override k{number}=1" for number in range(50)),
        f"{tmp_path}/my.yaml",
    ]
    assert "and 450 more problems" in found[-1][1]


def test_recipes_that_are_not_there(tmp_path):
    (tmp_path / "mine.yaml").touch()
    for source, fragment in (
        ("sst22", "did you mean 'sst2'"),
        (tmp_path / "mien.yaml", "did you mean 'mine.yaml'?"),
        (tmp_path, "cannot be read: Is a directory"),
        ("\0", "not a valid file name"),
        ("\udcff", "no such recipe"),
        ("~nobody/my.yaml", "no such recipe"),
        ("x" * 5000, "cannot be read: File name too long"),
    ):
        message = message_of(RecipeError, load_recipe, source)
        assert fragment in message
        message.encode()


def test_labels_may_be_pairs_as_config_json_has_them(tmp_path):
    ((where, what),) = problems(
        tmp_path, HEAD, 'task.labels=[["0", a], ["1", b]]', "task.thresholds={c: 0.5}"
    )
    assert where == "override task.thresholds={c: 0.5}"
    assert "not a label" in what


def test_an_encoder_is_either_pretrained_or_new(tmp_path):
    for overrides, fragment in (
        (["model.config=mini"], "`name` is a model that has its own config"),
        (["model.tokenizer=a/b"], "`name` has its own tokenizer"),
        (["~model.name", "model.config=mini"], "a new encoder needs one"),
    ):
        assert any(fragment in text for _, text in problems(tmp_path, HEAD, *overrides)), fragment


def test_one_process_writes(tmp_path):
    lines = problems(tmp_path, HEAD + "training: {save_on_each_node: true}")
    expect(lines, (4, "save_on_each_node: bertkit decides this"))
