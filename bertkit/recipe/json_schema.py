"""The JSON Schema of recipes, for editors."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from bertkit.data.readers import formats
from bertkit.recipe.parts import SHARED
from bertkit.recipe.recipe import MultiTaskRecipe, Recipe
from bertkit.recipe.training_arguments import training_schema
from bertkit.tasks import all_tasks
from bertkit.text import Json


def json_schema() -> Json:
    """The JSON Schema of a recipe: of several tasks where it has `tasks`, of one where it does not.

    With the training fields of the installed transformers.
    """
    one = Recipe.model_json_schema()
    several = MultiTaskRecipe.model_json_schema()
    definitions = {**one.pop("$defs"), **several.pop("$defs")}
    properties = one["properties"]
    properties["training"] = {**training_schema(), "description": properties["training"]["description"]}
    several["properties"] |= {name: properties[name] for name in SHARED}
    several["required"] = ["tasks", "model"]
    definitions["DataSpec"]["properties"]["format"]["anyOf"][0]["enum"] = [
        reader.name for reader in formats()
    ]
    tasks = all_tasks()
    options: Any = Annotated[reduce(or_, [task.Options for task in tasks]), Field(discriminator="name")]
    choice = TypeAdapter(options).json_schema()
    definitions |= choice.pop("$defs")
    references = choice["discriminator"]["mapping"]
    properties["task"] = choice
    several_too = [{"$ref": references[task.name]} for task in tasks if task.shares_encoder]
    definitions["TaskPart"]["properties"]["task"] = {"oneOf": several_too}
    version = "https://json-schema.org/draft/2020-12/schema"
    return {
        "$schema": version,
        "if": {"required": ["tasks"]},
        "then": several,
        "else": one,
        "$defs": definitions,
    }
