"""Which of the processes that torchrun or accelerate started this one is."""

from __future__ import annotations

import os

from bertkit.errors import Problem, UserError


def world() -> int:
    """How many processes there are. Raises UserError."""
    return _number("WORLD_SIZE", 1)


def first() -> bool:
    """Is this the process that writes? The only one is, whatever it is called. Raises UserError."""
    return world() == 1 or _number("RANK", 0) == 0


def _number(name: str, alone: int) -> int:
    """What the launcher set, or what it is without one."""
    try:
        return int(os.environ.get(name) or alone)
    except ValueError as error:
        fix = f"Start several processes with torchrun, or unset {name}."
        raise UserError(Problem(name, f"{os.environ[name]!r} is not a whole number", fix)) from error
