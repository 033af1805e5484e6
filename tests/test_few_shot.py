"""task.method: a linear head, contrastive fine-tuning before it, and the choice of a method."""

import json
import shutil
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import small
import torch
from cases import GRADES, LABELS, LONG, NAME, SETTINGS, SIDES, TEXTS, Case, encoder
from huggingface_hub import ModelCard
from numpy.testing import assert_allclose
from safetensors.torch import save_file
from scipy.special import expit, log_softmax, softmax
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from small import message_of, raises, write_recipe, write_rows
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import AutoModel, AutoModelForSequenceClassification, TrainerCallback

import bertkit
from bertkit.errors import DataError, RecipeError
from bertkit.exports.program import export
from bertkit.files import read_json
from bertkit.inference.predictor import load
from bertkit.inference.runner import Runner
from bertkit.methods import contrastive, head, linear
from bertkit.methods.linear import STRENGTHS, Examples, fit_linear
from bertkit.models.heads.vector_head import Dense, Layout, files
from bertkit.recipe.fields import FEW_ROWS, TRAINING_DEFAULTS
from bertkit.recipe.recipe import load_recipe, to_yaml
from bertkit.training.job import prepare_jobs
from bertkit.training.seed import METHODS, save
from bertkit.training.train import train

CPU = torch.device("cpu")
HEAD = {**NAME, "method": "head"}
MULTI = {"text": TEXTS, "labels": [["good"] if s == 0 else ["bad", "long"] for s in SIDES]}
PAIR = {"text_a": TEXTS, "text_b": TEXTS[::-1], "label": LABELS}
KINDS = [
    Case("single-label", HEAD, {"text": TEXTS, "label": LABELS}),
    Case("three-labels", HEAD, {"text": TEXTS * 2, "label": [*LABELS[:-2], "odd", "odd"] * 2}),
    Case("class-weights", {**HEAD, "class_weights": {"good": 3.0}}, {"text": TEXTS, "label": LABELS}),
    Case("multi-label", {**HEAD, "class_weights": {"good": 3.0}}, MULTI),
    Case("regression", HEAD, {"text": TEXTS, "score": GRADES}),
    Case("pair", HEAD, PAIR),
    Case(
        "windows", {**HEAD, "overflow": "window", "stride": 4}, {"text": LONG, "label": LABELS}, max_length=16
    ),
]


def fit(runner, features, seed):
    """By the method that the runner's task names."""
    return METHODS[str(runner.task.method)](runner, features, seed)


def learned(case, folder):
    """The task, the model fitted on the case's rows, and their vectors."""
    task = case.task(folder)
    runner = Runner(task, task.model(encoder(folder)), CPU, "fp32", 4)
    features = task.features(case.rows())
    model, _ = fit(runner, features, seed=0)
    return task, replace(runner, model=model), head.examples_of(runner, features)


def objective(x, y, coefficients, intercepts, weights, C):
    """What LogisticRegression minimises; of two labels the coefficients `(1, size)` are the second's."""
    logits = x @ coefficients.T + intercepts
    if len(coefficients) == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    return (coefficients**2).sum() / 2 - C * (weights[y] * log_softmax(logits, 1)[np.arange(len(y)), y]).sum()


