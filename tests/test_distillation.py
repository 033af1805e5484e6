"""Distillation: losses against definitions, each task, the cache, the student's layers, and the whole
program.
"""

import dataclasses
import logging
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import small
import torch
import transformers
from cases import BY_ID, CASES, LABELS, SETTINGS, TEXTS, Case, encoder, every
from conftest import build_encoder
from hypothesis import given
from hypothesis import strategies as st
from small import message_of, of_family, raises, refuses
from steps import FirstStep, arguments
from test_equivalence import assert_same_step
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForSequenceClassification, set_seed

from bertkit.attachments import distillation
from bertkit.attachments.distillation import Teacher, TeacherLoss, chosen_layers, find_teacher, keep_layers
from bertkit.attachments.soft_targets import SOFT_TARGETS
from bertkit.encoding.padding import Collator
from bertkit.engine.trainer import Trainer
from bertkit.engine.training_data import TaskData
from bertkit.errors import ModelError, RecipeError, UserError
from bertkit.files import sha256
from bertkit.inference.predictor import Predictor, load
from bertkit.inference.runner import Runner
from bertkit.models.encoder import load_tokenizer
from bertkit.models.heads import crf, losses
from bertkit.models.output_layer import rescale
from bertkit.report.score_tables import after_training
from bertkit.report.verdict import score_findings, verdict
from bertkit.sections import Distillation
from bertkit.training.seed import save
from bertkit.training.train import train

DISTILLED = [c for c in CASES if c.options["name"] in SOFT_TARGETS and c.options.get("loss") != "listwise"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/cache")


def save_teacher(case, home, folder, seed=1):
    """A model folder with opinions: weights drawn so wide that its outputs are far from uniform."""
    task = case.task(home)
    torch.manual_seed(seed)
    model = task.model(encoder(home))
    small.stir(model.parameters())
    save(model, task.finished(model), folder, SETTINGS)
    return folder


def teach(case, home, folder, **more):
    """The student's task, the section of its recipe, and the teacher."""
    task = case.task(home)
    spec = Distillation(teacher=str(save_teacher(case, home, folder)), **more)
    return task, spec, find_teacher(spec, task)


# --- losses


def test_kl_is_what_torch_and_the_paper_say_and_binary_that_of_two_classes_with_the_teachers_entropy():
    student, teacher = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)).unbind(0)
    # Both tolerances are 9 times fp32's rounding of a sum over the classes.
    loss = (
        torch.nn.KLDivLoss(reduction="none")((student / 3).log_softmax(1), (teacher / 3).softmax(1)).sum(1)
        * 9
    )
    assert torch.allclose(losses.kl(student, teacher, 3.0), loss, atol=1e-5)
    p = (teacher / 3).softmax(1)
    q = (student / 3).softmax(1)
    assert torch.allclose(losses.kl(student, teacher, 3.0), 9 * (p * (p / q).log()).sum(1), atol=1e-5)
    student, teacher = torch.randn(2, 7, generator=torch.Generator().manual_seed(0)).unbind(0)
    both = [torch.stack([logits, torch.zeros(7)], dim=1) for logits in (student, teacher)]
    entropy = torch.distributions.Bernoulli(logits=teacher / 2).entropy().sum() * 4
    expected = losses.kl(*both, 2.0).sum() + entropy
    assert losses.binary(student, teacher, 2.0).sum().item() == pytest.approx(expected.item(), rel=1e-5)


@torch.no_grad()
def marginals_of_the_loss(emissions, mask, chain):
    return crf.posterior(emissions, mask, chain).marginals


@pytest.mark.parametrize("tags", [["O", "B-X", "I-X"], ["O"] * 3])
def test_marginals_are_those_of_the_loss_and_pass_gradcheck(tags):
    """With padding, and where something is forbidden or nothing."""
    torch.manual_seed(0)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    emissions = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    free = [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((3, 3), (3,), (3,))]

    def real(emissions, *parts):
        chain = crf.constrain(crf.Chain(*parts), tags)
        return losses.log_marginals(emissions, mask, chain).exp()[mask]

    assert torch.autograd.gradcheck(real, (emissions, *free))
    joint = crf.constrain(crf.Chain(*free), tags)
    assert torch.allclose(real(emissions, *free), marginals_of_the_loss(emissions, mask, joint)[mask])


