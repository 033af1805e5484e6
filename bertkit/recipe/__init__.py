"""The recipe: its schema, reading, overriding, checking and writing; and the recipes that come with
bertkit.
"""

from __future__ import annotations

from pathlib import Path


def shipped_recipes() -> dict[str, Path]:
    """Name -> file of every shipped recipe, sorted by name.

    In a wheel they are bertkit/recipes/<task>/<name>.yaml, in the repository recipes/<task>/<name>.yaml.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "recipes", package.parent / "recipes"):
        recipes = {path.stem: path for path in folder.glob("*/*.yaml")}
        if recipes:
            return dict(sorted(recipes.items()))
    return {}
