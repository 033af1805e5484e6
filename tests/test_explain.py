"""Explanations: complete, exact where exactness can be had, of every task, and nothing lost on the way to
words.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import BY_ID, encoder
from small import raises
from torch import nn
from transformers import set_seed

from bertkit.data.word_spans import words
from bertkit.errors import DataError
from bertkit.explanations.explain import explain_frame, explain_row, explain_rows, rows_of
from bertkit.explanations.gradients import integrated_gradients
from bertkit.explanations.targets import Read, tagged
from bertkit.explanations.terminal import lines
from bertkit.explanations.word_shares import Text, add_feature
from bertkit.inference.display import answer_line
from bertkit.inference.predictor import Predictor
from bertkit.models.encoder import load_tokenizer

CPU = torch.device("cpu")
IDS = (
    "single-label pair multi-label regression windows qa qa-windows-or-none similarity-cls "
    "similarity-in-batch"
)
IDS += " retrieval ner-softmax ner-crf-windows-bioes ner-document words-crf-windows ranking-graded-windows"


def predictor_of(task, folder):
    """An untrained model, whose weights are large enough to matter."""
    set_seed(5)
    model = task.model(encoder(folder)).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(8 if weights.dim() > 1 else 1)
    return Predictor(task.finished(model), model, CPU, "fp32", 8, {})


def inputs_of(case, task):
    """The input columns of a case's rows."""
    names = {*frozenset[str]().union(*task.inputs), *task.schema.context}
    return case.rows().select_columns([name for name in case.columns if name in names])


def answered(case, folder):
    """A case's untrained task, its predictor, the rows, and the answers to them."""
    task = case.task(folder)
    predictor = predictor_of(task, folder)
    rows = inputs_of(case, task)
    return task, predictor, rows, list(task.answer(rows, predictor.predict_features))


# --- every task


@pytest.mark.parametrize("name", IDS.split())
def test_what_words_add_is_the_difference_to_no_words(name, tiny_encoder):
    _, predictor, rows, answers = answered(BY_ID[name], tiny_encoder)
    # An untrained tagger may find no entity in a sentence: one that has some.
    row = next(i for i, answer in enumerate(answers) if answer.get("entities", True))
    made = explain_row(predictor, rows, row, max_targets=2)
    assert made["attributed"]
    for each in made["attributed"]:
        scores = [
            share.score for shares in each["words"].values() for share in shares if share.score is not None
        ]
        assert max(map(abs, scores)) > 1e-3
        total = sum(scores) + each["rest"]
        assert each["error"] == pytest.approx(abs(total - (each["value"] - each["baseline"])), abs=1e-4)
        assert each["complete"]
        assert each["rest"] == pytest.approx(0, abs=1e-5) or name == "ner-document"  # neighbours' words
        for column, shares in each["words"].items():
            words = [made["texts"][column][share.start : share.end] for share in shares]
            assert all(word and word == word.strip() for word in words)
    assert made["said"] == answer_line(made["answer"])
    assert any("█" in line or "░" in line for line in lines(made))
    assert json.loads(json.dumps(made))["texts"] == made["texts"]


