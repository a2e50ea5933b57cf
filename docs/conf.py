"""The configuration of the documentation site, which `make docs` builds without external files."""

import re
import shutil
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

HERE = Path(__file__).parent.resolve()

project = "elicit-url"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["*.py"]
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = project
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_static_path: list[str] = []

# Docstrings use single backticks around code.
default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

myst_heading_anchors = 5


_SIDEBAR = """
```{{toctree}}
:hidden:
:caption: {}

{}
```
"""
_README = """
```{include} ../README.md
:relative-docs: docs/
:start-after: "# elicit-url"
```
"""


def setup(app: Sphinx) -> None:
    app.connect("source-read", _add_directives)
    app.connect("doctree-read", _unlink, priority=100)
    app.connect("build-finished", _copy_pictures)


def _add_directives(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add what GitHub cannot show: the sidebar, README on the home page, and the example files."""
    if page == "index":
        start, _, lists = source[0].partition("## All pages\n")
        captions = re.findall(r"### (.+)\n\n((?:- .+\n)+)", lists)
        pages = ["\n".join(re.findall(r"\((.+)\.md\)", links)) for _, links in captions]
        sidebar = map(_SIDEBAR.format, (caption for caption, _ in captions), pages)
        source[0] = start + _README + "".join(sidebar)
    example = r"(?m)^\[\w+\.py\]\((.+/examples/\w+\.py)\)$"
    source[0] = re.sub(example, r"```{literalinclude} \1\n:language: python\n```", source[0])


def _copy_pictures(app: Sphinx, error: Exception | None) -> None:
    """Copy the pictures: the pages show them with HTML, for both color schemes."""
    if error is None:
        shutil.copytree(HERE / "pictures", app.outdir / "pictures", dirs_exist_ok=True)


def _unlink(app: Sphinx, page: nodes.document) -> None:
    """Replace links to files that are in the repository but not on the site by their text."""
    here = Path(app.env.doc2path(app.env.docname)).parent
    for found in (addnodes.download_reference, addnodes.pending_xref):
        for link in list(page.findall(found)):
            target = link.get("reftarget", "")
            # MyST leaves out the suffix of another page, here of README.md.
            names = (target, f"{target}.md")
            places = [(base / name).resolve() for base in (here, HERE.parent) for name in names]
            if any(place.exists() and not place.is_relative_to(HERE) for place in places):
                link.replace_self(nodes.inline("", "", *link.children))
