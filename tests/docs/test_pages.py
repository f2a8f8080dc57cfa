"""Links of the pages lead somewhere, and nothing in them is taken for HTML."""

from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, anchors, inline, name_of, tokens

WEB = ("https://", "http://", "mailto:")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_of_the_project_and_a_heading_of_it(page: Path) -> None:
    for token in inline(page):
        target = token.attrGet("href" if token.type == "link_open" else "src")
        if target is None or str(target).startswith(WEB):
            continue
        path, _, anchor = str(target).partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)}: {target}"
        assert file.is_relative_to(ROOT), f"{name_of(page)}: {target} is outside the project"
        assert not anchor or anchor in anchors(file), f"{name_of(page)}: {target}, which has {sorted(anchors(file))}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_text_is_taken_for_html_and_left_out(page: Path) -> None:
    """`<name>` outside backticks is a tag to Markdown: nobody sees it. A comment is meant so."""
    found = [token.content for token in (*tokens(page), *inline(page)) if token.type in {"html_inline", "html_block"}]
    assert [text for text in found if not text.startswith("<!--")] == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `a`\n\n## Two, and more\n\n## Two, and more\n\n[x](#nowhere)\n")
    assert anchors(page) == {"one-a", "two-and-more", "two-and-more-1"}
    assert [token.attrGet("href") for token in inline(page) if token.type == "link_open"] == ["#nowhere"]