def test_the_number_is_the_one_that_the_answer_comes_from(tiny_encoder):
    """Logits of the labels, start and end of the span, the cosine: compared with the answers themselves."""
    found = {}
    kept = {}
    for name in "single-label windows regression similarity-cosent ranking-binary qa".split():
        case = BY_ID[name]
        task = case.task(tiny_encoder)
        predictor = predictor_of(task, tiny_encoder)
        task, rows = predictor.task, inputs_of(case, task)
        answers = list(task.answer(rows, predictor.predict_features))
        kept[name] = predictor.predict_features(task.encode(rows))
        found[name] = answers[1], explain_row(predictor, rows, 1)["attributed"]
    for name in ("regression", "similarity-cosent"):
        answer, several = found[name]
        assert [one["value"] for one in several] == pytest.approx([answer["score"]] * len(several), rel=1e-5)
    both = [[*one["words"], one["what"]] for one in found["similarity-cosent"][1]]
    assert both == [
        [name, f"cosine of the two texts, by the words of {name}"] for name in ("text_a", "text_b")
    ]
    answer, (one,) = found["ranking-binary"]
    assert answer["score"] == pytest.approx(1 / (1 + np.exp(-one["value"])))
    for name in ("single-label", "windows"):
        answer, (one,) = found[name]
        assert one["what"] == f"label {answer['label']}"
    assert found["single-label"][1][0]["value"] == pytest.approx(kept["single-label"][1].max(), abs=1e-5)
    of = BY_ID["windows"].task(tiny_encoder).encode(BY_ID["windows"].rows())["row"][:]
    own = [logits for row, logits in zip(of, kept["windows"], strict=True) if row == 1]
    assert len(own) > 1
    assert found["windows"][1][0]["value"] == pytest.approx(np.mean(own, axis=0).max(), abs=1e-5)
    answer, (one,) = found["qa"]
    assert one["what"] == f"answer {answer['answer']}"
    assert one["value"] == pytest.approx(kept["qa"][1].scores[0], abs=1e-4)


def test_a_crf_is_explained_along_its_path(tiny_encoder):
    """The sum of the emissions of the entity's words at the path's tags, not at each word's best tag."""
    task, predictor, rows, answers = answered(BY_ID["ner-crf"], tiny_encoder)
    row = next(i for i, answer in enumerate(answers) if answer["entities"])
    kept = predictor.predict_features(task.encode(rows))[row]
    first = answers[row]["entities"][0]
    tags = [word["tag"] for word in answers[row]["words"]]
    starts = np.cumsum([0, *(len(word) + 1 for word in rows["tokens"][row])])[:-1]
    inside = [i for i, start in enumerate(starts) if first["start"] <= start < first["end"]]
    wanted = sum(kept.scores[word][task.options.tags.index(tags[word])] for word in inside)
    made = explain_row(predictor, rows, row, max_targets=1)["attributed"][0]
    assert made["value"] == pytest.approx(wanted, abs=1e-4)
    assert made["what"] == f"{first['label']} {first['text']}"


# --- integrated gradients


class Bag(nn.Module):
    """A linear model: the sum of the pieces' embeddings, times a weight."""

    def __init__(self, vocabulary):
        super().__init__()
        self.embeddings = nn.Embedding(vocabulary, 8)
        self.weight = nn.Linear(8, 2)

    def get_input_embeddings(self):
        return self.embeddings

    def forward(self, input_ids, **_):
        return SimpleNamespace(logits=self.weight(self.embeddings(input_ids).sum(1)))


def of_one_text(kind, folder):
    """A task, a model of this kind, the ids of a text, and those from which its gradients are integrated."""
    task = BY_ID["single-label"].task(folder)
    set_seed(1)
    ids = torch.tensor([task.tokenizer("a good cat sat")["input_ids"]])
    start = torch.full_like(ids, task.tokenizer.mask_token_id)
    start[0, [0, -1]] = ids[0, [0, -1]]
    return task, kind(len(task.tokenizer)), ids, start


def test_of_a_linear_model_it_is_weight_times_input(tiny_encoder):
    task, model, ids, start = of_one_text(Bag, tiny_encoder)
    found = integrated_gradients(task, model, {"input_ids": ids}, lambda outputs: outputs.logits[:, 1])
    with torch.no_grad():
        wanted = (model.embeddings(ids) - model.embeddings(start))[0] @ model.weight.weight[1]
    torch.testing.assert_close(found.tokens, wanted)
    assert found.tokens[0] == found.tokens[-1] == 0
    assert (found.steps, found.complete) == (16, True)
    assert found.error < 1e-5


