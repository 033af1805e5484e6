"""How many lines each room of the package may have: a feature that goes beyond them is paid for by one that goes."""

from __future__ import annotations

from collections import Counter

from test_layers import MODULES, OPTIONAL, imported, room

MOST = {
    "attachments": 795,
    "audits": 950,
    "cli": 1165,
    "data": 4630,
    "decisions": 250,
    "encoding": 525,
    "engine": 1610,
    "evaluation": 2300,
    "explain": 505,
    "export": 615,
    "files at the root": 1160,
    "hub": 255,
    "inference": 2385,
    "methods": 445,
    "models": 4130,
    "recipe": 1635,
    "report": 2435,
    "retrieval": 1030,
    "samples": 0,
    "serve": 1775,
    "sweeps": 605,
    "tasks": 3090,
    "training": 1250,
}
MOST_OF_ALL, MOST_OF_CORE = 33_500, 23_930
MOST_OF_TRAINING = 20_500  # what `import bertkit.training.train` brings


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
