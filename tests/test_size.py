"""How many lines each room of the package may have: a feature that goes beyond them is paid for by one that goes."""

from __future__ import annotations

from collections import Counter

from test_layers import MODULES, OPTIONAL, room

MOST = {
    "attachments": 950,
    "audits": 1050,
    "cli": 1300,
    "data": 5305,
    "decisions": 250,
    "encoding": 550,
    "engine": 1750,
    "evaluation": 2450,
    "explain": 550,
    "export": 750,
    "files at the root": 1200,
    "hub": 300,
    "inference": 2480,
    "methods": 500,
    "models": 4650,
    "recipe": 1700,
    "report": 2900,
    "retrieval": 1150,
    "samples": 0,
    "serve": 1950,
    "sweeps": 650,
    "tasks": 3329,
    "training": 1250,
}
MOST_OF_ALL, MOST_OF_CORE = 36_601, 25_931


def test_no_room_outgrows_its_lines() -> None:
    lines = Counter[str]()
    for module, file in MODULES.items():
        inside = file.parent.name != "bertkit"
        lines[room(module) if inside else "files at the root"] += len(file.read_text(encoding="utf-8").splitlines())
    assert lines.keys() <= MOST.keys()
    assert {name: count for name, count in lines.items() if count > MOST[name]} == {}
    assert lines.total() <= MOST_OF_ALL
    assert sum(count for name, count in lines.items() if name not in OPTIONAL) <= MOST_OF_CORE
