"""Sphinx configuration: pages and notebooks of this repository, and pages that reference.py generates from the code."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed
from typing import Any

project = "bertkit"
version = release = installed("bertkit")
copyright = "the bertkit maintainers, Apache-2.0"
extensions = ["myst_nb", "sphinx_design", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# The source is the whole repository, so that links are the same on the site and in a checkout.
root_doc = "docs/index"
include_patterns = ["docs/*.md", "notebooks/*.ipynb", "CONTRIBUTING.md", "CHANGELOG.md", "bertkit/samples/README.md"]
exclude_patterns = [".*", "runs", "tests", "shared", "dist", "docs/_build"]
html_theme = "furo"
html_title = f"bertkit {release}"
html_extra_path = ["site"]  # index.html, which redirects to docs/index.html
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]  # for the cards of the landing page
nb_execution_mode = "off"  # notebooks are saved without outputs; tests/test_notebooks.py runs them
default_role = "code"
smartquotes = False
autodoc_typehints_format = "short"
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other libraries: the site is built without a network
suppress_warnings = ["misc.highlighting_failure"]  # "…" stands for what is left out of JSON


def setup(app: Any) -> None:
    """Called by Sphinx: append the generated tables to the pages of the reference."""
    sys.path.insert(0, str(app.confdir))
    import reference

    generated = {
        "docs/reference-recipe": reference.recipe_page,
        "docs/reference-commands": reference.command_page,
        "docs/reference-python": reference.api_page,
        "docs/reference-tasks": reference.task_page,
        "docs/reference-modules": reference.module_page,
    }

    def fill(_: Any, name: str, source: list[str]) -> None:
        if name in generated:
            source[0] = f"{source[0]}\n{generated[name]()}\n"

    app.connect("source-read", fill)
