"""Sphinx configuration: pages and notebooks of this repository, and pages that reference.py generates from
the code.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes

project = "bertkit"
about = metadata("bertkit")
version = release = about["Version"]
html_baseurl = (
    dict(each.split(", ") for each in about.get_all("Project-URL"))["Documentation"] + "/en/latest/"
)
copyright = "the bertkit maintainers, Apache-2.0"
extensions = ["myst_nb", "sphinx_design", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# The source is the whole repository, so that links are the same on the site and in a checkout.
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "notebooks/*.ipynb",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "bertkit/samples/README.md",
]
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
        "docs/gallery": reference.gallery_page,
    }

    def fill(_: Any, name: str, source: list[str]) -> None:
        if name in generated:
            source[0] = f"{source[0]}\n{generated[name]()}\n"

    def part(_: Any, kind: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
        """A paragraph for each parameter of a docstring, without the indent of its further lines."""
        parts, inside = list[str](), False
        for line in lines:
            starts = re.match(r"([a-z_]+, )*[a-z_]+: |Raises ", line) is not None
            inside = starts or (inside and bool(line))
            parts += [*([""] if starts else []), line.lstrip() if inside else line]
        lines[:] = parts

    def list_pages(app: Any, error: Exception | None) -> None:
        """Write llms.txt (https://llmstxt.org): the pages, by the captions of the landing page, for language
        models.
        """
        lines = [f"# {project}", "", f"> {about['Summary']}"]
        for tree in [] if error else app.env.get_doctree(root_doc).findall(addnodes.toctree):
            lines += ["", f"## {tree['caption']}", ""]
            for _, page in tree["entries"]:
                paragraphs = app.env.get_doctree(page).findall(nodes.paragraph)
                texts = (each for each in paragraphs if not each.next_node(nodes.image))
                about_it = " ".join(next(texts).astext().split())
                lines.append(f"- [{app.env.titles[page].astext()}]({html_baseurl}{page}.html): {about_it}")
        Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", part)
    app.connect("build-finished", list_pages)