# --- each task


@every(DISTILLED)
def test_a_student_that_is_its_teacher_has_nothing_to_learn(case, tiny_encoder, tmp_path):
    task, spec, teacher = teach(case, tiny_encoder, tmp_path / "teacher")
    features = distillation.with_soft_targets(task.features(case.rows()), teacher)
    batch = Collator.of(task.tokenizer, task.padding)(task.examples(features, [*range(len(features))]))
    sizes = []
    same = teacher.predictor.model
    if case.id == "regression":  # a student learns in standard deviations
        mean, deviation = task.options.target_scale
        rescale(same, 1 / deviation, -mean / deviation)
    for model in (same, task.model(encoder(tiny_encoder))):
        model.train()
        loss = SOFT_TARGETS[task.name].loss(task, task.forward(model, batch), batch, spec.temperature)
        loss.backward()
        sizes.append(max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None))
        assert loss.dtype == torch.float32
    assert sizes[0] < 1e-2 * sizes[1]


def taught(case, home, args, step, **more):
    """The trainer of a student, after its training, and its teacher."""
    task, spec, teacher = teach(case, home, Path(args.output_dir) / "teacher", alpha=1.0, **more)
    set_seed(5)
    loss = TeacherLoss()
    runner = Runner(task, task.model(encoder(home)), args.device, "fp32", 8)
    loss.spec = spec
    loss.teacher = teacher
    loss.task = task
    data = TaskData(runner, loss.extend_features(task.features(case.rows()), args))
    trainer = Trainer(data, args, callbacks=[step], attachments=[loss])
    trainer.train()
    return trainer, teacher


@every([case for case in DISTILLED if not case.across_rows])
def test_accumulation_equals_one_batch(case, tiny_encoder, tmp_path):
    steps = []
    for size, accumulation in ((8, 1), (2, 4)):
        step = FirstStep()
        trainer, _ = taught(case, tiny_encoder, arguments(tmp_path / f"of {size}", size, accumulation), step)
        steps.append((next(e["loss"] for e in trainer.state.log_history if "loss" in e), step.gradients))
    assert_same_step(*steps)


def test_a_student_learns_the_teachers_probabilities_and_not_the_labels(tiny_encoder, tmp_path):
    """Its labels are the wrong ones, and with alpha 1 nothing reads them."""
    wrong = ["bad" if label == "good" else "good" for label in LABELS]
    case = Case("wrong", {"name": "text-classification"}, {"text": TEXTS, "label": wrong})
    args = arguments(tmp_path, 8, 1, max_steps=100, learning_rate=1.5e-2)
    trainer, teacher = taught(case, tiny_encoder, args, FirstStep(), temperature=1.0)
    own = Predictor(case.task(tiny_encoder), trainer.model.eval(), torch.device("cpu"), "fp32", 8, {})
    ours, theirs = ([answer["scores"]["good"] for answer in each(TEXTS)] for each in (own, teacher.predictor))
    assert max(theirs) - min(theirs) > 0.1  # else there would be nothing to learn
    assert ours == pytest.approx(theirs, abs=0.02)


@pytest.mark.parametrize("identifier", ["text-to-text", "mlm-nsp"])
def test_a_task_without_soft_targets_is_refused(identifier, tiny_encoder):
    task = BY_ID[identifier].task(tiny_encoder)
    said = rf"distillation: {task.name} cannot be distilled\n.*Remove it\. .*text-ranking"
    raises(UserError, said, find_teacher, Distillation(teacher=str(tiny_encoder)), task)


def test_soft_columns_are_padded_as_numbers():
    batch = Collator({"soft": 0.0})({"input_ids": [[1], [2]], "soft": [[0.25], [0.5, -1.5]]})
    assert torch.equal(batch["soft"], torch.tensor([[0.25, 0.0], [0.5, -1.5]]))
    empty = Collator({"soft": 0.0})({"input_ids": [[1], [2]], "soft": [[], []]})
    assert empty["soft"].shape == (2, 1)


