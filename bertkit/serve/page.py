"""The OpenAPI page: one self-contained HTML page, which needs no internet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def page(openapi: Mapping[str, Any]) -> str:
    """Each path with the schemas of its request and response; all of it escaped."""
    environment = Environment(loader=PackageLoader("bertkit.serve", "."), autoescape=True, undefined=StrictUndefined)
    environment.filters["written"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    return environment.get_template("page.html").render(openapi=openapi)