class Step(Bag):
    """A model whose gradient is a spike, so that few steps miss it."""

    def forward(self, input_ids, **_):
        return SimpleNamespace(logits=torch.sigmoid(400 * super().forward(input_ids).logits))


def test_steps_are_doubled_until_the_sum_is_right_or_it_is_said(tiny_encoder):
    task, model, ids, start = of_one_text(Step, tiny_encoder)
    with torch.no_grad():  # the spike lies off the middle of the path, where no even rule has a point
        low, high = (Bag.forward(model, each).logits[0, 1] for each in (start, ids))
        model.weight.bias[1] -= low + 0.37 * (high - low)
        if high < low:
            model.weight.weight[1] *= -1
            model.weight.bias[1] *= -1
    given = task, model, {"input_ids": ids}, lambda outputs: outputs.logits[:, 1]
    few, many = (integrated_gradients(*given, max_steps=most) for most in (16, 4096))
    assert (few.steps, few.complete) == (16, False)
    assert many.complete
    assert many.steps > 16
    assert many.error <= 0.01


# --- words


@pytest.mark.parametrize(
    "text", ["the cats sat.", "[MASK] cat , [MASK] dog!", "xyz not", "good", "  two   dogs  "]
)
def test_no_share_is_lost_on_the_way_to_words(text, tiny_encoder):
    tokenizer = load_tokenizer(tiny_encoder)
    ids = tokenizer(text)["input_ids"]
    scores = np.random.default_rng(0).normal(size=len(ids))
    scores[[0, -1]] = 0
    read = Text(tokenizer, "text", text, words(text))
    assert not any(add_feature(tokenizer, [read], ids, scores.tolist()))
    assert sum(share.score or 0 for share in read.shares) == pytest.approx(scores.sum())
    assert "".join(text[share.start : share.end] for share in read.shares) == text.replace(" ", "")


def test_pieces_go_to_their_word_windows_add_up_and_what_was_cut_has_no_share(tiny_encoder):
    tokenizer = load_tokenizer(tiny_encoder)
    texts = {"text_a": "the cats sat", "text_b": "on the mat"}
    one, other = (Text(tokenizer, name, text, words(text)) for name, text in texts.items())
    ids = tokenizer("the cats sat", "on the mat")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids)[2:4] == ["cat", "##s"]
    assert not any(add_feature(tokenizer, [one, other], ids, [0, 1, 2, 4, 8, 0, 16, 32, 64, 0]))
    assert [share.score for share in one.shares] == [1, 6, 8]
    assert [share.score for share in other.shares] == [16, 32, 64]
    tokenizer = load_tokenizer(tiny_encoder)
    text = "the cat sat on the mat up"
    read = Text(tokenizer, "text", text, words(text))
    ids = tokenizer("the cat sat on the mat", add_special_tokens=False)["input_ids"]
    assert not any(add_feature(tokenizer, [read], ids[:4], [1.0] * 4))
    assert not any(add_feature(tokenizer, [read], ids[2:], [1.0] * 4))
    assert [share.score for share in read.shares] == [1, 1, 2, 2, 1, 1, None]


# --- rows


def test_what_can_not_be_explained_is_said(tiny_encoder):
    for name, texts, what in (
        ("pair", ["one"], "expected two texts, text_a and text_b, found 1"),
        ("qa", ["one", "two", "three"], "expected two texts, question and context, found 3"),
        ("mlm", ["a [MASK]"], "explanations do not support pretraining"),
        ("text-to-text", ["a cat"], "explanations do not support text2text-generation"),
    ):
        predictor = predictor_of(BY_ID[name].task(tiny_encoder), tiny_encoder)
        with pytest.raises(DataError, match=what):
            explain_rows(predictor, rows_of(predictor, texts))
    pairs = predictor_of(BY_ID["similarity-cosent"].task(tiny_encoder), tiny_encoder)
    # of one, there is the vector
    raises(DataError, "row 1: an explanation needs two texts", explain_rows, pairs, ["a cat"])