# --- the cache


def test_the_teacher_is_asked_once(tiny_encoder, tmp_path, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    case = BY_ID["single-label"]
    task, _, teacher = teach(case, tiny_encoder, tmp_path / "teacher")
    told = []

    def ask(teacher, features):
        caplog.clear()
        soft = distillation.with_soft_targets(features, teacher)["soft"][:]
        told.append(re.findall(r"from the cache|computed", caplog.text))
        return soft

    features = task.features(case.rows())
    first = ask(teacher, features)
    assert ask(teacher, features) == first
    relabelled = task.features(case.rows().map(lambda row: {"label": "good"}))
    assert ask(teacher, relabelled) == first
    assert told == [["computed"], ["from the cache"], ["from the cache"]]
    told.clear()

    other = Teacher(save_teacher(case, tiny_encoder, tmp_path / "other", seed=2), load(tmp_path / "other"))
    assert ask(other, features) != first
    assert len(ask(teacher, features.select(range(7)))) == 7
    short = dataclasses.replace(task, max_length=8)
    assert ask(teacher, short.features(case.rows())) != first
    assert told == [["computed"]] * 3


def test_what_is_kept_is_what_the_teacher_says(tiny_encoder, tmp_path):
    case = BY_ID["pair"]
    task, _, teacher = teach(case, tiny_encoder, tmp_path / "teacher")
    features = task.features(case.rows())
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "teacher").eval()
    for feature, soft in zip(
        features, distillation.with_soft_targets(features, teacher)["soft"], strict=True
    ):
        inputs = {name: torch.tensor([feature[name]]) for name in ("input_ids", "token_type_ids")}
        assert soft == pytest.approx(plain(**inputs).logits[0].tolist(), abs=1e-5)


def test_where_nothing_can_be_kept_it_says_so(tiny_encoder, tmp_path, monkeypatch):
    case = BY_ID["single-label"]
    task, _, teacher = teach(case, tiny_encoder, tmp_path / "teacher")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/file/cache")
    raises(
        UserError,
        r"cannot be cached: .*\n +Start again\. If it fails again, free some space",
        distillation.with_soft_targets,
        task.features(case.rows()),
        teacher,
    )


# --- what a teacher must be


def refused(case, teacher, home, folder, **more):
    """What is said of this teacher."""
    path = save_teacher(teacher, home, folder)
    task = dataclasses.replace(case.task(home), **more)
    return message_of(ModelError, find_teacher, Distillation(teacher=str(path)), task)


def test_a_teacher_of_something_else_is_refused(tiny_encoder, tmp_path):
    one = BY_ID["single-label"]
    named = Case("named", {**one.options, "labels": {"bad": "poor", "good": "fine"}}, one.columns)
    labels = "distillation.teacher: labels is ['poor', 'fine'], the student's is ['bad', 'good']"
    for number, (case, teacher, what) in enumerate((
        (one, BY_ID["ner-crf"], "was trained for token-classification, not text-classification"),
        (one, BY_ID["multi-label"], "kind is 'multi-label', the student's is 'single-label'"),
        (one, named, labels),
        (one, named, "task: {labels: …}"),
        (BY_ID["ner-crf"], BY_ID["ner-softmax"], "head is 'softmax', the student's is 'crf'"),
    )):  # fmt: skip
        assert what in refused(case, teacher, tiny_encoder, tmp_path / str(number))
    said = refused(one, one, tiny_encoder, tmp_path / "longer", max_length=65)
    assert "it reads 64 tokens, the student 65" in said
    other = shutil.copytree(tiny_encoder, tmp_path / "other")
    words = {**load_tokenizer(tiny_encoder).get_vocab()}
    words["hound"] = words.pop("dog")
    transformers.BertTokenizer(vocab=words, model_max_length=64).save_pretrained(other)
    spec = Distillation(teacher=str(save_teacher(one, other, tmp_path / "teacher")))
    said = r"its vocabulary \(42 tokens\) differs from the student's \(42\)"
    raises(ModelError, said, find_teacher, spec, one.task(tiny_encoder))


