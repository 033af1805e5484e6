"""Offline, deterministic, and with models that are built here in memory."""

import logging
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.util import Finalize
from pathlib import Path

# Temporary files of this process, and of those that it starts; except for pytest's own, which failed tests
# keep.
os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="bertkit-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"])
os.environ["BERTKIT_CACHE"] = os.path.join(os.environ["TMPDIR"], "vectors")
os.environ["HF_HOME"] = os.path.join(os.environ["TMPDIR"], "hf")  # a home may be read-only
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import datasets
import hypothesis
import pytest
import torch
import transformers
from huggingface_hub import constants
from huggingface_hub.utils import close_session
from margins import Margins
from matplotlib.figure import Figure

# Of programs that import this file, too; after multiprocessing's own folder in it, which has priority -100.
Finalize(None, shutil.rmtree, [os.environ["TMPDIR"]], {"ignore_errors": True}, exitpriority=-200)

# The same examples every time, so that a red run can be repeated; HYPOTHESIS_PROFILE=random looks for new
# ones.
# No test is timed: a busy machine is no defect.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.register_profile("random", derandomize=False, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat ran on mat good bad fine awful not very and but it "
    "was is one two three four five yes no up down red blue green . , ! ? ##s ##ing"
).split()


def pytest_addoption(parser):
    """`--precision fp32`: as on a processor without bf16 (see fp32/sitecustomize.py); `--all`: rare tests
    too.
    """
    parser.addoption(
        "--precision", choices=("auto", "fp32"), default="auto", help="default precision on this CPU"
    )
    parser.addoption("--margins", action="store_true", help="how much of its tolerance each comparison uses")
    parser.addoption(
        "--all", action="store_true", help="those marked `rare` too: the whole contract, every notebook"
    )


def pytest_configure(config):
    """`--precision` for this process and the subprocesses that it starts, which are also pytest-xdist's
    workers.
    """
    if config.getoption("margins"):
        config.pluginmanager.register(Margins(config))
    tempfile.tempdir = None  # which is TMPDIR from here on
    # and clean up
    signal.signal(signal.SIGTERM, lambda number, _: pytest.exit(f"signal {number}", 128 + number))
    if config.getoption("precision") == "fp32" and not hasattr(config, "workerinput"):
        folder = Path(__file__).parent / "fp32"
        runpy.run_path(str(folder / "sitecustomize.py"))
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        )


def pytest_unconfigure():
    """Leave nothing behind."""
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


def pytest_collection_modifyitems(config, items):
    """The notebooks first: they take minutes, and at the end one worker would wait for the other.

    Without a GPU, tests marked `cuda` are skipped; without `--all`, those marked `rare`.
    """
    items.sort(key=lambda item: "test_notebooks" not in item.nodeid)
    absent = {} if torch.cuda.is_available() else {"cuda": "torch.cuda.is_available() is False"}
    absent |= {} if config.getoption("all") else {"rare": "run by --all and `make test-all`"}
    for item in items:
        for mark in absent.keys() & {mark.name for mark in item.iter_markers()}:
            item.add_marker(pytest.mark.skip(reason=absent[mark]))


def pytest_terminal_summary(terminalreporter):
    """In one line, what was skipped and why."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.write_line(
            "skipped: " + "; ".join(f"{count} ({reason})" for reason, count in reasons.most_common())
        )


@pytest.fixture(scope="session", autouse=True)
def _quiet_libraries():
    """Bars off; one thread per worker, since the tests run in several processes."""
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _pictures_of_reports_only(request):
    """Pictures are drawn where tests look at them; elsewhere they would take a quarter of each small
    training.
    """

    def empty(figure, file, **_):
        file.write("<svg></svg>")

    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__ not in "test_report test_sweep test_explain test_browser".split():
            patch.setattr(Figure, "savefig", empty)
        yield


@pytest.fixture(autouse=True)
def _no_handler_is_left():
    """The command line logs to a stream that pytest closes at the end of the test."""
    logger = logging.getLogger("bertkit")
    handlers = list(logger.handlers)
    level = logger.level
    yield
    logger.handlers = handlers
    logger.setLevel(level)


def build_encoder(folder, seed=0, dropout=0.0, layers=2):
    """A BERT folder as the Hub would give it: hidden 16, 2 heads, 45 word pieces, 64 positions."""
    tokenizer = transformers.BertTokenizer(
        vocab={word: index for index, word in enumerate(WORDS)}, model_max_length=64
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes, **rates)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory):
    """The tiny BERT without dropout."""
    return build_encoder(tmp_path_factory.mktemp("tiny-bert"))


@pytest.fixture(scope="session")
def tiny_encoder_with_dropout(tmp_path_factory):
    """The tiny BERT with dropout 0.1, for what has to repeat random numbers."""
    return build_encoder(tmp_path_factory.mktemp("tiny-bert-dropout"), dropout=0.1)


@pytest.fixture(scope="session")
def learned(tiny_encoder, tmp_path_factory):
    """The Run of a model that has learned the rows of `small`, which are beside it. Nobody may change it."""
    import small

    yield from _kept(tmp_path_factory.mktemp("learned"), tiny_encoder, *small.LEARN)


@pytest.fixture(scope="session")
def two_seeds(tiny_encoder, tmp_path_factory):
    """The Run of two seeds and a recipe that states a licence, logged every other step. Nobody may change
    it.
    """
    overrides = ("seeds=[1, 2]", "training.logging_steps=2", "hub={license: mit, language: en}")
    yield from _kept(tmp_path_factory.mktemp("two-seeds"), tiny_encoder, *overrides)


def _kept(room, encoder, *overrides):
    """The run of the small recipe with these overrides, in this folder, which has to stay as it is."""
    import small

    run = small.trained(room, encoder, *overrides)
    before = small.files(room)
    yield run
    assert small.files(room) == before, "a test changed the run that others share"


@pytest.fixture(scope="session")
def real_data():
    """The folder of real data beside the checkout; tests that use it skip where it is absent."""
    root = Path(__file__).resolve().parent.parent
    for folder in (root.parent / "shared/data", root / "shared/data"):
        if folder.is_dir():
            return folder
    pytest.skip("no ../shared/data beside the checkout")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub that huggingface_hub talks to, with an empty cache and a token; nobody waits in earnest."""
    from fakehub import TOKEN, running

    with running() as server:
        for name, value in {
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_TOKEN_PATH": str(tmp_path / "token"),
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(time, "sleep", lambda _: None)
        close_session()
        yield server
        close_session()
