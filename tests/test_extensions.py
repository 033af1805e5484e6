"""A user's own loss and attachments: the losses are those of formulas, and what cannot work is refused before
a run.

That accumulation, processes and a resumed run change nothing is in test_equivalence.py.
"""

import math
from functools import partial

import pytest
import small
import torch
from cases import BY_ID
from multitask import recipe as several_tasks
from small import raises, refuses
from steps import Lookahead, first_step_of, focal, mean, trainer_of
from test_equivalence import assert_same_step, sized
from test_resume import RHYTHM, killed
from torch.nn import functional as F
from transformers import TrainerCallback

import bertkit
from bertkit.attachments.user_loss import UserLoss
from bertkit.engine.attachment import Draft, name_of
from bertkit.errors import DataError, RecipeError, UserError
from bertkit.files import read_json
from bertkit.recipe.recipe import Recipe
from bertkit.training.train import train


def summed(outputs, labels, num_items_in_batch):
    """The losses of all tasks, told apart by their labels."""
    if "start_logits" in outputs:
        sides = zip((outputs.start_logits, outputs.end_logits), labels.unbind(1), strict=True)
        return sum(F.cross_entropy(*side, reduction="sum") for side in sides) / 2 / num_items_in_batch
    logits = outputs.logits
    if not labels.is_floating_point():
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum") / num_items_in_batch
    if labels.min() >= 0:
        return (
            F.binary_cross_entropy_with_logits(logits, labels.view_as(logits), reduction="sum")
            / num_items_in_batch
        )
    return F.mse_loss(logits[:, 0], labels, reduction="sum") / num_items_in_batch


def recipe_of(identifier, encoder, **more):
    case = BY_ID[identifier]
    more = {"training": {"num_train_epochs": 1}, **more}
    data = {"train": [dict(row) for row in case.rows()]}
    return Recipe(task=case.options, data=data, model={"name": str(encoder), "max_length": 32}, **more)


FORMS = "single-label windows multi-label regression ner-softmax qa-windows-or-none ranking-binary text-to-text".split()


@pytest.mark.parametrize("identifier", FORMS)
def test_the_sum_of_the_losses_by_the_count_is_the_tasks_own_loss(identifier, tiny_encoder, tmp_path):
    recipe = recipe_of(identifier, tiny_encoder).with_(
        *["task.class_weights=null"] * (identifier == "multi-label")
    )
    for batch, accumulation in ((8, 1), (3, 3)):
        divided = sized(recipe, batch, accumulation)
        plain = first_step_of(divided, tmp_path)
        assert_same_step(plain, first_step_of(divided, tmp_path, compute_loss_func=summed))


def untrained(recipe, folder):
    """The logits of all training rows, by the untrained model; and their labels."""
    trainer = trainer_of(recipe, folder)
    rows = [*range(len(trainer.data.features))]
    batch = trainer.data.examples(trainer.get_train_dataloader().batch_sampler).__getitems__(rows)
    with torch.no_grad():
        return trainer.learner.forward(trainer.model.eval(), batch).logits, batch["labels"]


TORCHS = {  # a recipe's case and more of it -> the loss of torch, of logits and labels
    "class weights": ("single-label", "task.class_weights={good: 3.0}", lambda logits, labels:
                      F.cross_entropy(logits, labels, torch.tensor([1.0, 3.0]))),
    "of several labels": ("multi-label", "task.class_weights=auto", lambda logits, labels:
                          F.binary_cross_entropy_with_logits(logits, labels, pos_weight=5 / labels.sum(0) - 1)),
    "smoothed": ("single-label", "training.label_smoothing_factor=0.3", lambda logits, labels:
                 F.cross_entropy(logits, labels, label_smoothing=0.3)),
}  # fmt: skip


@pytest.mark.parametrize("name", TORCHS)
def test_weighted_and_smoothed_losses_are_those_of_torch(name, tiny_encoder, tmp_path):
    """Of five rows, so that labels are not equally frequent."""
    case, more, loss = TORCHS[name]
    rows = [dict(row) for row in BY_ID[case].rows()][:5]
    recipe = sized(recipe_of(case, tiny_encoder).with_(more, data={"train": rows}), 5)
    logits, labels = untrained(recipe, tmp_path)
    plain = recipe.with_("task.class_weights=null", "training.label_smoothing_factor=0")
    losses = [first_step_of(each, tmp_path)[0] for each in (recipe, plain)]
    assert losses[0] == pytest.approx(loss(logits, labels).item(), rel=1e-5)
    assert abs(losses[0] - losses[1]) > 3e-5


