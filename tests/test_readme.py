"""What the pages say exists: commands parse, code compiles, files and links are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from test_layers import FLOORS

from bertkit.cli import main as cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
ARCHITECTURE = ROOT / "docs" / "architecture.md"


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The fenced blocks of these languages."""
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
        if language in languages:
            yield body


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command of `bertkit` or `make`; in console blocks commands follow a `$`."""
    lines = [line for body in blocks(page, "bash") for line in body.replace("\\\n", " ").splitlines()]
    console = (line for body in blocks(page, "console") for line in body.replace("\\\n", " ").splitlines())
    lines += [line.removeprefix("$ ") for line in console if line.startswith("$ ")]
    for line in lines:
        words = shlex.split(line.split(" > ")[0], comments=True)
        if words and words[0] in ("bertkit", "make"):
            yield words


def test_commands_parse() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in PAGES:
        for words in commands(page):
            if words[0] == "make":
                assert set(words[1:]) <= targets, (page.name, words)
            else:
                cli.parse(words[1:])  # exits with the reason if it does not parse


def test_there_are_commands() -> None:
    commands_of_page = [words[:2] for words in commands(ROOT / "README.md")]
    assert commands_of_page == [["make", "quickstart"], ["make", "test"]]
    cells = re.findall(r"^\|[^|]+\|(.*?)\|[^|]+\|$", ROOT.joinpath("README.md").read_text(encoding="utf-8"), re.M)
    goals = [words for cell in cells for words in re.findall(r"`(bertkit .*?)`", cell)]
    assert len(goals) >= 10
    for words in goals:
        cli.parse(shlex.split(words)[1:])


def test_python_compiles() -> None:
    for page in PAGES:
        for body in blocks(page, "python"):
            compile(body, str(page), "exec")


def test_the_architecture_names_every_folder_and_nothing_else() -> None:
    package = ROOT / "bertkit"
    text = ARCHITECTURE.read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `bertkit/([\w./]+)` \|", text, re.M))
    folders = {f"{path.name}/" for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    files = {path.name for path in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert named == folders | files
    layers = next(body for body in blocks(ARCHITECTURE, "text") if body.startswith("cli/"))
    drawn = re.findall(r"(?:^|  )(\w+/|\w+\.py)(?=$|  )", layers, re.M)
    assert sorted(drawn) == sorted(named - {"samples/"})
    order = {name.rstrip("/").removesuffix(".py"): place for place, name in enumerate(drawn)}
    assert all(order[a] > order[b] for low, high in pairwise(FLOORS) for a in low for b in high)


def test_links_lead_somewhere() -> None:
    dead = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if re.match(r"https?://", link):
                continue
            name, _, anchor = link.partition("#")
            there = (page.parent / name).resolve() if name else page
            text = there.read_text(encoding="utf-8") if anchor and there.is_file() else ""
            titles = re.findall(r"^#+ (.*)$", text, re.M)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            if not there.exists() or (anchor and anchor not in anchors):
                dead.append(f"{page.name}: {link}")
    assert not dead
