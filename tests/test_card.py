"""The model card: valid, true to the run's files to the last digit, runnable, and careful with people's
text.
"""

import re
import shutil
from dataclasses import replace

import pytest
import small
from cases import BY_ID
from finished import finished, restate
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import ModelError
from bertkit.files import read_json
from bertkit.models.encoder import load_tokenizer
from bertkit.report.card import BEGIN, END, card, with_yours, write_card, yours
from bertkit.report.facts import local_paths, read_facts
from bertkit.tasks import get_task
from bertkit.training.train import train

HUB = {"license": "apache-2.0", "language": ["en", "de"], "repo_id": "me/model"}
LIBRARIES = {"sentence-similarity": "sentence-transformers", "text-ranking": "sentence-transformers"}
# Each task, and each kind of model that is used in another way; test_hub.py pushes the cards of all cases.
IDS = (
    "single-label pair multi-label regression qa similarity-mse similarity-labels similarity-in-batch "
    "retrieval"
)
IDS += " ner-crf words-crf-windows ranking-binary text-to-text mlm-nsp"
BLOCK = re.compile(r"^(`{3,})python\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def facts(two_seeds):
    return read_facts(two_seeds.folder)


@pytest.fixture
def run(two_seeds, tmp_path):
    return small.copy_of(two_seeds, tmp_path / "run")


def text_of(run):
    return (run.model / "README.md").read_text()


@pytest.mark.parametrize("name", IDS.split())
def test_every_task_has_a_true_card(name, tiny_encoder, tmp_path):
    run = finished(BY_ID[name], tiny_encoder, tmp_path / "run", hub=HUB)
    text = text_of(run)
    data = ModelCard(text).data
    kind = get_task(BY_ID[name].options["name"])
    tag = {"text2text-generation": None, "retrieval": "sentence-similarity", "pretraining": "fill-mask"}.get(
        kind.name, kind.name
    )
    assert data.pipeline_tag == tag
    assert kind.name in (tag, *data.tags)
    assert data.library_name == LIBRARIES.get(str(tag), "transformers")
    assert (data.license, data.language) == ("apache-2.0", ["en", "de"])
    assert {"bertkit"} <= set(data.tags) <= {"bertkit", kind.name}
    assert data.model_name == "model"
    stated = {
        (split, name): value
        for split, scores in run.results["splits"].items()
        for name, value in scores["metrics"].items()
        if "/" not in name and name != "invalid_tags" and value is not None
    }
    assert (
        {(each.dataset_split, each.metric_type): each.metric_value for each in data.eval_results}
        == stated
        != {}
    )
    assert data.metrics == [name for _, name in stated]
    assert str(tiny_encoder) not in text
    assert str(tmp_path) not in text
    runs = [block.replace("me/model", str(run.model)) for _, block in BLOCK.findall(text)]
    assert len(runs) == 2
    for code in runs:
        exec(compile(code, "card", "exec"), {})


def test_what_the_metadata_say_of_a_model_of_the_hub(facts):
    recipe = facts.recipe
    model = recipe.model.model_copy(update={"name": "google-bert/bert-base-uncased"})
    data = recipe.data.model_copy(update={"source": "nyu-mll/glue", "subset": "sst2", "revision": "0" * 40})
    text = card(replace(facts, recipe=recipe.model_copy(update={"model": model, "data": data})))
    parsed = ModelCard(text).data
    assert (parsed.base_model, parsed.base_model_relation) == ("google-bert/bert-base-uncased", "finetune")
    assert parsed.datasets == ["nyu-mll/glue"]
    first = parsed.eval_results[0]
    assert (first.dataset_type, first.dataset_config, first.dataset_revision) == (
        "nyu-mll/glue",
        "sst2",
        "0" * 40,
    )
    assert "[nyu-mll/glue](https://huggingface.co/datasets/nyu-mll/glue), subset sst2" in text
    model, data = (each.model_copy(update={key: "bert"}) for each, key in ((model, "name"), (data, "source")))
    canonical = ModelCard(
        card(replace(facts, recipe=recipe.model_copy(update={"model": model, "data": data})))
    ).data
    assert (canonical.base_model, canonical.datasets) == ("bert", ["bert"])
    folder = recipe.data.model_copy(update={"source": "/data/glue"})  # which is not the Hub's `glue`
    named = ModelCard(
        card(replace(facts, recipe=recipe.model_copy(update={"data": folder})))
    ).data.eval_results[0]
    assert (named.dataset_name, named.dataset_type) == ("glue", "local files")
    local = ModelCard(card(facts)).data.to_dict()
    assert not {"base_model", "base_model_relation", "datasets"} & set(local)


def test_what_the_text_says(facts, two_seeds):
    text = text_of(two_seeds)
    assert text == card(facts)
    scores = facts.results["splits"]["test"]
    low, high = scores["intervals"]["accuracy"]
    beside = facts.results["baselines"]["test"]["tfidf"]["accuracy"]
    row = rf"accuracy +{scores['metrics']['accuracy']:.4f} +{low:.4f} … {high:.4f} .* {beside:.4f}\n"
    assert re.search(row, text)
    assert "Over 2 seeds, accuracy: validation" in text
    assert "Licence: mit. Language: en." in text
    for digest in facts.data["fingerprints"].values():
        assert digest in text
    for each in facts.data["findings"]:
        assert f"\n{each['level']}: {each['what']}\n" in text
    assert f"{sum(row['answer']['truncated'] for row in facts.rows)} of 7 rows of test were longer." in text
    assert "whose scores say little: bad (2), good (5)." in text
    assert f"temperature {facts.options['temperature']:.4f}" in text
    validation = facts.results["splits"]["validation"]
    wrong = round((1 - validation["metrics"]["accuracy"]) * validation["rows"])
    assert f"(fitted on {validation['rows']} decisions of validation, {wrong} of them incorrect)" in text
    assert f"```yaml\n{facts.recipe_text}```" in text
    assert re.search(
        rf"^versions.torch +{re.escape(facts.environment['versions']['torch'])}$", text, re.MULTILINE
    )


def test_limits_follow_the_options_cut_texts_baselines_and_licences(facts):
    rows = tuple(
        {**row, "answer": {**row["answer"], "truncated": place < 3}} for place, row in enumerate(facts.rows)
    )
    ours = facts.scores["metrics"]["accuracy"]
    better = {**facts.results, "baselines": {"test": {"coin": {"accuracy": ours}}}}
    text = card(replace(facts, rows=rows, results=better))
    assert "3 of 7 rows of test were longer." in text
    assert "**Severe:** the baseline coin is at least as good on test. Train longer" in text
    worse = {**facts.results, "baselines": {"test": {"coin": {"accuracy": ours - 0.1}}}}
    assert "at least as good" not in card(replace(facts, results=worse))
    text = card(replace(facts, recipe=facts.recipe.model_copy(update={"hub": None})))
    assert "No licence was stated for this model. No language was stated for its texts." in text
    assert not {"license", "language"} & set(ModelCard(text).data.to_dict())
    for options, said in (
        ({"temperature": None}, "Its probabilities are not calibrated: there were no validation rows"),
        ({"kind": "regression"}, "Its scores are not calibrated as probabilities."),
        ({"overflow": "window"}, "Texts are read in windows of up to 32 tokens; nothing is truncated."),
        ({"overflow": "error"}, "Texts of more than 32 tokens are rejected."),
    ):
        assert said not in card(facts)
        assert said in card(replace(facts, options={**facts.options, **options}))
    options = {name: value for name, value in facts.options.items() if name not in ("overflow", "stride")}
    assert "Texts are truncated to 32 tokens" in card(replace(facts, options=options))  # as in text-to-text
    task = facts.recipe.task.model_copy(update={"temperature": 1.5})  # of the recipe, and not fitted
    changed = replace(facts, recipe=facts.recipe.model_copy(update={"task": task}))
    assert "Its probabilities are calibrated (fitted on " in card(facts)
    assert "Its probabilities are calibrated (set by the recipe): " in card(changed)


# --- facts that are missing, paths that are nobody's business


LACKING = {
    "results.json": "headline splits baselines seeds over_seeds verified".split(),
    "data.json": ("rows", "fingerprints", "findings"),
    "environment.json": ("versions",),
    "model/config.json": ("bertkit",),
}


def test_a_missing_or_damaged_fact_is_named(run, subtests):
    before = text_of(run)

    def said():
        told = small.message_of(ModelError, write_card, run)
        assert text_of(run) == before
        return told

    for file, names in LACKING.items():
        whole = read_json(run.folder / file)
        for name in names:
            with subtests.test(name):
                restate(run, file, name)
                assert f"{file}: lacks `{name}`" in said()
                restate(run, file, **whole)
    restate(run, "results.json", "seeds", "headline")
    assert said().count(": lacks `") == 2
    restate(run, "results.json", seeds=[], headline="accuracy")
    own = read_json(run.model / "config.json")["bertkit"]
    restate(run, "model/config.json", bertkit={**own, "task": {**own["task"], "temperature": "hot"}})
    assert "config.json: bertkit.task.temperature: Input should be a valid number" in said()
    restate(run, "model/config.json", bertkit=own)
    shutil.rmtree(run.folder / "predictions")
    assert "predictions/test.jsonl: is missing: it states how many texts were trunc" in said()
    (run.folder / "data.json").unlink()
    assert "data.json: is missing" in said()


def test_options_are_in_their_own_types(tiny_encoder, tmp_path):
    case = BY_ID["single-label"]
    named = {"labels": {"good": "Gut", "bad": "Schlecht"}}
    run = finished(replace(case, options={**case.options, **named}), tiny_encoder, tmp_path / "run")
    kept = read_json(run.model / "config.json")["bertkit"]["task"]["labels"]
    assert kept == [["good", "Gut"], ["bad", "Schlecht"]]
    assert read_facts(run.folder).options["labels"] == named["labels"]


def test_local_paths_are_those_of_the_recipe(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, f"distillation={{teacher: {tmp_path}}}")
    files = [f"{tmp_path}/{split}.jsonl" for split in ("train", "validation", "test")]
    assert sorted(local_paths(recipe)) == sorted([*files, str(tmp_path), str(tiny_encoder)])
    assert local_paths(recipe)[-1] == min(local_paths(recipe), key=len)  # a folder after what lies in it


# --- what people write


def test_what_a_person_wrote_survives(run):
    path = run.model / "README.md"
    mine = "Made for **bees**.\n\n```python\nprint(1)\n```\n"
    path.write_text(text_of(run).replace(f"{BEGIN}\n", f"{BEGIN}\n{mine}"))
    before = text_of(run)
    assert yours(before, "") == mine.strip("\n")
    write_card(run)
    assert text_of(run) == before
    restate(run, "results.json", verified=True)  # a fact changes: the rest of the card is written anew
    write_card(run)
    assert yours(text_of(run), "") == mine.strip("\n")
    assert "A fresh process that loaded the saved model gave the same answers." in text_of(run)
    assert with_yours(text_of(run), "") == card(read_facts(run.folder))


def test_a_run_that_is_finished_again_keeps_it(run):
    path = run.model / "README.md"
    path.write_text(text_of(run).replace(BEGIN, f"{BEGIN}\nmine"))
    before = text_of(run)
    (run.folder / "results.json").unlink()
    train(run.recipe, run.folder, resume=True)
    assert text_of(run) == before
    assert "mine" in before


def test_a_card_without_the_markers_is_not_written_over(run):
    path = run.model / "README.md"
    for own in ("# My card\n", text_of(run).replace(END, "")):
        path.write_text(own)
        small.raises(ModelError, r"(?s)is a card without the lines .*remove the file", write_card, run)
        assert text_of(run) == own
    path.write_text("---\nlicense: mit\n---\n\n")  # as the Hub's form makes it: nobody's text
    write_card(run)
    assert text_of(run) == card(read_facts(run.folder))


CHARACTERS = st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n`\\<>")
LINES = st.text(CHARACTERS).map(lambda text: text.strip("\n"))


@settings(max_examples=40)
@given(LINES.filter(lambda text: END not in text and BEGIN not in text), st.booleans())
def test_any_text_stays_as_it_is(kept, windows):
    page = f"---\na: b\n---\n\n# A\n\n{BEGIN}\n{END}\n\nmore\n"
    written = with_yours(page, kept)
    assert yours(written.replace("\n", "\r\n") if windows else written, "") == kept
    assert with_yours(written, "") == page


def test_text_of_the_data_can_not_get_out_of_hand(facts):
    evil = f"</div><script>alert(1)</script> **b** [x](y) ``` ````\n{BEGIN}\nevil\n{END}"
    scores = {**facts.scores, "metrics": {**facts.scores["metrics"], f"f1/{evil}": 0.5, f"support/{evil}": 1}}
    told = {
        "splits": {**facts.results["splits"], "test": scores},
        "task": {"name": facts.task, "description": evil},
    }
    findings = {**facts.data, "findings": [{"level": "warn", "what": evil, "fix": ""}]}
    text = card(replace(facts, results=facts.results | told, data=findings))
    assert ModelCard(text).data.pipeline_tag == "text-classification"
    assert yours(text, "") == ""
    outside = re.sub(
        r"^(`{3,})\w+\n.*?^\1$", "", text.partition("\n---\n")[2], flags=re.MULTILINE | re.DOTALL
    )
    assert "<script>" not in outside.replace("\\<script\\>", "")
    assert "evil" in outside  # in the first sentence and in the limits, in one line and escaped
    assert "**b**" not in outside
    assert outside.count(BEGIN) == 1


def test_a_card_does_not_count_truncated_rows_where_answers_do_not_tell(tiny_encoder, tmp_path):
    text = card(read_facts(finished(BY_ID["retrieval"], tiny_encoder, tmp_path / "run").folder))
    assert "Texts are truncated to 128 tokens." in text
    assert "were longer" not in text


def test_a_card_has_the_mask_of_its_tokenizer(tiny_encoder, tmp_path):
    run = finished(BY_ID["mlm-nsp"], tiny_encoder, tmp_path / "run", hub=HUB)
    tokenizer = load_tokenizer(run.model)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    tokenizer.save_pretrained(run.model)
    text = write_card(run).read_text()
    assert "one <mask> in it" in text
    assert "[MASK]" not in text


def test_a_pair_that_no_window_holds_is_told(facts):
    rows = ({**facts.rows[0], "answer": {**facts.rows[0]["answer"], "truncated": True}},)
    text = card(replace(facts, options={**facts.options, "overflow": "window"}, rows=rows))
    assert "nothing is truncated" not in text
    assert "1 of 1 rows" in text