def test_vectors_must_be_of_one_size(tiny_encoder, tmp_path):
    case = BY_ID["retrieval"]  # vectors of 6, hidden states of 16
    task, _, teacher = teach(case, tiny_encoder, tmp_path / "teacher")
    wide = Case("wide", {**case.options, "dense": 0}, case.columns).task(tiny_encoder)
    features = task.features(case.rows())
    distillation.check_sizes(teacher, task, task.model(encoder(tiny_encoder)), features)
    fix = r"its vectors have 6 numbers, the student's 16(?s:.*)task: \{dense: 6\}"
    raises(
        ModelError, fix, distillation.check_sizes, teacher, wide, wide.model(encoder(tiny_encoder)), features
    )
    narrow = tmp_path / "narrow"
    load_tokenizer(tiny_encoder).save_pretrained(narrow)
    config = transformers.BertConfig.from_pretrained(tiny_encoder, hidden_size=8)
    transformers.BertModel(config).save_pretrained(narrow)
    distillation.check_sizes(teacher, task, task.model(encoder(narrow)), features)


# --- the student's layers


@given(total=st.integers(2, 48), data=st.data())
def test_layers_are_distinct_and_reach_both_ends(total, data):
    count = data.draw(st.integers(2, total))
    assert chosen_layers(12, 6) == [0, 2, 4, 7, 9, 11]
    assert chosen_layers(12, 1) == [0]
    chosen = chosen_layers(total, count)
    assert (chosen[0], chosen[-1]) == (0, total - 1)
    assert len(chosen) == count
    assert chosen == sorted(set(chosen))


def test_a_shorter_student_starts_from_the_teachers_weights(tmp_path):
    case = BY_ID["single-label"]
    deep = build_encoder(tmp_path / "deep", layers=5)
    folder = save_teacher(case, deep, tmp_path / "teacher")
    task = case.task(folder)
    student = keep_layers(task.model(encoder(folder)), 3)
    save(student, task, tmp_path / "student", SETTINGS)
    again = load(tmp_path / "student").model
    theirs = load(folder).model
    assert again.config.num_hidden_layers == len(again.bert.encoder.layer) == 3
    for ours, place in zip(again.bert.encoder.layer, (0, 2, 4), strict=True):
        kept = theirs.bert.encoder.layer[place].state_dict()
        assert all(torch.equal(value, kept[name]) for name, value in ours.state_dict().items())
    assert torch.equal(again.classifier.weight, theirs.classifier.weight)


def test_a_setting_per_layer_goes_with_its_layer(tiny_encoder, tmp_path):
    sizes = {"num_hidden_layers": 4, "attention_window": [2, 4, 6, 8], "sep_token_id": 3}
    model = AutoModel.from_pretrained(of_family("longformer", tiny_encoder, tmp_path / "it", **sizes))
    keep_layers(model, 2).save_pretrained(tmp_path / "small")
    assert AutoModel.from_pretrained(tmp_path / "small").config.attention_window == [2, 8]


def test_an_encoder_decoder_is_refused_by_join_alone(tiny_encoder):
    model = BY_ID["text-to-text"].task(tiny_encoder).model(encoder(tiny_encoder))
    recipe = SimpleNamespace(distillation=Distillation(teacher="x", student={"layers": 1}))
    assert TeacherLoss().build_model(recipe, model) is model


def test_layers_that_are_not_there_or_not_alike_are_refused(tiny_encoder, tmp_path):
    model = BY_ID["single-label"].task(tiny_encoder).model(encoder(tiny_encoder))
    raises(
        ModelError,
        r"distillation.student.layers: 3 layers to keep, but the encoder has 2",
        keep_layers,
        model,
        3,
    )
    for kind in ("albert", "modernbert"):  # whose layers share their weights, or are not all alike
        other = AutoModel.from_pretrained(of_family(kind, tiny_encoder, tmp_path / kind, num_hidden_layers=4))
        raises(ModelError, r"the layers of a .* are of several kinds", keep_layers, other, 2)


