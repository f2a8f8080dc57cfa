"""The pages that are shown to people: Markdown in the root, docs/, examples/ and packages/, and the notebook."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/*.ipynb",
        "docs/site/*.md",
        "examples/**/*.md",
        "config/*.md",
        "packages/*/README.md",
    )
    for path in ROOT.glob(pattern)
)
PARSER = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a block of code, or a piece of code in a sentence."""

    page: str  # relative to the project
    text: str
    is_inline: bool


def name_of(page: Path) -> str:
    """As tests and tables name a page."""
    return page.relative_to(ROOT).as_posix()


@cache
def tokens(page: Path) -> tuple[Token, ...]:
    """A page as markdown-it reads it; of a notebook the cells that are text."""
    return tuple(PARSER.parse(_markdown(page)))


def inline(page: Path) -> Iterator[Token]:
    """The pieces that sentences consist of: text, code, links, HTML."""
    for token in tokens(page):
        yield from token.children or ()


def lines_of_code(page: Path) -> Iterator[Line]:
    """Blocks that are no program in a named language, and code in sentences. A line that ends in a backslash goes on."""
    for token in tokens(page):
        if token.type == "code_block" or (
            token.type == "fence" and token.info.strip() in {"", "sh", "bash", "console"}
        ):
            for text in token.content.replace("\\\n", " ").splitlines():
                yield Line(page=name_of(page), text=text.strip(), is_inline=False)
    for piece in inline(page):
        if piece.type == "code_inline":
            yield Line(page=name_of(page), text=piece.content, is_inline=True)


@cache
def anchors(page: Path) -> frozenset[str]:
    """What `#...` may name: the headings, as GitHub writes them in addresses."""
    found: list[str] = []
    for heading, content in zip(tokens(page), tokens(page)[1:], strict=False):
        if heading.type == "heading_open":
            text = "".join(piece.content for piece in content.children or ())
            name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.append(f"{name}-{found.count(name)}" if name in found else name)
    return frozenset(found)


def _markdown(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