def balanced(outputs, labels, num_items_in_batch, beta, counts):
    """Class-balanced loss by the effective number of rows (Cui et al. 2019, equation 10)."""
    weight = torch.tensor([(1 - beta) / (1 - beta**count) for count in counts])
    return F.cross_entropy(outputs.logits, labels, weight, reduction="sum") / num_items_in_batch


EXAMPLES = {  # a loss -> that of one row, by probability and id of its label
    "mean": (mean, lambda p, label: -math.log(p)),
    "cross-entropy": (partial(focal, gamma=0.0), lambda p, label: -math.log(p)),
    "focal": (focal, lambda p, label: -((1 - p) ** 2) * math.log(p)),
    "class-balanced": (
        partial(balanced, beta=0.9, counts=(2, 14)),
        lambda p, label: -math.log(p) * 0.1 / (1 - 0.9 ** (2, 14)[label]),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_loss_of_a_step_is_that_of_the_formula(name, tiny_encoder, tmp_path, caplog):
    """Over micro-batches of 3, 3, 3, 3, 2 and 2 rows; for a loss that divides by its own count there is a
    warning.
    """
    function, formula = EXAMPLES[name]
    recipe = small.recipe(tmp_path, tiny_encoder)
    loss, _ = first_step_of(sized(recipe, 3, 6), tmp_path, compute_loss_func=function)
    logits, labels = untrained(recipe, tmp_path)
    likely = logits.softmax(1)[torch.arange(16), labels].tolist()
    terms = [formula(*row) for row in zip(likely, labels.tolist(), strict=True)]
    assert loss == pytest.approx(sum(terms) / 16, rel=1e-5)
    assert ("steps.mean does not divide by num_items_in_batch" in caplog.text) == (function is mean)


def test_a_loss_of_ones_own_trains_as_ours(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, "training.per_device_train_batch_size=3", splits=("train",))
    for accumulation in (1, 4):
        weights = []
        for own in ({}, {"compute_loss_func": summed}):
            divided = recipe.with_(f"training.gradient_accumulation_steps={accumulation}")
            trainer = trainer_of(divided, tmp_path / f"{accumulation}-{len(own)}", **own)
            trainer.train()
            weights.append(trainer.model.state_dict())
        for name, tensor in weights[0].items():
            torch.testing.assert_close(weights[1][name], tensor, rtol=1e-3, atol=1e-5)


class Twice(bertkit.Attachment):
    """Doubles the loss."""

    def wrap_loss(self, loss):
        return lambda *inputs: 2 * loss(*inputs)


def test_an_attachment_sees_the_loss_of_the_user(tiny_encoder, tmp_path):
    recipe = sized(small.recipe(tmp_path, tiny_encoder), 8)
    one = first_step_of(recipe, tmp_path, compute_loss_func=focal)
    two = first_step_of(recipe, tmp_path, compute_loss_func=focal, attachments=[Twice()])
    assert_same_step((2 * one[0], {name: 2 * gradient for name, gradient in one[1].items()}), two)


def test_a_loss_gets_the_count_by_its_name(tiny_encoder, tmp_path):
    def later(outputs, labels, gamma=2.0, *, num_items_in_batch):
        return focal(outputs, labels, num_items_in_batch, gamma)

    recipe = sized(small.recipe(tmp_path, tiny_encoder), 8)
    own, keyword = (first_step_of(recipe, tmp_path, compute_loss_func=loss) for loss in (focal, later))
    assert_same_step(own, keyword)


class Keeps(Twice):
    """Keeps what it is shown, and returns nothing from `join`."""

    def build_model(self, recipe, model):
        self.model = model
        return model

    def join(self, draft):
        self.task = draft.task

    def start(self, trainer, checkpoint):
        assert self.model is trainer.model
        assert self.task.name == "text-classification"


def test_an_attachment_keeps_the_model_that_is_trained_and_join_need_not_answer(tiny_encoder, tmp_path):
    recipe = sized(small.recipe(tmp_path, tiny_encoder), 8)
    kept = Keeps()
    steps = [first_step_of(recipe, tmp_path, attachments=[own]) for own in (Twice(), kept)]
    assert_same_step(*steps)
    assert not vars(kept)  # the training had a copy


@pytest.mark.parametrize("key", ["metrics", "callbacks"])
def test_metrics_and_callbacks_are_lists(key, tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder)
    refuses(RecipeError, f"{key}: expected a list", recipe, tmp_path, **{key: TrainerCallback()})


def test_a_method_is_named_as_a_function_is():
    assert name_of(Twice().wrap_loss) == "test_extensions.Twice.wrap_loss"


# --- refused

FORMLESS = "ner-crf similarity-in-batch retrieval ranking-listwise mlm-nsp"
REFUSED = {
    **{name: (name, {}, "has no labels to compare outputs with one by one") for name in FORMLESS.split()},
    "weights": ("class-weights", {}, "task.class_weights: has no effect with compute_loss_func"),
    "smoothing": (
        "single-label",
        {"training": {"label_smoothing_factor": 0.1}},
        "smoothing_factor: has no effect",
    ),
    "method": (
        "linear-head",
        {"training": {}},
        "compute_loss_func=steps.focal has no effect: task.method head",
    ),
}
UNUSABLE = {
    "fails": (lambda *_, **__: 1 / 0, "<lambda> failed on a first micro-batch: division by zero"),
    "two arguments": (lambda outputs, labels: 0, "unexpected keyword argument 'num_items_in_batch'"),
    "number": (lambda *_, **__: 0.5, "<lambda> returned 0.5"),
    "each row": (lambda outputs, *_, **__: outputs.logits[:, 0], "<lambda> returned tensor"),
    "not finite": (
        lambda outputs, *_, **__: outputs.logits.sum() / 0.0,
        r"<lambda> returned tensor\((nan|-?inf)",
    ),
    "detached": (
        lambda outputs, *_, **__: outputs.logits.detach().sum(),
        r"<lambda> returned tensor\([^,]*\)\n",
    ),
    "text": ("focal", "expected a function of outputs, labels and num_items_in_batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_would_have_no_effect_is_refused(name, tiny_encoder, tmp_path):
    case, more, said = REFUSED[name]
    recipe = recipe_of(case, tiny_encoder, **more)
    refuses(RecipeError, said, recipe, tmp_path, compute_loss_func=focal)


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_function_that_is_not_a_loss_is_refused(name, tiny_encoder, tmp_path):
    function, said = UNUSABLE[name]
    recipe = small.recipe(tmp_path, tiny_encoder)
    refuses(RecipeError, f"^compute_loss_func: .*{said}", recipe, tmp_path, compute_loss_func=function)


def test_a_loss_beside_a_teachers_or_that_of_other_tasks_is_refused(tiny_encoder, tmp_path):
    trainer = trainer_of(recipe_of("single-label", tiny_encoder), tmp_path)
    taught = recipe_of("single-label", tiny_encoder, distillation={"teacher": str(tiny_encoder)})
    draft = Draft(taught, trainer.args, trainer.learner, trainer.model, trainer.data.features)
    raises(RecipeError, "distillation: has no effect", UserLoss(focal).join, draft)
    several = several_tasks(tiny_encoder, "sentiment", "entities")
    said = "compute_loss_func: is not supported for several tasks"
    raises(RecipeError, said, train, several, tmp_path / "run", compute_loss_func=focal)


@pytest.mark.parametrize("attachments", [[Twice], Twice, [Twice(), 3]])
def test_attachments_are_instances(attachments, tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder)
    said = "attachments: expected instances of Attachment, found"
    refuses(RecipeError, said, recipe, tmp_path, attachments=attachments)


# --- recorded


def test_a_run_records_what_it_must_be_resumed_with(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, *RHYTHM, splits=("train", "validation"))
    own = {"compute_loss_func": partial(focal, gamma=1.0), "attachments": [Lookahead()]}
    run = killed(recipe, tmp_path / "run", **own)
    started = "started with compute_loss_func=steps.focal, steps.Lookahead, and has"
    for other, now in (
        ({}, "no attachments of yours now"),
        (
            {**own, "compute_loss_func": summed},
            "compute_loss_func=test_extensions.summed, steps.Lookahead now",
        ),
        ({**own, "attachments": []}, "compute_loss_func=steps.focal now"),
    ):
        raises(DataError, f"{started} {now}", train, recipe, run.folder, resume=True, **other)
    train(recipe, run.folder, resume=True, **own)
    names = ["compute_loss_func=steps.focal", "steps.Lookahead"]
    assert read_json(run.folder / "environment.json")["attachments"] == names
    for file in ("report.html", "model/README.md"):
        assert names[0] in (run.folder / file).read_text()


class SameFile(bertkit.Attachment):
    """Saves a file that there is."""

    def save_files(self):
        return {"optimizer.json": 1}


def test_no_attachment_replaces_a_file_of_a_checkpoint(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, "training.max_steps=2", "training.save_steps=1")
    said = "two attachments would save optimizer.json"
    raises(UserError, said, train, recipe, tmp_path / "run", attachments=[SameFile()])
