"""How many lines each room of the package may have: a feature that goes beyond them is paid for by one that goes."""

from __future__ import annotations

from collections import Counter

from test_layers import MODULES, OPTIONAL, imported, room

MOST = {
    "attachments": 820,
    "audits": 1060,
    "cli": 1245,
    "data": 4725,
    "decisions": 255,
    "encoding": 545,
    "engine": 1660,
    "evaluation": 2340,
    "explain": 505,
    "export": 655,
    "files at the root": 1170,
    "hub": 255,
    "inference": 2405,
    "methods": 450,
    "models": 4345,
    "recipe": 1665,
    "report": 2580,
    "retrieval": 1035,
    "samples": 0,
    "serve": 1855,
    "sweeps": 610,
    "tasks": 3195,
    "training": 1305,
}
MOST_OF_ALL, MOST_OF_CORE = 34_640, 24_600
MOST_OF_TRAINING = 20_950  # what `import bertkit.training.train` brings


def test_no_room_outgrows_its_lines() -> None:
    lines = Counter[str]()
    for module, file in MODULES.items():
        inside = file.parent.name != "bertkit"
        lines[room(module) if inside else "files at the root"] += len(file.read_text(encoding="utf-8").splitlines())
    assert lines.keys() <= MOST.keys()
    assert {name: count for name, count in lines.items() if count > MOST[name]} == {}
    assert lines.total() <= MOST_OF_ALL
    assert sum(count for name, count in lines.items() if name not in OPTIONAL) <= MOST_OF_CORE


def test_training_brings_little_code() -> None:
    brought, open_modules = set[str](), ["bertkit.training.train"]
    while open_modules:
        module = open_modules.pop()
        if module in MODULES and module not in brought:
            brought.add(module)
            open_modules += {module.rpartition(".")[0], *imported(MODULES[module], lazily=False)} - {"bertkit"}
    assert sum(len(MODULES[each].read_text(encoding="utf-8").splitlines()) for each in brought) <= MOST_OF_TRAINING
