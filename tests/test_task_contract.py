"""What every task promises, for every way to use it (tests/cases.py)."""

import dataclasses
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import small
import torch
import transformers
from cases import BY_ID, CASES, DRAWN, SETTINGS, TEXTS, Case, encoder, every
from datasets import Dataset
from finished import finished
from pydantic import TypeAdapter
from scipy.stats import spearmanr
from steps import NoDoubles
from torch.nn import functional as F
from transformers import set_seed

from bertkit.data.word_spans import words
from bertkit.encoding.padding import Collator, fills, pad
from bertkit.engine.arguments import Arguments
from bertkit.engine.multitask import TASK, MultiTask
from bertkit.engine.trainer import Trainer
from bertkit.engine.training_data import TaskData
from bertkit.errors import DataError
from bertkit.inference.evaluate import evaluate
from bertkit.inference.predict_file import predict
from bertkit.inference.predictor import Predictor, load
from bertkit.inference.runner import Runner, on_cpu
from bertkit.serving.schemas import answer_type, list_of
from bertkit.tasks import OURS
from bertkit.tasks.base import Task, calibrate
from bertkit.tasks.base import evaluate as evaluate_task
from bertkit.training.seed import save

CPU = torch.device("cpu")
VOCABULARY = sorted({word for text in TEXTS for word in text.split()})
ODD = [
    "",
    " ",
    "\u200b",
    "🙂",
    "🏳️‍🌈👩‍👩‍👧",
    "\x00\x07",
    "cat " * 5_000,
    "x" * 100_000,
    "\ud800 lone",
    "の猫",
    "a\r\nb\tc",
]

every_case = every(CASES)
ALONE = [
    case for case in CASES if not case.kind.schema.together and case.options.get("context") != "document"
]
ALONE = [case for case in ALONE if "anchor" not in case.columns]
every_case_of_rows_that_stand_alone = every(ALONE)