@pytest.mark.parametrize(
    ("case", "layout"), [*((case, None) for case in KINDS), (KINDS[0], Layout("cls", normalize=True))]
)
def test_a_head_is_as_good_as_that_of_scikit_learn(case, layout, tiny_encoder, tmp_path, monkeypatch):
    """The minimum is compared, not its place: the valley is so flat that two optimisers stop 1e-3 apart in
    it.
    """
    monkeypatch.setattr(head, "words_of", lambda names: [])
    task, runner, examples = learned(case, with_layout(tiny_encoder, tmp_path / "encoder", layout))
    length = np.linalg.norm(examples.vectors, axis=1).mean()
    x = examples.vectors / length
    y = examples.targets
    answers = list(task.answer(case.rows(), runner))
    linear = head.fit_head(task, examples, None, seed=0)
    if task.kind == "regression":
        expected = RidgeCV([1 / strength for strength in STRENGTHS]).fit(x, y).predict(x)
        assert [answer["score"] for answer in answers] == pytest.approx(expected, abs=1e-5)
        return
    logits = linear.logits(examples.vectors)
    exclusive = task.kind == "single-label"
    table = np.array([list(answer["scores"].values()) for answer in answers])
    assert_allclose(table, softmax(logits, 1) if exclusive else expit(logits), atol=1e-5)
    weights = np.array([(task.options.class_weights or {}).get(name, 1.0) for name in task.names])
    coefficients = linear.weight * length
    intercepts = linear.bias
    problems = [(y, coefficients, intercepts, weights)]
    if exclusive and len(task.names) == 2:
        problems = [(y, coefficients[1:] - coefficients[:1], intercepts[1:] - intercepts[:1], weights)]
    if not exclusive:
        columns = range(len(task.names))
        of_label = [np.array([1.0, weights[n]]) for n in columns]
        problems = [(y[:, n].astype(int), coefficients[[n]], intercepts[[n]], of_label[n]) for n in columns]
    for targets, *parameters, of_labels in problems:
        by_label = dict(enumerate(of_labels))
        model = LogisticRegression(C=linear.strength, max_iter=10_000, tol=1e-10, class_weight=by_label).fit(
            x, targets
        )
        least = objective(x, targets, model.coef_, model.intercept_, of_labels, linear.strength)
        reached = objective(x, targets, *parameters, of_labels, linear.strength)
        assert reached == pytest.approx(least, rel=1e-4)


