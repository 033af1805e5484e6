"""The rank of this process among those that torchrun or accelerate started."""

from __future__ import annotations

import os

from bertkit.errors import Problem, UserError


def world() -> int:
    """The number of processes. Raises UserError."""
    count, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
    if count > 1 and not 0 <= rank < count:  # it would wait for the others forever
        fix = "Start several processes with torchrun, or unset RANK and WORLD_SIZE."
        raise UserError(Problem("RANK", f"{rank}, but WORLD_SIZE {count} has processes 0 to {count - 1}", fix))
    return count


def first() -> bool:
    """Whether this process writes the files: rank 0, or the only one whatever its rank. Raises UserError."""
    return world() == 1 or _number("RANK", 0) == 0


def _number(name: str, alone: int) -> int:
    """What the launcher set, or the value without a launcher."""
    try:
        return int(os.environ.get(name) or alone)
    except ValueError as error:
        fix = f"Start several processes with torchrun, or unset {name}."
        raise UserError(Problem(name, f"{os.environ[name]!r} is not a whole number", fix)) from error