# --- the recipe


def test_contradictions_are_found_in_the_recipe(tiny_encoder, tmp_path, monkeypatch):
    named = f"distillation.teacher={tiny_encoder}"
    new = ("~model.name", "model.config=tiny", f"model.tokenizer={tiny_encoder}")
    for overrides, what in (
        ((named, "distillation.temperature=0"), "must be more than 0"),
        ((named, "distillation.alpha=1.5"), "must be at most 1"),
        ((named, "distillation.student.layers=0"), "must be at least 1"),
        (("distillation.alpha=0.5",), "distillation.teacher: missing"),
        (("distillation={teachr: x}",), "did you mean 'teacher'"),
        (("distillation.teacher=./nowhere",), "distillation.teacher: no folder"),
        ((named, "distillation.student.layers=2", *new), "selects layers of a pretrained model"),
    ):
        raises(RecipeError, what, small.recipe, tmp_path, tiny_encoder, *overrides)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    recipe = small.recipe(tmp_path, tiny_encoder, "distillation.teacher=mine")
    assert recipe.distillation.teacher == f"{tmp_path}/mine"


# --- the whole program


@pytest.fixture(scope="module")
def taught_by(tmp_path_factory):
    """A teacher of four layers that has seen the small rows."""
    room = tmp_path_factory.mktemp("teacher")
    more = ("training.num_train_epochs=1", "training.eval_strategy=no", "training.save_strategy=no")
    return small.trained(room, build_encoder(room / "deep", layers=4), *more)


def distilled(folder, home, teacher, *overrides):
    return small.trained(folder, home, f"distillation.teacher={teacher.folder}", *overrides)