def normed(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def clusters(labels, each, noise):
    """Vectors of length 1 around a centre for each label."""
    draw = np.random.default_rng(0)
    targets = np.repeat(np.arange(labels), each)
    vectors = draw.normal(size=(labels, 12))[targets] + noise * draw.normal(size=(len(targets), 12))
    return Examples(normed(vectors), targets)


def by_hand(rows, names, count=5):
    """C -> log loss of the held-out rows."""
    losses = dict.fromkeys(STRENGTHS, 0.0)
    for learned, held in StratifiedKFold(count, shuffle=True, random_state=3).split(
        rows.vectors, rows.targets
    ):
        part = rows[learned] + names if names else rows[learned]
        for C in STRENGTHS:
            model = LogisticRegression(C=C, max_iter=1000, tol=1e-6).fit(part.vectors, part.targets)
            losses[C] += log_loss(rows.targets[held], model.predict_proba(rows.vectors[held])) * len(held)
    return {C: loss / len(rows.targets) for C, loss in losses.items()}


def test_the_strength_is_that_of_least_held_out_log_loss_of_many_labels_in_three_folds():
    rows = clusters(4, 6, 2.5)
    losses = by_hand(rows, None)
    found = linear.held_out_losses("single-label", rows, 4, None, None, seed=3)
    assert found == pytest.approx(losses, rel=1e-2, abs=1e-3)
    assert fit_linear("single-label", rows, 4, seed=3).strength == min(losses, key=losses.__getitem__)
    rows = clusters(33, 3, 0.1)
    losses = by_hand(rows, None, count=3)
    found = linear.held_out_losses("single-label", rows, 33, None, None, seed=3)
    assert found == pytest.approx(losses, rel=1e-2)
    assert found[256.0] < 0.8 * found[64.0]


def test_names_are_rows_only_where_held_out_rows_gain_from_them():
    rows = clusters(4, 5, 1.0)
    centres = clusters(4, 1, 0.0)
    good = fit_linear("single-label", rows, 4, names=centres, seed=3)
    assert good.with_names
    assert by_hand(rows, centres)[good.strength] < min(by_hand(rows, None).values())
    misleading = Examples(centres.vectors, centres.targets[[1, 2, 3, 0]])
    bad = fit_linear("single-label", rows, 4, names=misleading, seed=3)
    assert not bad.with_names
    assert_allclose(bad.weight, fit_linear("single-label", rows, 4, seed=3).weight)


def test_few_rows_of_a_label_are_enough_and_one_without_rows_is_never_the_likeliest():
    for labels, each, noise in ((30, 1, 0.1), (30, 2, 0.1), (3, 1, 0.0)):
        rows = clusters(labels, each, noise)
        model = fit_linear("single-label", rows, labels)
        assert (model.logits(rows.vectors).argmax(1) == rows.targets).mean() > 0.8
        assert each > 1 or model.strength == linear.UNCHECKED
    rows = clusters(4, 6, 1.0)
    single = Examples(-rows.vectors[:1], np.array([4]))
    known = linear.held_out_losses("single-label", rows + single, 5, None, None, seed=3)
    assert all(np.isfinite(loss) and loss < 5 for loss in known.values())
    rows = clusters(3, 4, 0.5)
    model = fit_linear("single-label", rows, 4)
    assert (softmax(model.logits(rows.vectors), 1)[:, 3] < 1e-6).all()
    of_three = fit_linear("single-label", rows, 3)
    assert_allclose(model.logits(rows.vectors)[:, :3], of_three.logits(rows.vectors))
    column = np.eye(2)[rows.targets % 2] * [1, 0]
    multi = fit_linear("multi-label", Examples(rows.vectors, column), 2)
    assert_allclose(expit(multi.logits(rows.vectors))[:, 1], 0.5 / 13)


def test_names_as_words():
    for names, words in (
        (["card_arrival", "Refund_not_showing_up"], ["card arrival", "Refund not showing up"]),
        (["sci.space", "CamelCase"], ["sci space", "Camel Case"]),
        (["über/größe", "日本"], ["über größe", "日本"]),
        (["सकारात्मक", "ดี-มาก"], ["सकारात्मक", "ดี มาก"]),
        (["جَيِّد", "می\u200cخواهم!"], ["جَيِّد", "می\u200cخواهم"]),
        (["0", "1"], []),
        (["4.5", "good"], []),
        (["C", "C++", "C#"], []),
    ):
        assert linear.words_of(names) == words


LAYOUTS = [
    None,
    Layout("mean", dense=6, activation="Tanh"),
    Layout("cls", dense=6, bias=False, normalize=True),
]


def with_layout(tiny_encoder, folder, layout):
    """The encoder in a folder of sentence-transformers; None: as it is."""
    if layout is None:
        return tiny_encoder
    shutil.copytree(tiny_encoder, folder)
    for name, content in files(layout, 16, 32).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    if layout.dense:
        torch.manual_seed(4)
        save_file(Dense(16, layout).state_dict(), folder / "2_Dense/model.safetensors")
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sentence_transformers_gives_the_logits_of_a_saved_head(layout, tiny_encoder, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    task, runner, examples = learned(KINDS[1], with_layout(tiny_encoder, tmp_path / "encoder", layout))
    save(runner.model, task, tmp_path / "model", SETTINGS)
    theirs = library.SentenceTransformer(f"{tmp_path}/model", device="cpu").encode(TEXTS)
    linear = head.fit_head(task, examples, head.names_of(runner), seed=0)
    assert_allclose(theirs, linear.logits(examples.vectors)[:8], atol=1e-4)
    found = [list(each["scores"].values()) for each in load(tmp_path / "model")(TEXTS)]
    assert_allclose(found, softmax(theirs, 1), atol=1e-5)
    assert not list((tmp_path / "model").rglob("*.bin"))
    # it would have a random head
    raises(
        RuntimeError,
        "ignore_mismatched_sizes",
        AutoModelForSequenceClassification.from_pretrained,
        tmp_path / "model",
    )
    _, loading = AutoModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not loading["missing_keys"]


@pytest.mark.parametrize("case", [KINDS[1], KINDS[3], KINDS[5], KINDS[6]], ids=lambda case: case.id)
def test_the_cards_code_gives_the_same(case, tiny_encoder, tmp_path):
    task, runner, _ = learned(case, with_layout(tiny_encoder, tmp_path / "encoder", LAYOUTS[2]))
    task = replace(task, options=task.options.model_copy(update={"temperature": 1.5}))
    save(runner.model, task, tmp_path / "model", SETTINGS)
    code = task.usage_of(task.options).plain
    found = {}
    exec(code.replace("PATH_OR_HUB_ID", f"{tmp_path}/model"), found)
    pair = [{"text_a": "your text", "text_b": "another"}]
    answers = load(tmp_path / "model", precision="fp32")(
        pair if task.options.pair else ["your text", "another"]
    )
    ours = [list(each["scores"].values()) if task.names else each["score"] for each in answers]
    assert_allclose(found["probabilities" if task.names else "scores"], ours, atol=1e-5)


def test_what_has_no_effect_on_a_head_is_refused_at_once(tiny_encoder, tmp_path):
    file = write_recipe(tmp_path, tiny_encoder)
    overrides = ["task.method=head", "peft.r=4", "early_stopping.patience=2"]
    said = message_of(RecipeError, load_recipe, file, overrides)
    for key in "training.learning_rate training.num_train_epochs peft early_stopping".split():
        assert f"{key}: has no effect with task.method head" in said
    assert "training.per_device_eval_batch_size" not in said
    new = ["~training", "model.config={hidden_size: 16}", "~model.name", f"model.tokenizer={tiny_encoder}"]
    raises(RecipeError, "needs a pretrained encoder", load_recipe, file, ["task.method=head", *new])


@pytest.mark.parametrize("method", ["head", "full", "null"])
def test_a_written_recipe_is_the_same_recipe(method, tiny_encoder, tmp_path):
    given = load_recipe(write_recipe(tmp_path, tiny_encoder), [f"task.method={method}", "~training"])
    (tmp_path / "again.yaml").write_text(to_yaml(given))
    assert load_recipe(tmp_path / "again.yaml") == given
    for other in ("head", "full", "null"):
        assert given.with_(f"task.method={other}").with_(f"task.method={method}") == given
    rate = given.training.get("learning_rate")
    assert (
        rate
        == {"head": None, "full": FEW_ROWS["learning_rate"], "null": TRAINING_DEFAULTS["learning_rate"]}[
            method
        ]
    )


CONTRASTIVE = {**NAME, "method": "contrastive"}
PULLED = [Case("single-label", CONTRASTIVE, KINDS[0].columns), Case("multi-label", CONTRASTIVE, MULTI)]


@pytest.mark.parametrize("case", PULLED, ids=[case.id for case in PULLED])
def test_texts_with_a_label_in_common_are_pulled_together(case, tiny_encoder_with_dropout, monkeypatch):
    monkeypatch.setattr(contrastive, "PASSES", 40)
    monkeypatch.setattr(contrastive, "LEARNING_RATE", 6e-3)
    task = case.task(tiny_encoder_with_dropout)
    features = task.features(case.rows())
    found = []
    for _ in range(2 if case is PULLED[0] else 1):
        model = task.model(encoder(tiny_encoder_with_dropout))
        before = {name: value.clone() for name, value in model.named_parameters()}
        runner = Runner(task, model, CPU, "fp32", 4)
        contrasts = [contrast(head.examples_of(runner, features))]
        assert fit(runner, features, seed=3)[1]["steps"] == 40
        contrasts.append(contrast(head.examples_of(runner, features)))
        assert contrasts[1] > contrasts[0] + 0.04
        moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
        assert {name for name in before if name.startswith(("encoder.", "classifier."))} == moved
        found.append(model.state_dict())
    assert all(torch.equal(found[0][name], value) for name, value in found[-1].items())


def contrast(rows):
    """By how much cosines of rows with a label in common are higher than those of the others."""
    unit = normed(rows.vectors)
    targets = rows.targets if rows.targets.ndim > 1 else np.eye(rows.targets.max() + 1)[rows.targets]
    alike = targets @ targets.T > 0
    other = ~np.eye(len(unit), dtype=bool)
    cosines = unit @ unit.T
    return float(cosines[alike & other].mean() - cosines[~alike & other].mean())


def untrained(case, folder):
    """The case's task, runner and features; vectors of its rows, and of the names of its labels."""
    task = case.task(folder)
    runner = Runner(task, task.model(encoder(folder)), CPU, "fp32", 8)
    features = task.features(case.rows())
    return task, runner, features, head.examples_of(runner, features), head.names_of(runner)


def test_prototypes_start_as_means_of_texts_and_names(tiny_encoder, monkeypatch):
    monkeypatch.setattr(contrastive, "MICRO", 3)
    monkeypatch.setattr(contrastive, "LEARNING_RATE", 0.0)
    monkeypatch.setattr(contrastive, "PROTOTYPES", 0.0)
    case = PULLED[0]
    task, runner, features, rows, names = untrained(case, tiny_encoder)
    unit = normed((rows + names).vectors)
    labels = (rows + names).targets
    means = np.stack([unit[labels == label].mean(0) for label in range(len(task.names))])
    model, facts = fit(runner, features, seed=0)
    weight, bias = (
        each.detach().numpy() for each in (model.classifier.linear.weight, model.classifier.linear.bias)
    )
    assert_allclose(weight, 20 * normed(means), atol=1e-5)
    counts = np.bincount(labels)
    assert_allclose(bias, np.log((counts + 1) / (counts.sum() + len(counts))), atol=1e-6)
    assert facts["C"] is None


def test_the_first_loss_is_that_of_a_softmax_over_cosines(tiny_encoder, caplog, monkeypatch):
    for name in ("LEARNING_RATE", "PROTOTYPES"):
        monkeypatch.setattr(contrastive, name, 0.0)
    weights = {label: 1.0 + number for number, label in enumerate(dict.fromkeys(LABELS))}
    case = Case("weights", {**CONTRASTIVE, "class_weights": weights}, {"text": TEXTS, "label": LABELS})
    task, runner, features, rows, names = untrained(case, tiny_encoder)
    with caplog.at_level("INFO", logger="bertkit"):
        model, _ = fit(runner, features, seed=0)
    total = rows + names
    logits = total.vectors @ model.classifier.linear.weight.detach().numpy().T
    logits += model.classifier.linear.bias.detach().numpy()
    each = linear.losses_of("single-label", logits, total.targets)
    factors = np.array([weights[task.names[label]] for label in total.targets])
    expected = (each * factors).sum() / len(total.targets)
    assert f"loss {expected:.4f} to {expected:.4f}" in caplog.text


def test_the_learning_rate_rises_and_falls():
    factors = [contrastive._factor(step, 20) for step in range(20)]
    assert factors[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert np.diff(factors[2:]) == pytest.approx(-1 / 18)
    assert contrastive._factor(0, 1) == 1.0


def test_contrastive_fine_tuning_needs_labels_but_one_row_of_each_is_enough(tiny_encoder, tmp_path):
    numbers = small.recipe(tmp_path, tiny_encoder, "task.method=contrastive", "~training", kind="regression")
    raises(
        DataError,
        "contrastive needs labels; the rows have scores",
        bertkit.train,
        numbers,
        tmp_path / "refused",
    )
    assert not (tmp_path / "refused").exists()
    case = Case("alone", CONTRASTIVE, {"text": TEXTS[:3], "label": ["a", "b", "c"]})
    task = case.task(tiny_encoder)
    model, _ = fit(
        Runner(task, task.model(encoder(tiny_encoder)), CPU, "fp32", 4), task.features(case.rows()), 0
    )
    assert torch.isfinite(model.classifier.linear.weight).all()


def test_a_contrastive_training_is_a_run_like_any_other(tiny_encoder, tmp_path, caplog):
    recipe = small.recipe(tmp_path, tiny_encoder, "task.method=contrastive", "~training", "folds=2")
    run = train(recipe, tmp_path / "run", callbacks=[TrainerCallback()])
    assert "callbacks have no effect: task.method contrastive trains without a Trainer" in caplog.text
    (seed,) = run.results["seeds"]
    assert (seed["steps"], seed["C"], seed["with_names"]) == (20, None, True)
    assert run.results["folds"]["count"] == 2
    assert "contrastive loss" in (run.model / "README.md").read_text()
    assert "Nothing was logged" not in (run.folder / "report.html").read_text()


# --- what a trained head is used for: exported, pushed, and as a teacher


@pytest.fixture(scope="module")
def trained(tiny_encoder, tmp_path_factory):
    room = tmp_path_factory.mktemp("few")
    run = small.trained(room, tiny_encoder, "task.method=head", "~training", "explain=true")
    assert (run.model / "modules.json").is_file()
    assert ModelCard.load(run.model / "README.md").data.library_name == "sentence-transformers"
    return run


def test_it_is_a_run_like_any_other_and_its_card_is_true(trained):
    (seed,) = trained.results["seeds"]
    assert (seed["steps"], seed["best_step"]) == (0, None)
    assert trained.results["splits"]["test"]["metrics"]["accuracy"] is not None
    assert trained.load().task.options.temperature is not None
    assert (trained.folder / "report.html").is_file()
    card = ModelCard.load(trained.model / "README.md")
    assert card.data.pipeline_tag == "text-classification"
    assert " steps" not in card.text
    assert "with a linear head for text-classification" in card.text
    assert trained.load().task.usage_of(trained.load().task.options).plain in card.text


def test_it_is_exported(trained, tmp_path):
    export(trained.folder, tmp_path / "onnx")
    assert read_json(tmp_path / "onnx/export.json")["fp32"]["answers_differ"] == 0
    texts = ["the cat was good", "a dog was awful and it sat on the mat " * 3, "yes"]
    ours = load(trained.folder, precision="fp32")(texts)
    theirs = load(tmp_path / "onnx")(texts)
    for one, other in zip(ours, theirs, strict=True):
        assert other["scores"] == pytest.approx(one["scores"], abs=1e-5)
        assert other["truncated"] == one["truncated"]


def test_its_files_are_fit_to_be_pushed(trained, capsys):
    told = small.said(capsys, "push", trained.folder, "me/few", "--dry-run")
    lines = {line.split()[0] for line in told.splitlines() if line}
    sent = small.files(trained.model).keys()
    assert sent <= lines
    assert "3_Dense/model.safetensors" in sent


def test_a_fine_tuned_student_learns_from_it(trained, tiny_encoder, tmp_path):
    more = (
        f"distillation.teacher={trained.folder}",
        "training.num_train_epochs=1",
        "training.save_strategy=no",
    )
    run = small.trained(tmp_path, tiny_encoder, *more)
    theirs = trained.results["splits"]["validation"]["metrics"]
    assert run.results["baselines"]["validation"]["teacher"] == theirs
    assert run.load().task.options.method is None


def test_labels_are_few_for_a_training_by_steps_alone_and_rare_for_accuracy_alone(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder)
    for good, rare in ((18, False), (19, True)):  # two of 20 and of 21 rows are bad
        rows = [{"text": f"the cat {n}", "label": "bad" if n < 2 else "good"} for n in range(good + 2)]
        write_rows(tmp_path / "train.jsonl", rows)
        for overrides, few, told in (
            ([], True, rare),
            (["training.metric_for_best_model=f1_macro"], True, False),
            (["training={}", "task.method=head"], False, rare),
        ):
            _, findings = prepare_jobs(recipe.with_(*overrides))
            said = "".join(f"{each.what} {each.fix}" for each in findings[""])
            assert ("fewer than 10 rows: bad 2" in said) == few
            assert (
                "depends on labels with less than 10% of the rows; in train: bad 2 (9.5%)" in said
            ) == told
            assert ("training.metric_for_best_model: f1_macro or matthews_correlation" in said) == told


def test_each_pass_reads_every_text_once_in_another_order(tiny_encoder, monkeypatch):
    monkeypatch.setattr(contrastive, "TEXTS", 4)
    seen = []
    real = contrastive._vectors

    def read(runner, texts, chosen):
        seen.append(chosen.tolist())
        return real(runner, texts, chosen)

    monkeypatch.setattr(contrastive, "_vectors", read)
    _, runner, features, *_ = untrained(PULLED[0], tiny_encoder)
    fit(runner, features, seed=0)
    whole, *steps = seen  # ten texts: 4, 4, 2
    passes = [[*chain.from_iterable(steps[start : start + 3])] for start in range(0, 18, 3)]
    assert all(sorted(texts) == whole for texts in passes)
    assert passes[0] != passes[1]


def test_gradients_of_the_encoder_are_clipped(tiny_encoder, monkeypatch):
    monkeypatch.setattr(contrastive, "CLIPPING", 1e-6)
    norms = []

    def watched(optimizer, *_):
        gradients = [p.grad for p in optimizer.param_groups[0]["params"] if p.grad is not None]
        norms.append(sum(float(gradient.square().sum()) for gradient in gradients) ** 0.5)

    hook = register_optimizer_step_pre_hook(watched)
    _, runner, features, *_ = untrained(PULLED[0], tiny_encoder)
    fit(runner, features, seed=0)
    hook.remove()
    assert 0 < max(norms) < 2e-6
