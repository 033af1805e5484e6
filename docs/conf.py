"""The site, by Sphinx: the pages as they lie in the repository, and three that reference.py makes from the code."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed
from typing import Any

project = "bertkit"
version = release = installed("bertkit")
copyright = "the bertkit maintainers, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# The whole repository is the source, so that links are the same here and in a checkout.
root_doc = "docs/index"
include_patterns = ["docs/*.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bertkit/samples/README.md"]
exclude_patterns = [".*", "runs", "tests", "shared", "dist", "docs/_build"]
html_theme = "furo"
html_title = f"bertkit {release}"
html_extra_path = ["site"]  # index.html, which leads to docs/index.html
html_copy_source = False
myst_heading_anchors = 4
default_role = "code"
smartquotes = False
autodoc_typehints_format = "short"
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other libraries: the site is built without a network
suppress_warnings = ["misc.highlighting_failure"]  # "…" stands for what is left out of JSON


def setup(app: Any) -> None:
    """Called by Sphinx: what is made from the code goes below what is written on its page."""
    sys.path.insert(0, str(app.confdir))
    import reference

    made = {
        "docs/reference-recipe": reference.recipe_page,
        "docs/reference-commands": reference.command_page,
        "docs/reference-python": reference.api_page,
    }

    def fill(_: Any, name: str, source: list[str]) -> None:
        if name in made:
            source[0] = f"{source[0]}\n{made[name]()}\n"

    app.connect("source-read", fill)