def test_from_a_run_to_a_student_of_half_its_layers(taught_by, tmp_path, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    more = ("distillation.student.layers=2", "training.learning_rate=1e-3", "seeds=[1,2]")
    run = distilled(tmp_path, taught_by.model, taught_by, *more)
    assert "teacher: 16 features (computed" in caplog.text
    assert "teacher: 16 features (from the cache)" in caplog.text  # the second seed
    assert AutoModelForSequenceClassification.from_pretrained(run.model).config.num_hidden_layers == 2
    theirs = taught_by.results["splits"]["validation"]["metrics"]
    assert run.results["baselines"]["validation"]["teacher"] == theirs
    card = (run.model / "README.md").read_text()
    table = after_training(run.folder, run.results)
    for text in (card, table):
        assert re.search(
            r"validation \(10 rows\) +this model +95 % interval +majority +tfidf +teacher\n", text
        )
        assert re.search(rf"accuracy .* {theirs['accuracy']:.4f}\n", text)
    assert re.search("<th[^>]*>teacher", (run.folder / "report.html").read_text())
    assert str(taught_by.folder) not in card
    assert f"teacher: {taught_by.folder.name}\n" in card


def test_a_teacher_is_no_baseline():
    metrics = {"accuracy": 0.8}
    results = {
        "headline": "accuracy",
        "splits": {"validation": {"rows": 100, "metrics": metrics, "intervals": {"accuracy": [0.78, 0.82]}}},
        "baselines": {"validation": {"majority": {"accuracy": 0.5}, "teacher": {"accuracy": 0.9}}},
        "seeds": [],
        "expected": None,
    }
    assert verdict(results, []).level == "good"
    assert not list(score_findings(results))


def test_alpha_0_is_training_without_a_teacher(taught_by, tiny_encoder, tmp_path):
    plain = small.trained(tmp_path / "plain", tiny_encoder)
    runs = [
        distilled(tmp_path / alpha, tiny_encoder, taught_by, f"distillation.alpha={alpha}")
        for alpha in ("0", "0.5")
    ]
    digests = [sha256(run.model / "model.safetensors") for run in (plain, *runs)]
    assert digests[1] == digests[0]
    assert digests[2] != digests[0]


def test_a_wrong_teacher_leaves_nothing_behind(tiny_encoder, tmp_path):
    wrong = save_teacher(BY_ID["ner-softmax"], tiny_encoder, tmp_path / "teacher")
    recipe = small.recipe(tmp_path, tiny_encoder, f"distillation.teacher={wrong}")
    refuses(ModelError, "was trained for token-classification", recipe, tmp_path)
    unfinished = small.recipe(tmp_path, tiny_encoder, f"distillation.teacher={tmp_path}")
    raises(
        ModelError,
        r"distillation\.teacher, .*neither a run nor a model folder",
        train,
        unfinished,
        tmp_path / "run",
    )


def test_soft_losses_are_those_of_their_formulas(tiny_encoder):
    student, teacher = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2)).unbind(0)
    case = BY_ID["single-label"]
    weighted = dataclasses.replace(case, options={**case.options, "class_weights": {"good": 3.0}})
    batch = {
        "row": torch.arange(4),
        "labels": torch.tensor([0, 1, 1, 0]),
        "soft": teacher[:, :2],
    }  # bad, good
    outputs = SimpleNamespace(logits=student[:, :2])
    soft = (teacher[:, :2] / 3).softmax(1)
    terms = F.kl_div((student[:, :2] / 3).log_softmax(1), soft, reduction="none").sum(1)
    expected = 0.25 * 9 * (terms * torch.tensor([1.0, 3.0, 3.0, 1.0])).sum().item() + 0.75 * 8
    attachment = TeacherLoss()
    attachment.task = weighted.task(tiny_encoder)
    attachment.spec = Distillation(teacher="t", temperature=3.0, alpha=0.25)
    taught = attachment.wrap_loss(lambda *_: torch.tensor(8.0))(outputs, batch, None)
    assert taught.item() == pytest.approx(expected, rel=1e-5)

    task = BY_ID["multi-label"].task(tiny_encoder)  # bad, good, long: 3
    gold = torch.tensor([[1.0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 1]])
    batch = {"row": torch.arange(4), "labels": gold, "soft": teacher}
    soft = (teacher / 2).sigmoid()
    terms = F.binary_cross_entropy_with_logits(student / 2, soft, reduction="none") * 4
    expected = (terms * (1 + 2 * gold * torch.tensor([0, 0, 1.0]))).sum().item()
    loss = SOFT_TARGETS[task.name].loss(task, SimpleNamespace(logits=student), batch, 2.0)
    assert loss.item() == pytest.approx(expected, rel=1e-5)

    batch = {"side": torch.tensor([0, 1, 0, 1]), "soft": teacher}
    loss = SOFT_TARGETS["retrieval"].loss(None, {"vectors": student}, batch, 1.0)
    assert loss.item() == pytest.approx(
        (1 - F.cosine_similarity(student, teacher)).sum().item() / 2, rel=1e-5
    )


@pytest.mark.parametrize("name", ["single-label", "similarity-cosent"])
def test_a_teacher_is_scored_on_labels_as_the_students_data_write_them(name, tiny_encoder, tmp_path):
    teacher = BY_ID[name]
    student = BY_ID["similarity-labels"]
    if name == "single-label":
        numbers = [str(int(label == "good")) for label in LABELS]
        labels = {**teacher.options, "labels": ["bad", "good"]}
        student = Case("0/1", labels, {**teacher.columns, "label": numbers})
    spec = Distillation(teacher=str(save_teacher(teacher, tiny_encoder, tmp_path / "t")))
    loss = TeacherLoss()
    loss.teacher = find_teacher(spec, student.task(tiny_encoder))
    assert 0 <= loss.score_references(student.rows(), [])["teacher"]["accuracy"] <= 1


def test_no_adapter_is_left_for_a_base_with_other_layers(taught_by, tmp_path):
    run = distilled(tmp_path, taught_by.model, taught_by, "distillation.student.layers=2", "peft.r=2")
    assert run.finished
    assert not (run.folder / "adapter").exists()
