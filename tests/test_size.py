"""How many lines each room of the package may have: a feature that goes beyond them is paid for by one that goes."""

from __future__ import annotations

from collections import Counter

from test_layers import MODULES, OPTIONAL, room

MOST = {
    "attachments": 840,
    "audits": 1060,
    "cli": 1240,
    "data": 5305,
    "decisions": 250,
    "encoding": 545,
    "engine": 1700,
    "evaluation": 2450,
    "explain": 510,
    "export": 690,
    "files at the root": 1180,
    "hub": 270,
    "inference": 2410,
    "methods": 460,
    "models": 4490,
    "recipe": 1690,
    "report": 2820,
    "retrieval": 1050,
    "samples": 0,
    "serve": 1930,
    "sweeps": 610,
    "tasks": 3260,
    "training": 1315,
}
MOST_OF_ALL, MOST_OF_CORE = 35_985, 25_598


def test_no_room_outgrows_its_lines() -> None:
    lines = Counter[str]()
    for module, file in MODULES.items():
        inside = file.parent.name != "bertkit"
        lines[room(module) if inside else "files at the root"] += len(file.read_text(encoding="utf-8").splitlines())
    assert lines.keys() <= MOST.keys()
    assert {name: count for name, count in lines.items() if count > MOST[name]} == {}
    assert lines.total() <= MOST_OF_ALL
    assert sum(count for name, count in lines.items() if name not in OPTIONAL) <= MOST_OF_CORE
