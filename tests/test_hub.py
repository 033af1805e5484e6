"""Push and pull, by the real huggingface_hub, to and from a Hub on 127.0.0.1 (fakehub.py)."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import small
import torch
from cases import CASES, DRAWN
from fakehub import TOKEN, FakeHub, Fault
from finished import finished, restate
from huggingface_hub import ModelCard, constants, parse_eval_result_entries
from ruamel.yaml import YAML
from safetensors.torch import load_file, save, save_file
from small import copy_of, message_of, raises, refused, refuses, write_rows

from bertkit.cli.main import main
from bertkit.errors import ModelError, RecipeError
from bertkit.files import write_text
from bertkit.hub.push import Pushed, push
from bertkit.inference.evaluate import evaluate
from bertkit.inference.predictor import load
from bertkit.recipe.recipe import to_yaml
from bertkit.report.card import BEGIN, END, leaderboard, yours
from bertkit.report.facts import read_facts
from bertkit.run import Run
from bertkit.sections import Distillation, Hub
from bertkit.training.publish import check_hub
from bertkit.training.train import train

# huggingface_hub 2.4 hands files to httpx2 in a way that is on its way out.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")

ME = "me/model"


@pytest.fixture(scope="module")
def trained(two_seeds, tmp_path_factory):
    """A finished run whose card alone may change, as a push names its repository in it."""
    return Run(shutil.copytree(two_seeds.folder, tmp_path_factory.mktemp("hub") / "run"))


@pytest.fixture
def run(trained, tmp_path):
    return copy_of(trained, tmp_path / "run")


def answers(source, case, revision=None):
    found = load(source, revision=revision, precision="fp32")
    return list(found.task.answer(case.rows(), found.predict_features))


# --- the round trip


SENT = "single-label ner-crf retrieval text-to-text mlm-nsp".split()  # one of each kind of files


@pytest.mark.parametrize(
    "case", [case for case in [*CASES, *DRAWN] if case.id in SENT], ids=lambda case: case.id
)
def test_a_model_answers_the_same_after_the_round_trip(case, tiny_encoder, tmp_path, hub, monkeypatch):
    run = finished(case, tiny_encoder, tmp_path / "run")
    pushed = push(run.folder, ME)
    sent = small.files(run.model)
    there = hub.files(ME)
    assert {path: data for path, data in there.items() if path != ".gitattributes"} == sent
    assert hub.repos[ME].private
    assert len(hub.repos[ME].titles) == 1
    assert ModelCard.load(ME).data.model_name == "model"
    assert answers(ME, case, pushed.commit) == answers(run.folder, case)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert answers(ME, case, pushed.commit) == answers(run.folder, case)


def test_the_command_line_there_and_back(trained, hub, tmp_path, capsys):
    pushed = small.said(capsys, "push", trained.folder, ME)
    (commit,) = re.findall(r'bertkit.load\("me/model", revision="(\w{40})"\)', pushed)
    told = json.loads(small.said(capsys, "predict", ME, "the cat was good", "--revision", commit, "--json"))[
        "answer"
    ]
    assert told == load(trained.folder)("the cat was good")
    rows = write_rows(tmp_path / "new.jsonl", small.rows("single-label", 9, 40))
    assert evaluate(ME, data=rows) == evaluate(trained.folder, data=rows)
    card = hub.files(ME)["README.md"]
    assert b'bertkit.load("me/model")("your text")' in card
    other = hub.files(ME)["config.json"].replace(b'"good"', b'"fine"').replace(b'"bad"', b'"poor"')
    hub.commit(hub.repos[ME], "main", hub.files(ME) | {"config.json": other})
    assert load(ME, revision=commit)("the cat was good") == told  # a revision is exact
    assert load(ME)("the cat was good")["label"] != told["label"]


def test_pickles_and_code_at_the_hub_are_not_fetched(trained, hub, tmp_path):
    push(trained.folder, ME)
    strange = {"pytorch_model.bin": b"x", "modeling.py": b"x", "optimizer.pt": b"x"}
    hub.commit(hub.repos[ME], "main", hub.files(ME) | strange)
    load(ME)
    names = {path.name for path in (tmp_path / "cache").rglob("*")}
    assert "model.safetensors" in names
    assert not names & set(strange)


# --- what is sent


def test_a_dry_run_lists_every_file_and_changes_nothing(trained, hub, capsys, monkeypatch):
    out = small.said(capsys, "push", trained.folder, ME, "--dry-run")
    for file in trained.model.rglob("*"):
        line = next(
            line for line in out.splitlines() if line.startswith(f"{file.relative_to(trained.model)} ")
        )
        assert line.split()[1:] == [f"{file.stat().st_size:,}"]
    assert {request.partition(" ")[0] for request in hub.requests} == {"GET"}
    assert hub.repos == {}
    assert push(trained.folder, ME, dry_run=True).deleted == []
    hub.create(ME)
    hub.faults = always("", 500)
    asked = len(hub.requests)
    assert push(trained.folder, ME, dry_run=True).deleted is None
    assert len(hub.requests) > asked
    asked = len(hub.requests)
    monkeypatch.delenv("HF_TOKEN")
    assert "is not known" in small.said(capsys, "push", trained.folder, ME, "--dry-run", "--public")
    assert len(hub.requests) == asked


def test_a_benchmark_is_pushed_its_score_on_test(run, hub):
    push(run.folder, ME)
    assert not [path for path in hub.files(ME) if path.startswith(".eval_results")]
    data = run.recipe.data.model_copy(update={"source": "me/benchmark", "revision": "0" * 40})
    named = {"data": data, "hub": run.recipe.hub.model_copy(update={"benchmark": "sentiment"})}
    (run.folder / "recipe.yaml").write_text(to_yaml(run.recipe.model_copy(update=named)))
    push(run.folder, ME)
    stated = YAML(typ="safe").load(hub.files(ME)[".eval_results/bertkit.yaml"])
    (entry,) = parse_eval_result_entries(stated)
    scores = run.results["splits"]["test"]
    assert (entry.dataset_id, entry.dataset_revision, entry.task_id) == (
        "me/benchmark",
        "0" * 40,
        "sentiment",
    )
    assert (entry.value, entry.notes) == (scores["metrics"]["accuracy"], f"accuracy, {scores['rows']} rows")
    facts = read_facts(run.folder)
    untested = {**facts.results, "splits": {"validation": scores}}
    said = r"hub\.benchmark needs scores on test\n.*data\.splits"
    raises(ModelError, said, leaderboard, replace(facts, results=untested))
    (run.folder / "recipe.yaml").write_text(to_yaml(run.recipe.model_copy(update={"hub": None})))
    assert ".eval_results/bertkit.yaml" not in push(run.folder, ME, dry_run=True).files


OLD = (  # files of an older model, which a loader would read with the new one's
    *"adapter_config.json adapter_model.safetensors crf.safetensors modules.json vocab.txt".split(),
    *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"),
    *("1_Pooling/config.json", ".eval_results/bertkit.yaml", "sentence_roberta_config.json"),
)
OTHERS = (
    *"LICENSE LICENSE.txt requirements.txt picture.png data/train.json notes/results.json".split(),
    *"lora/adapter_config.json lora/adapter_model.safetensors onnx/config.json onnx/model.onnx".split(),
    *("1_Pooling/notes/config.json", "old/1_Pooling/config.json", "teacher.safetensors"),
)


def test_what_an_older_model_left_is_deleted_and_other_things_stay(trained, hub, capsys, caplog):
    """And the same again makes no commit; a branch leaves main as it is."""
    content = {".json": b"{}", ".safetensors": save({"w": torch.zeros(1)})}
    hub.create(ME, files={name: content.get(Path(name).suffix, b"x") for name in (*OLD, *OTHERS)})
    for revision in ([], ["--revision", "trial"]):
        said = small.said(capsys, "push", trained.folder, ME, "--dry-run", *revision)
        assert sorted(re.findall(r"(?m)^(\S+) +deleted$", said)) == sorted(OLD)
    assert len(hub.repos[ME].commits) == 1
    said = small.said(capsys, "push", trained.folder, ME, "--revision", "trial")
    assert sorted(re.findall(r"(?m)^(\S+) +deleted$", said)) == sorted(OLD)
    (line,) = [each.getMessage() for each in caplog.records if "deleted" in each.getMessage()]
    assert all(name in line for name in OLD)
    assert "config.json" in hub.files(ME, "trial")
    assert "config.json" not in hub.files(ME)
    assert load(ME, revision="trial")("a cat")
    first = push(trained.folder, ME)
    count = len(hub.repos[ME].titles)
    assert not set(OLD) & set(hub.files(ME))
    assert set(OTHERS) <= set(hub.files(ME))
    assert push(trained.folder, ME) == Pushed(ME, first.files, [], first.commit, first.url)
    assert len(hub.repos[ME].titles) == count == 2


def test_private_unless_public_is_said(trained, hub):
    """And a repository is private only where the Hub says so."""
    push(trained.folder, ME)
    assert hub.repos[ME].private
    push(trained.folder, ME, public=True)
    assert not hub.repos[ME].private
    for name, private in (("me/open", False), ("me/silent", None)):
        hub.create(name).private = private
        raises(ModelError, f"{name} is public, so the model would be too", push, trained.folder, name)
        assert hub.repos[name].titles == []
        push(trained.folder, name, public=True)
        assert "config.json" in hub.files(name)
        assert f"PUT /api/models/{name}/settings" not in hub.requests  # taken for public already


def test_a_new_public_repository_is_private_until_all_is_there(trained, hub):
    push(trained.folder, ME, public=True)
    order = [
        line for line in hub.requests if re.match(r"POST /api/repos|POST .*/commit/|PUT .*/settings", line)
    ]
    assert [line.rpartition("/")[2] for line in order] == ["create", "main", "settings"]
    hub.faults = [Fault("/settings", 500, times=99)]
    del hub.repos[ME]
    said = r"All files are there, in commit .* but me/model is still private"
    raises(ModelError, said, push, trained.folder, ME, public=True)
    assert hub.repos[ME].private


# --- what is refused, before anything is sent


Damage = Callable[[Run], object]
ESCAPED = "".join(f"\\u{ord(each):04x}" for each in TOKEN)
NESTED = json.dumps({"a": "TOKEN"}).replace("TOKEN", f"\\u{ord(TOKEN[0]):04x}{TOKEN[1:]}")


def put(name, content):
    """What writes this file of the model."""
    return lambda run: (run.model / name).write_text(content)


def torn(run):
    text = (run.model / "README.md").read_text()
    write_text(run.model / "README.md", text.replace(END, ""))


def with_metadata(run):
    weights = load_file(run.model / "model.safetensors")
    save_file(weights, run.model / "model.safetensors", {"format": "pt", "from": f"x_{TOKEN[:-1]}"})


def several(run):
    (run.model / "vocab.txt").symlink_to("/etc/hostname")
    torch.save({}, run.model / "model-00001-of-00002.safetensors")
    put("vocab.json", "{")(run)


UNFIT = [  # damage to a run, and the message
    (lambda run: (run.folder / "results.json").unlink(), "training has not finished: no results.json"),
    (lambda run: restate(run, "results.json", "seeds", "over_seeds"), ("(?s)lacks `seeds`.*lacks "
                                                                       "`over_seeds`")),
    (put("README.md", "# A model\n"), "README.md: is a card without the lines"),
    (torn, "README.md: is a card without the lines"),
    (lambda run: (run.model / "vocab.txt").hardlink_to(run.folder / "data.json"), "vocab.txt: is a link"),
    (several, ("(?s)safetensors: is damaged, or not safet.*vocab.json: is damaged: it is not "
               "JSON.*vocab.txt: is a l")),
    (lambda run: put("vocab.json", f'["{run.folder.resolve()}/data"]')(run), "names a folder of this machine"),
    (put("vocab.json", f'{{"token": "{TOKEN}"}}'), "vocab.json: contains a token of the Hub"),
    *((put("vocab.json", json.dumps([prefix + "aB3d" * 8 + "eF"])), "vocab.json: contains a token of the Hub")
      for prefix in ("hf_", "api_org_")),  # as long as real ones
    (lambda run: put("vocab.json", json.dumps([f"{Path.home()}/notes.txt"]))(run), ("names a folder of this "
                                                                                    "machine")),
    (lambda run: put("vocab.json", json.dumps([run.recipe.model.name]))(run), "names a folder of this machine"),
    (put("vocab.json", f'{{"a": "{ESCAPED}", "a": 1}}'), "vocab.json: contains a token of the Hub"),
    (put("vocab.json", json.dumps({"a": NESTED})), "vocab.json: contains a token of the Hub"),
    *((put(name, f"a\nĠ{TOKEN[:-1]}\n"), f"{name}: contains a token of the Hub")
      for name in ("vocab.txt", "merges.txt", "spiece.model")),
    (with_metadata, "model.safetensors: contains a token of the Hub"),
    (lambda run: save_file({"w": torch.zeros(2)}, run.model / "model.safetensors"), "lacks .* tensors"),
]  # fmt: skip


def test_what_is_not_fit_to_be_pushed_is_refused(trained, hub, tmp_path, capsys, subtests):
    for number, (damage, what) in enumerate(UNFIT):
        with subtests.test(what, number=number):
            run = Run(shutil.copytree(trained.folder, tmp_path / str(number)))
            damage(run)
            said = refused(capsys, "push", run.folder, ME)
            assert re.search(what, said)
            assert TOKEN not in said
            assert hub.requests == []


def test_what_no_model_folder_has_is_left_out_and_named(run, hub, caplog):
    (run.model / "sub").mkdir()
    others = "private_rows.json sub/a.json sub/modeling.py training_args.bin config.json.bak .env".split()
    for name in others:
        (run.model / name).write_text("{}")
    sent = push(run.folder, ME).files.keys()
    assert sent >= {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert not sent & set(others)
    assert not hub.files(ME).keys() & set(others)
    assert f"not uploaded, as no model folder has them: {', '.join(sorted(others))}" in caplog.text


# --- what people write into the card


def write(run, mine):
    text = (run.model / "README.md").read_text()
    kept = re.sub(f"{BEGIN}.*{END}", f"{BEGIN}\n{mine}\n{END}", text, flags=re.DOTALL)
    write_text(run.model / "README.md", kept)


def edit_at_the_hub(hub, old, new):
    files = hub.files(ME)
    hub.commit(
        hub.repos[ME], "main", files | {"README.md": files["README.md"].replace(old.encode(), new.encode())}
    )


def there_now(hub):
    return yours(hub.files(ME)["README.md"].decode(), "")


def test_what_people_write_here_and_at_the_hub_stays(run, trained, hub, tmp_path):
    write(run, "Made for bees.")
    push(run.folder, ME)
    assert there_now(hub) == "Made for bees."
    edit_at_the_hub(hub, "Made for bees.", "Made for bees.\r\n\r\nAnd wasps.")  # as a browser sends it
    push(run.folder, ME)
    assert there_now(hub) == "Made for bees.\n\nAnd wasps."
    assert yours((run.model / "README.md").read_text(), "") == there_now(hub)
    write(run, "Made for bees.\n\nAnd wasps.\n\nNot for hornets.")
    push(run.folder, ME)
    assert there_now(hub).endswith("Not for hornets.")

    other = Run(shutil.copytree(trained.folder, tmp_path / "other"))  # a new run, that nobody wrote into
    push(other.folder, ME)
    assert there_now(hub).startswith("Made for bees.")


def test_what_people_wrote_in_two_places_is_not_lost(run, hub):
    write(run, "Made for bees.")
    push(run.folder, ME)
    edit_at_the_hub(hub, "bees", "wasps")
    commits = len(hub.repos[ME].commits)
    raises(
        ModelError, r"have different texts between their markers\n    Write the final", push, run.folder, ME
    )
    assert len(hub.repos[ME].commits) == commits
    write(run, "Made for wasps.\nAnd for bees.")
    push(run.folder, ME)
    assert there_now(hub) == "Made for wasps.\nAnd for bees."


def test_a_card_of_other_peoples_making_is_not_written_over(run, hub):
    hub.create(ME, files={"README.md": b"---\nlicense: mit\n---\n"})  # as the Hub's form makes it
    push(run.folder, ME)
    hub.create(ME, files={"README.md": b"# My own words\n"})
    raises(ModelError, r"README.md of me/model: is a card without the lines", push, run.folder, ME)
    assert hub.repos[ME].titles == []
    assert hub.files(ME)["README.md"] == b"# My own words\n"


def test_nothing_is_public_without_a_licence(tiny_encoder, run, hub, tmp_path, capsys):
    write_text(run.folder / "recipe.yaml", to_yaml(run.recipe.model_copy(update={"hub": None})))
    said = refused(capsys, "push", run.folder, ME, "--public")
    assert "a public model needs a licence, and none is stated" in said
    assert f"{run.folder}/recipe.yaml, such as hub: {{license: apache-2.0}}" in said
    assert hub.requests == []
    text = (run.folder / "recipe.yaml").read_text()
    write_text(run.folder / "recipe.yaml", text.replace("hub: null", "hub: {license: apache-2.0}"))
    push(run.folder, ME, public=True)
    assert b"license: apache-2.0" in hub.files(ME)["README.md"]
    recipe = small.recipe(tmp_path, tiny_encoder, f"hub={{repo_id: {ME}, private: false}}")
    said = r"(?s)hub: a public model needs a licence.*Add the model's to the recipe"
    raises(RecipeError, said, train, recipe, tmp_path / "new")


def test_names_that_are_private_are_not_published_unasked(run, hub, capsys, monkeypatch):
    hub.create("you/open", private=False)
    for name in ("you/private", "you/rows"):
        hub.create(name)
    own = run.recipe
    model = own.model.model_copy(update={"name": "you/private"})
    data = own.data.model_copy(update={"source": "you/rows"})
    private = own.model_copy(
        update={"model": model, "data": data, "distillation": Distillation(teacher="you/gone")}
    )
    write_text(run.folder / "recipe.yaml", to_yaml(private))
    push(run.folder, ME)
    for more in ([], ["--dry-run"]):
        said = refused(capsys, "push", run.folder, ME, "--public", *more)
        assert "private or missing repositories: you/private, you/gone, you/rows\n" in said
    hub.faults = always("GET /api/models/you/", 500)  # which says nothing about them
    raises(ModelError, "repositories: you/rows\n", push, run.folder, ME, public=True)
    hub.faults = []
    assert hub.repos[ME].private
    part = private.model_copy(update={"hub": Hub(repo_id=ME, private=False, license="mit")})
    message = "(?s)hub: the card would name private.*leave out hub.repo_id"
    raises(RecipeError, message, check_hub, part)
    check_hub(part.model_copy(update={"hub": Hub(repo_id=ME)}))
    push(run.folder, ME, public=True, name_private=True)
    assert not hub.repos[ME].private
    write_text(
        run.folder / "recipe.yaml",
        to_yaml(own.model_copy(update={"model": model.model_copy(update={"name": "you/open"})})),
    )
    push(run.folder, ME, public=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    write_text(run.folder / "recipe.yaml", to_yaml(private))
    assert push(run.folder, ME, public=True, dry_run=True).deleted is None


def test_places_that_can_not_be_no_token_and_no_network(trained, hub, monkeypatch):
    for name in ("model", "me/mo del", "me/a--b"):
        raises(ModelError, "is not a valid repository id", push, trained.folder, name)
    raises(ModelError, "is a commit", push, trained.folder, ME, revision="0" * 40)
    monkeypatch.delenv("HF_TOKEN")
    raises(ModelError, "not logged in to the Hub", push, trained.folder, ME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    raises(ModelError, "offline mode is on", push, trained.folder, ME)
    assert hub.requests == []


# --- faults: docs/hub.md has this as a table


def always(pattern, act, **headers):
    return [Fault(pattern, act, 10_000, {name.replace("_", "-"): value for name, value in headers.items()})]


PUSHES = [  # what the Hub does, the message, and whether there is a repository afterwards
    (always("", 401), "the Hub does not accept your token", False),
    (always("/commit", 403), r"the Hub refuses 'me/model' \(403\).*\n.* is private", True),
    (always("/commit", "reset"), "'me/model': .*\n.*Check whether it has a new commit", True),
]


@pytest.mark.parametrize(("faults", "message", "there"), PUSHES, ids=[each[1] for each in PUSHES])
def test_faults_in_a_push(faults, message, there, run, hub, tmp_path, capfd, caplog):
    """One sentence, no token anywhere, nothing public."""
    caplog.set_level(logging.DEBUG)
    hub.faults = faults
    assert main(["push", str(run.folder), ME, "--public"]) == 2
    shown = capfd.readouterr()
    files = "".join(f.read_text(errors="replace") for f in tmp_path.rglob("*") if f.is_file())
    assert TOKEN not in shown.out + shown.err + caplog.text + files
    (line,) = re.findall(r"(?m)^error: .*(?:\n    .*)?", shown.err)
    assert re.search(message, line), line
    assert (ME in hub.repos) == there
    assert not there or hub.repos[ME].private
    hub.faults = []
    push(run.folder, ME)


def test_somebody_else_pushes_at_the_same_time(trained, hub, monkeypatch):
    repo = hub.create(ME)
    real = FakeHub.fault

    def meddling(self, line):
        if "/commit/" in line and len(repo.commits) == 1:
            self.commit(repo, "main", {**self.files(ME), "config.json": b"{}"})
        return real(self, line)

    monkeypatch.setattr(FakeHub, "fault", meddling)
    raises(ModelError, r"the Hub refuses 'me/model' \(412\)", push, trained.folder, ME)
    assert repo.titles == []
    assert hub.files(ME)["config.json"] == b"{}"
    # of another owner
    raises(ModelError, r"the Hub refuses 'them/model' \(403\)", push, trained.folder, "them/model")
    assert hub.repos.keys() == {ME}


# --- faults in a pull


@pytest.fixture
def there(trained, hub):
    """A model at the Hub, and nothing of it in the cache."""
    return push(trained.folder, ME)


PULLS = [
    (always("", 401), "the Hub does not accept your token"),
    (always("", 404, X_Error_Code="RepoNotFound"), "the Hub has no model 'me/model'"),
    (always("", 404, X_Error_Code="RevisionNotFound"), "has no revision 'main'"),
    (always("", 403, X_Error_Code="GatedRepo"), r"the Hub refuses 'me/model' \(403\)"),
    (always("GET /me/model/resolve/.*model.safetensors", "short"), "Consistency check failed"),
]


@pytest.mark.parametrize(("faults", "message"), PULLS, ids=[each[1] for each in PULLS])
def test_faults_in_a_pull(faults, message, trained, there, hub):
    hub.faults = faults
    assert TOKEN not in str(raises(ModelError, message, load, ME, revision="main"))
    hub.faults = []  # nothing that is half there stands in the way
    assert load(ME, revision="main")("a cat") == load(trained.folder)("a cat")


def test_the_cache_answers_where_there_is_no_network(trained, there, hub, monkeypatch):
    with monkeypatch.context() as patch:
        patch.delenv("HF_TOKEN")
        raises(ModelError, r"the Hub has no model 'me/model' \(or it is private\)", load, ME)
    load(ME)
    asked = len(hub.requests)
    assert load(ME, revision=there.commit)("a cat")
    assert not [line for line in hub.requests[asked:] if "/resolve/" in line]  # no file is fetched again
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert load(ME)("a cat") == load(trained.folder)("a cat")
    raises(ModelError, "is not in the local Hub cache, and the Hub cannot be reached", load, "me/other")


# --- in a recipe


def test_a_push_that_fails_leaves_a_whole_run(tiny_encoder, tmp_path, hub):
    hub.faults = always("/commit", 403)
    given = f"hub={{repo_id: {ME}, revision: dev, private: false, license: mit}}"
    recipe = small.recipe(tmp_path, tiny_encoder, given)
    words = rf"bertkit push .* {ME} --revision dev --public"
    said = rf"the run itself is complete\n    Push it later: {words}"
    raises(ModelError, said, train, recipe, tmp_path / "run")
    assert Run(tmp_path / "run").finished
    hub.faults = []
    push(tmp_path / "run", ME)


def test_a_recipe_that_can_not_be_pushed_is_not_trained(tiny_encoder, tmp_path, hub, monkeypatch):
    said = r"hub\.repo_id: expected owner/model, found 'x'"
    raises(RecipeError, said, small.recipe, tmp_path, tiny_encoder, "hub.repo_id=x")
    recipe = small.recipe(tmp_path, tiny_encoder, f"hub={{repo_id: {ME}, revision: {'a' * 40}}}")
    monkeypatch.delenv("HF_TOKEN")
    refuses(RecipeError, r"(?s)is a commit.*not logged in", recipe, tmp_path)
    assert hub.requests == []


def test_a_public_repository_is_not_called_private(run, hub):
    hub.create(ME, private=False)
    hub.faults = always("/commit", 403)
    assert "is private" not in message_of(ModelError, push, run.folder, ME, public=True)
