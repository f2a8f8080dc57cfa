"""The settings of `make docs`: README.md and docs/ as a site that loads nothing from elsewhere.

The pages are the files as they stand, in their own places, so that a link which works in the repository works here.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))  # the extensions below

project = "dagrpo"
html_title = "dagrpo"
extensions = ["myst_parser", "public_api", "flowchart"]
root_doc = "README"
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
include_patterns = [
    "README.md",
    "CHANGES.md",
    "docs/*.md",
    "docs/*.ipynb",
    "docs/site/api.md",
    "examples/*.md",
    "examples/*/*.md",
]
exclude_patterns = [
    path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in {"docs", "examples"}
]  # never walked through
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
myst_disable_syntax = ["html_inline", "html_block"]  # `<name>` is a text
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
smartquotes = False  # what is quoted may be a value
highlight_language = "text"
python_maximum_signature_line_length = 90

FIRST = ["own_task", "tool_agent", "pictures", "gsm8k"]  # of the examples; the others follow by name
OTHERS = sorted({path.parent.name for path in ROOT.glob("examples/*/README.md")} - set(FIRST))
NAVIGATION = {
    "Examples": ["examples/README", *(f"examples/{name}/README" for name in (*FIRST, *OTHERS))],
    "Use": [
        *(f"docs/{name}" for name in ("installation", "command_line", "stages", "sweeps", "publishing", "gpu", "cluster", "notebook")),
        *(f"docs/{name}" for name in ("metrics", "dvc", "replay", "exactness", "checkpoints")),
    ],
    "Extend": [f"docs/{name}" for name in ("extending", "tasks", "rewards", "algorithms", "agents", "tools", "chat_formats", "vision")],
    "Look up": [
        *(f"docs/{name}" for name in ("parameters", "scripts", "backends", "site/api", "sandbox", "benchmarks", "glossary")),
        "docs/SECURITY",
        "CHANGES",
    ],
}  # fmt: skip


def _as_markdown(app: "Sphinx", name: str, content: list[str]) -> None:
    """What a page is made of: a notebook's cells as Markdown, the front page with the navigation."""
    if app.env.doc2path(name).suffix == ".ipynb":
        content[0] = "\n\n".join(map(_cell, json.loads(content[0])["cells"]))
    if name == root_doc:
        content[0] += "".join(_part_of_navigation(caption, pages) for caption, pages in NAVIGATION.items())


def _cell(cell: dict[str, str]) -> str:
    source = "".join(cell["source"])
    return f"```python\n{source}\n```" if cell["cell_type"] == "code" else source


def _part_of_navigation(caption: str, pages: list[str]) -> str:
    return "\n".join(["", "", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def _front_page_as_index(app: "Sphinx", error: Exception | None) -> None:
    """README.html once more, where a web server and a person look first."""
    if error is None and app.builder.name == "html":
        shutil.copyfile(app.outdir / "README.html", app.outdir / "index.html")


def setup(app: "Sphinx") -> None:
    app.connect("source-read", _as_markdown)
    app.connect("build-finished", _front_page_as_index)