def explained(text, label, words):
    """What `explain` returns for a text of this label and the attributions of its words."""
    one = {
        "what": f"label {label}",
        "unit": "logit",
        "value": 1.0,
        "baseline": 0.0,
        "error": 0.5,
        "complete": False,
    }
    attributed = [{**one, "steps": 64, "words": {"text": words}, "rest": 0.0}]
    return {"texts": {"text": text}, "answer": {}, "said": f"{label}  0.500", "attributed": attributed}


def test_the_weightiest_words_are_listed_in_their_order():
    made = explained("w " * 60, "x", [(2 * i, 2 * i + 1, 1.0 if i % 3 else -2.0) for i in range(60)])
    told = list(lines(made))
    assert told[0] == "x  0.500"
    assert "NOT CONVERGED" in told[2]
    assert sum("-2.000" in line for line in told) == 20
    assert told[-1] == "  … and 40 words with smaller attributions"
    assert all("\x1b" in line for line in lines(made, colour=True) if "░" in line)
    evil = "a\x1b[2J\x9b\n\u202eb"  # neither labels nor texts move the cursor
    told = "".join(lines(explained(evil, evil, [(0, len(evil), 1.0)])))
    assert told.isprintable()
    assert told.count(r"a\x1b[2J\x9b\n\u202eb") == 3


@pytest.mark.parametrize("kind", ["pandas", "polars", "list"])
def test_a_frame_is_explained_by_a_frame(kind, tiny_encoder):
    texts = ["the cat was good", "a bad dog"]
    predictor = predictor_of(BY_ID["single-label"].task(tiny_encoder), tiny_encoder)
    given = texts
    if kind != "list":
        library = pytest.importorskip(kind)
        given = library.DataFrame({"text": texts, "note": [1, 2]})
    if kind == "pandas":
        given.index = ["r-1", "r-2"]
    found = explain_frame(predictor, given)
    expected = [
        (label, each["what"], "text", text[start:end], score)
        for label, text, one in zip(
            ["r-1", "r-2"] if kind == "pandas" else [1, 2], texts, explain_rows(predictor, texts), strict=True
        )
        for each in one["attributed"]
        for start, end, score in each["words"]["text"]
    ]
    rows = found.to_dicts() if kind == "polars" else found.to_dict("records")
    assert [row["word"] for row in rows] == "the cat was good a bad dog".split()
    assert [tuple(row.values()) for row in rows] == expected
    assert list(rows[0]) == "row what column word attribution".split()


def test_a_token_of_several_words_is_explained_at_its_own_tag():
    options = SimpleNamespace(tags=["O", "B-X", "I-X", "E-X", "S-X"], scheme="BIOES")
    answer = {"words": [{"tag": "B-X"}, {"tag": "E-X"}], "entities": [{"text": "北京"}]}
    feature = {"words": [0], "ends": [2], "heads": [1]}
    (target,) = tagged(Read(SimpleNamespace(options=options), {}, [feature], [], answer))
    assert target.parts[0]({"logits": torch.arange(15.0).reshape(1, 3, 5)}).item() == 9.0  # S-X of token 1


def test_an_unknown_word_has_its_share(tiny_encoder):
    task, model, _, _ = of_one_text(Bag, tiny_encoder)
    ids = torch.tensor([task.tokenizer("a zzz cat")["input_ids"]])
    assert task.tokenizer.unk_token_id in ids
    start = torch.full_like(ids, task.tokenizer.mask_token_id)
    start[0, [0, -1]] = ids[0, [0, -1]]
    shares = integrated_gradients(task, model, {"input_ids": ids}, lambda outputs: outputs.logits[:, 1])
    with torch.no_grad():
        expected = (model.embeddings(ids) - model.embeddings(start))[0] @ model.weight.weight[1]
    torch.testing.assert_close(shares.tokens, expected)
