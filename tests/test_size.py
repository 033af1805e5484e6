"""How many lines each room of the package may have: a feature that goes beyond them is paid for by one that goes."""

from __future__ import annotations

from collections import Counter

from test_layers import MODULES, OPTIONAL, room

MOST = {
    "attachments": 1050,
    "audits": 1100,
    "cli": 1450,
    "data": 5500,
    "decisions": 300,
    "encoding": 600,
    "engine": 1950,
    "evaluation": 2550,
    "explain": 600,
    "export": 800,
    "files at the root": 1250,
    "hub": 400,
    "inference": 2500,
    "methods": 500,
    "models": 4850,
    "recipe": 1750,
    "report": 3000,
    "retrieval": 1200,
    "samples": 0,
    "serve": 1950,
    "sweeps": 650,
    "tasks": 3350,
    "training": 1300,
}
MOST_OF_ALL, MOST_OF_CORE = 37_500, 26_550


def test_no_room_outgrows_its_lines() -> None:
    lines = Counter[str]()
    for module, file in MODULES.items():
        inside = file.parent.name != "bertkit"
        lines[room(module) if inside else "files at the root"] += len(file.read_text(encoding="utf-8").splitlines())
    assert lines.keys() <= MOST.keys()
    assert {name: count for name, count in lines.items() if count > MOST[name]} == {}
    assert lines.total() <= MOST_OF_ALL
    assert sum(count for name, count in lines.items() if name not in OPTIONAL) <= MOST_OF_CORE
