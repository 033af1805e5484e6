"""Every notebook runs from top to bottom; for a part of an epoch, since only its code is under test here."""

import os
import re
import subprocess
import sys

import nbformat
import pytest
from fakehub import TOKEN, running
from small import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PUSHING = [path for path in NOTEBOOKS if "push(run" in path.read_text()]
FRAME = ROOT / "notebooks/dataframe.ipynb"
OFFLINE = ROOT / "notebooks/ner_crf.ipynb"
EXECUTE = """
import sys
from pathlib import Path
import nbformat
from nbclient import NotebookClient
file = Path(sys.argv[1])
notebook = nbformat.read(file, as_version=4)
NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(file.parent)}}).execute()
nbformat.write(notebook, file)
"""
# What takes time and is tested elsewhere is left out: most rows, the explanations, the proof by a fresh
# process.
SHORTER = {
    r"^epochs = \d+$": "epochs = 0.2",
    r'f"training\.num_train_epochs=\{epochs\}"': r'\g<0>, "data.limit=24", "explain=false", "verify=false"',
    r"^    epochs=6,$": "    epochs=0.2, limit=24, explain=False, verify=False,",
    r"lines=True\)$": r"\g<0>.groupby('label').head(30)",
    r"\(others \* 100\)\[:100\]": "others[:10]",
}
USUAL = ("quickstart.ipynb",)  # of those that only run; the others with --all


def each_of(paths):
    """A test of each of these notebooks; without --all, of those of `USUAL`."""
    marks = {path: () if path.name in USUAL else pytest.mark.rare for path in paths}
    return pytest.mark.parametrize(
        "path", [pytest.param(p, id=p.name, marks=marks[p]) for p in sorted(paths)]
    )


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """The environment of a notebook: this checkout and this Python, on one thread, with no account of the
    Hub.
    """
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HOME", f"{tmp_path}/home")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", f"{tmp_path}/jupyter")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    kernel = tmp_path / "kernels/python3"
    kernel.mkdir(parents=True)
    command = f'["{sys.executable}", "-W", "ignore", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (kernel / "kernel.json").write_text(
        f'{{"argv": {command}, "display_name": "Python 3", "language": "python"}}'
    )


def outputs(path, folder, first=""):
    """Run the notebook in this folder; the outputs of each code cell. first: what its first cell begins
    with.
    """
    notebook = nbformat.read(path, as_version=4)
    next(cell for cell in notebook.cells if cell.cell_type == "code").source = first + next(
        cell.source for cell in notebook.cells if cell.cell_type == "code"
    )
    for cell in notebook.cells:
        for pattern, shorter in SHORTER.items():
            cell.source = re.sub(pattern, shorter, cell.source, flags=re.MULTILINE)
    file = folder / path.name
    nbformat.write(notebook, file)
    # In a process of its own: what an earlier client leaves to be closed is not this one's socket.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXECUTE, str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [cell.outputs for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]


def printed(path, folder):
    """Run the notebook in this folder; what it prints."""
    every = [output for each in outputs(path, folder) for output in each]
    return "".join(output.text for output in every if output.output_type == "stream")


def test_all_are_saved_without_outputs_and_push_in_the_same_way():
    for path in NOTEBOOKS:
        code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert not [cell for cell in code if cell.outputs or cell.execution_count], path.name
    assert {"quickstart", "sentiment"} < {path.stem for path in PUSHING}
    sources = [cell.source for path in PUSHING for cell in nbformat.read(path, as_version=4).cells]
    cells = [source for source in sources if "push(run" in source]
    assert len(cells) == len(PUSHING)
    assert len({re.sub(r"/bertkit-\w+", "", cell) for cell in cells}) == 1


@pytest.mark.usefixtures("kernel")
@each_of({*NOTEBOOKS} - {*PUSHING, FRAME})
def test_it_runs(path, tmp_path):
    printed(path, tmp_path)


@pytest.mark.rare
@pytest.mark.usefixtures("kernel")
def test_five_cells_show_a_frame_a_run_its_mistakes_answers_and_curves(tmp_path):
    """With warnings as errors; besides results there is one progress bar, and nothing else."""
    cells = outputs(FRAME, tmp_path, "import warnings\nwarnings.simplefilter('error')\n")
    cells = cells[1:]  # after the one that installs
    assert len(cells) == 5
    shown = [[each for each in cell if each.output_type == "execute_result"] for cell in cells]
    assert [len(each) for each in shown] == [1] * 5
    frame, run, mistakes, answers, curves = (each[0].data for each in shown)
    assert "<th>label</th>" in frame["text/html"]
    assert re.search(
        r"<td>validation</td>\s*<td>accuracy</td>\s*<td>[\d.]+</td>\s*<td>[\d.]+ … [\d.]+</td>",
        run["text/html"],
    )
    assert 'href="runs/reviews/report.html"' in run["text/html"]
    assert "<th>gold</th>" in mistakes["text/html"]
    assert re.search(r"<th>r-2</th>\s*<td>(posi|nega)tive</td>\s*<td>[\d.]+</td>", answers["text/html"])
    assert curves["image/png"]
    rest = [each for cell in cells for each in cell if each.output_type != "execute_result"]
    assert {each.get("name") for each in rest} == {"stderr"}
    bars = "".join(each.text for each in rest)
    assert re.fullmatch(r"(training:[^\n\r]*|\s)*", bars), bars


@pytest.mark.rare
@pytest.mark.usefixtures("kernel")
def test_it_runs_offline_and_says_what_a_push_needs(tmp_path):
    said = printed(OFFLINE, tmp_path)
    assert re.search(r"(?m)^model\.safetensors +[\d,]+$", said)
    assert "Nothing was sent. Log in" in said


@pytest.mark.usefixtures("kernel")
@each_of({*PUSHING} - {OFFLINE})
def test_it_runs_from_the_problem_to_the_pushed_model(path, tmp_path, monkeypatch):
    with running() as hub:
        switches = {"HF_HUB_DISABLE_XET": "1", "BERTKIT_PUSH": "1", "HF_HUB_OFFLINE": "0"}
        for name, value in {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, **switches}.items():
            monkeypatch.setenv(name, value)
        said = printed(path, tmp_path)
    ((name, repo),) = hub.repos.items()
    assert name.startswith("me/bertkit-")
    assert repo.private
    assert repo.titles == ["Push by bertkit"]
    commit = repo.branches["main"]
    assert f"{hub.url}/{name}/commit/{commit}" in said
    assert f"GET /{name}/resolve/{commit}/model.safetensors" in hub.requests
    assert TOKEN not in said
