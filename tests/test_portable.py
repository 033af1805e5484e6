"""What holds on every system: modules that Windows lacks are not needed, and nothing is left behind."""

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import small

PACKAGE = Path(__file__).parent.parent / "bertkit"
POSIX = set("fcntl grp pwd readline resource termios".split())  # modules that Windows lacks


def test_no_module_that_windows_lacks_is_imported():
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not POSIX & {getattr(node, "module", ""), *(name.name for name in node.names)}, file


def test_a_signal_ends_a_command_and_removes_its_temporary_files(tmp_path):
    """SIGTERM: see below."""
    number = signal.SIGHUP
    program = (
        "import os, signal, tempfile\n"
        "from bertkit.cli.main import ended_by_signals\n"
        f"signal.signal({int(number)}, signal.SIG_DFL)\n"  # which nohup ignores
        f"with ended_by_signals(), tempfile.TemporaryDirectory(): os.kill(os.getpid(), {int(number)})\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    assert (
        subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode
        == 128 + number
    )
    assert not list(tmp_path.iterdir())


def test_a_training_that_is_stopped_leaves_no_temporary_files(tiny_encoder, tmp_path):
    (temporary := tmp_path / "temporary").mkdir()
    file = small.write_recipe(tmp_path, tiny_encoder)
    folder = tmp_path / "run"
    words = [
        "train",
        file,
        "--output-dir",
        folder,
        "training.num_train_epochs=1000",
        "training.logging_steps=1",
    ]
    environment = os.environ | {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-m", "bertkit", *map(str, words)], env=environment) as process:
        while process.poll() is None and not (folder / "metrics.jsonl").is_file():
            time.sleep(0.05)
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    assert not list(temporary.iterdir())