def fit(case, folder, out, steps=200, batch=4):
    """The case's task and a model that has learned its eight rows."""
    task = case.task(folder)
    set_seed(1)
    model = task.model(encoder(folder))
    args = Arguments(
        output_dir=str(out),
        max_steps=steps,
        learning_rate=1e-2,
        per_device_train_batch_size=batch,
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(TaskData(Runner(task, model, CPU, "fp32", 4), task.features(case.rows())), args)
    trainer.train()
    return task, model


Begun = Callable[[Case], tuple[Task, Any]]


@pytest.fixture(scope="module")
def begun(tiny_encoder, tmp_path_factory):
    """A case -> its task, and a model after ten steps. Trained once: nobody may change it."""
    made = {}

    def of(case):
        if case.id not in made:
            made[case.id] = fit(case, tiny_encoder, tmp_path_factory.mktemp("begun"), steps=10)
        return made[case.id]

    return of


def ask(task, model, batch_size=4):
    return Predictor(task, model.eval(), CPU, "fp32", batch_size, {})


def reopened(task, model, folder):
    """The model, saved in this folder and loaded from it."""
    save(model, task, folder, SETTINGS)
    again = load(folder, precision="fp32")
    assert again.task.options == task.options
    return again


def opened(kind, folder, capfd):
    """The folder's model by this class of transformers, which finds every tensor and warns of nothing."""
    transformers.logging.set_verbosity_warning()
    try:
        with warnings.catch_warnings(action="error"):
            model, report = kind.from_pretrained(folder, output_loading_info=True)
    finally:
        transformers.logging.set_verbosity_error()
    assert not any(report.values()), report
    assert not any(
        word in capfd.readouterr().err.lower() for word in "unexpected missing report warn".split()
    )
    return model


def numbers(answer):
    """The scores in an answer, and the characters of a text that was generated."""
    if isinstance(answer, float):
        return [answer]
    if isinstance(answer, dict):
        answer = [
            [*map(float, map(ord, value))] if key == "generated_text" else value
            for key, value in answer.items()
        ]
    return [number for value in answer for number in numbers(value)] if isinstance(answer, list) else []


@every_case
def test_the_scores_that_select_a_checkpoint_are_those_after_calibration(case, begun):
    task, model = begun(case)
    predict = ask(task, model).predict_features
    rows = case.rows()
    selecting = evaluate_task(task, rows, predict, fitted=True)
    reported = evaluate_task(calibrate(task, rows, predict), rows, predict)
    assert [selecting.get(name) for name in task.metrics] == pytest.approx(
        [reported.get(n) for n in task.metrics]
    )


QUICK = """single-label multi-label pair qa-windows-or-none similarity-cosent similarity-in-batch retrieval
ner-crf-windows-bioes""".split()  # which need less than 40 steps


@every_case
def test_learns_eight_rows_by_heart(case, tiny_encoder, tmp_path):
    # most of eleven have no row
    steps, batch = (200, 4) if case.class_names else (60 if case.id in QUICK else 120, 8)
    task, model = fit(case, tiny_encoder, tmp_path, steps, batch)
    scores = evaluate_task(task, case.rows(), ask(task, model).predict_features)
    assert scores[task.metrics[0]] > (95 if task.metrics[0] == "bleu" else 0.95)


@every([*CASES, *DRAWN])
def test_every_parameter_moves(case, tiny_encoder, begun):
    before = {
        name: p.clone() for name, p in case.task(tiny_encoder).model(encoder(tiny_encoder)).named_parameters()
    }
    _, model = begun(case)
    moving = [(n, p) for n, p in model.named_parameters() if p.requires_grad and "classifier" not in n]
    still = [name for name, p in moving if torch.equal(p, before[name])]
    assert not still


@every_case
def test_saved_and_loaded_it_gives_the_same_answers(case, begun, tmp_path):
    task, model = begun(case)
    task = calibrate(task, case.rows(), ask(task, model).predict_features)
    again = reopened(task, model, tmp_path / "model")
    assert again.task.tokenizer.split_special_tokens
    rows = case.asked
    assert dataclasses.replace(again, model=again.model.to(CPU), device=CPU)(rows) == ask(task, model)(rows)


@every_case
def test_every_score_of_a_model_is_the_same_score(case, tiny_encoder, tmp_path):
    """That of the run's results, of `evaluate`, and of the file that `predict` wrote: to the last digit."""
    run = finished(case, tiny_encoder, tmp_path / "run")
    scores = run.results["splits"]["validation"]["metrics"]
    file = small.write_rows(tmp_path / "rows.jsonl", case.rows().to_list())
    out = tmp_path / "out.jsonl"
    for source in (run.folder, run.model):
        assert evaluate(source, data=file)["metrics"] == scores
    assert predict(run.model, file, out) == len(case.rows())
    answers = [row["answer"] for row in small.read_rows(out)]
    assert [row["answer"] for row in small.read_rows(run.predictions("validation"))] == answers
    assert run.load().task.grade(answers, case.rows()).scores == scores


@every_case_of_rows_that_stand_alone
def test_padding_and_company_change_nothing(case, begun):
    task, model = begun(case)
    rows = case.asked
    with NoDoubles():
        together = ask(task, model, batch_size=8)(rows)
    TypeAdapter(list_of(answer_type(task))).validate_python(together)  # as the task declares them
    for row, answer in zip(rows, together, strict=True):
        assert numbers(ask(task, model)(row)) == pytest.approx(numbers(answer), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@every([case for case in CASES if "target" not in case.columns])
def test_only_the_encoder_rounds(case, precision, tiny_encoder):
    """A head that rounded its outputs to 8 bits would give many rows the same score."""
    task = case.task(tiny_encoder)
    drawn = random.Random(0)
    columns = case.inputs
    set_seed(0)
    model = task.model(encoder(tiny_encoder))
    small.stir(model.parameters())
    texts = {n: [drawn.choices(VOCABULARY, k=drawn.randint(3, 9)) for _ in TEXTS * 5] for n in columns}
    rows = {
        name: values if name == "tokens" else [" ".join(words) for words in values]
        for name, values in texts.items()
    }
    features = task.encode(Dataset.from_dict(rows))
    arrays = pad(task.examples(features, range(len(features))), fills(task.tokenizer, task.padding))
    scores = []
    for kind in ("fp32", precision):
        runner = Runner(task, model, CPU, kind, 8)
        with runner.inference():
            reduced = on_cpu(runner.run(arrays))
        scores.append(
            np.concatenate(
                [values[np.isfinite(values)] for values in reduced.values() if values.dtype == "f4"]
            )
        )
    exact, rounded = scores
    bits = 16 if precision == "bf16" else 13  # that fp32 has besides
    assert (rounded.view(np.uint32) % 2**bits == 0).mean() < 0.1
    if precision == "fp16":
        assert np.abs(rounded - exact).max() < 1e-2 * np.abs(exact).max()
    assert len(np.unique(rounded)) > 0.98 * len(np.unique(exact))
    assert spearmanr(exact, rounded).statistic > 0.99


@every_case_of_rows_that_stand_alone
def test_a_frame_without_rows_has_the_columns_of_an_answer(case, begun):
    predictor = ask(*begun(case))
    rows = case.rows().select_columns(case.inputs)
    assert list(predictor.frame(rows.to_pandas()[:0])) == list(predictor.frame(rows.to_pandas()[:1]))


@every_case
def test_odd_texts_are_answered(case, tiny_encoder):
    task = case.task(tiny_encoder)
    predict = ask(task, task.model(encoder(tiny_encoder)))
    read = {"text"} if {"text"} in task.inputs else task.inputs[0]
    rows = [{name: "the cat ?" if name in ("question", "query") else text for name in read} for text in ODD]
    answers = predict(rows)
    assert len(answers) == len(ODD)
    assert np.isfinite([number for answer in answers for number in numbers(answer)]).all()
    long = answers[ODD.index("cat " * 5_000)]
    assert long["truncated"] is (case.cuts or getattr(task.options, "overflow", "") == "truncate")
    if "words" in long:
        assert len(long["words"]) == 5_000
        assert all(
            len(answer["words"]) == len(words(text)) for text, answer in zip(ODD[:8], answers, strict=False)
        )


SPELLED = "[SEP] cat [CLS] [PAD][MASK]"


@every_case
def test_special_tokens_that_a_text_spells_out_are_text(case, tiny_encoder):
    task = case.task(tiny_encoder)
    tokenizer = task.tokenizer
    special = {
        tokenizer.cls_token_id,
        tokenizer.sep_token_id,
        tokenizer.pad_token_id,
        tokenizer.mask_token_id,
    }

    def encoded(text):
        columns = {name: [text] for name in case.inputs}
        columns |= {"tokens": [text.split()]} if "tokens" in columns else {}
        features = task.encode(Dataset.from_dict(columns))
        return [[token for token in ids if token in special] for ids in features["input_ids"][:]]

    template = encoded("the cat")[0]
    assert all(found == template for found in encoded(SPELLED))
    assert special & set(
        tokenizer(SPELLED, split_special_tokens=False, add_special_tokens=False)["input_ids"]
    )


@every_case
def test_a_surrogate_pair_is_read_as_its_character_or_refused_where_it_shifts_offsets(case, begun):
    predict = ask(*begun(case))
    row = {
        name: values[0] for name, values in case.columns.items() if name in case.inputs and name != "document"
    }
    row |= {"document": case.columns["document"][0]} if "query" in row else {}
    one, two = (
        {
            name: [mark, *value] if isinstance(value, list) else f"{mark} {value}"
            for name, value in row.items()
        }
        for mark in ("😀", "\ud83d\ude00")
    )
    if any(case.kind.schema.columns[name].located for name in row):
        small.raises(
            DataError,
            r"row 2: `(tokens|context)` holds a character as a pair of surrogates",
            predict,
            [one, two],
        )
    else:
        assert predict([two]) == predict([one])


HEADED = [case for case in CASES if {"target", "method"}.isdisjoint([*case.columns, *case.options])]
HEADED = [case for case in HEADED if not case.kind.gives("vector")]


@every(HEADED)
def test_a_fresh_head_is_initialised_memory(case, tiny_encoder):
    """from_pretrained builds on `meta`: a head that nothing initialises would be whatever was in memory."""
    models = []
    for _ in range(2):
        set_seed(7)
        models.append(case.task(tiny_encoder).model(encoder(tiny_encoder)))
    (head,) = {name.partition(".")[0] for name, _ in models[0].named_parameters()} & {
        "classifier",
        "qa_outputs",
    }
    weights = [dict(model.named_parameters())[f"{head}.weight"].detach() for model in models]
    assert torch.equal(*weights)
    assert 0.005 < float(weights[0].std()) < 0.05
    assert not dict(models[0].named_parameters())[f"{head}.bias"].any()


def test_tasks_are_immutable():
    assert all(kind.__dataclass_params__.frozen for kind in OURS.values())


@every_case
def test_features_of_chunks_are_those_of_all_rows(case, tiny_encoder, monkeypatch):
    if case.options.get("context") == "document":
        pytest.skip("the neighbours of a sentence are those of its chunk")
    task = case.task(tiny_encoder)
    whole = task.encode(case.rows())[:]
    monkeypatch.setattr(type(task), "chunk_size", 3)
    found = task.features(case.rows()).to_dict()
    units = np.asarray(task.units(task.features(case.rows())))
    assert (np.diff(units) >= 0).all()  # what is learned together stands together
    queries = found.pop("group", None)
    if queries:
        assert len(set(queries)) < len(queries)
        order = np.argsort(found["row"], kind="stable")
        found = {name: [values[place] for place in order] for name, values in found.items()}
    assert found == whole


@every_case_of_rows_that_stand_alone
def test_chunks_do_not_change_answers(case, tiny_encoder, monkeypatch):
    task = case.task(tiny_encoder)
    predict = ask(task, task.model(encoder(tiny_encoder)))
    rows = case.rows().select_columns(case.inputs)
    whole = list(task.answer(rows, predict.predict_features))
    monkeypatch.setattr(type(task), "chunk_size", 3)
    parts = list(task.answer(rows, predict.predict_features))
    for one, other in zip(whole, parts, strict=True):
        assert numbers(one) == pytest.approx(numbers(other), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ["ner-softmax", "mlm", "text-to-text"])
def test_labels_are_smoothed_as_by_torch(name, tiny_encoder):
    case = BY_ID[name]
    task = case.task(tiny_encoder)
    torch.manual_seed(0)
    model = task.model(encoder(tiny_encoder)).eval()
    small.stir(model.parameters())
    features = task.features(case.rows())
    drawn = task.examples(features, range(len(features)), (0, 0))
    batch = Collator.of(task.tokenizer, task.padding)(drawn)
    with torch.no_grad():
        outputs = task.forward(model, batch)
        smoothed, plain = (task.loss(outputs, batch, share).sum().item() for share in (0.3, 0.0))
        if name == "mlm":
            logits, labels = outputs.prediction_logits, batch["labels"][task.chosen(batch)]
        else:
            outputs_, labels = task.loss_inputs(outputs, batch)
            logits = outputs_.logits
    options = {"reduction": "sum", "label_smoothing": 0.3}
    expected = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), **options).item()
    assert smoothed == pytest.approx(expected, rel=1e-5)
    assert abs(smoothed - plain) > 0.1
    if name == "ner-softmax":
        both = MultiTask({"a": task}, {"a": 2.0})
        assert both.loss(outputs, {**batch, TASK: "a"}, 0.3).item() == pytest.approx(2 * smoothed, rel=1e-5)


def test_checkpoints_are_chosen_by_the_scores_that_are_reported(tiny_encoder):
    case = BY_ID["multi-label"]
    task = case.task(tiny_encoder)
    torch.manual_seed(0)
    model = task.model(encoder(tiny_encoder))
    small.stir(model.parameters())
    runner = Runner(task, model, torch.device("cpu"), "fp32", 4)
    rows = case.rows()
    chosen_by = TaskData(runner, task.features(rows), rows).evaluate(model, None)
    reported = evaluate_task(calibrate(task, rows, runner), rows, runner)
    plain = evaluate_task(task, rows, runner)
    assert chosen_by == pytest.approx({name: reported[name] for name in chosen_by})
    assert chosen_by != pytest.approx({name: plain[name] for name in chosen_by})
