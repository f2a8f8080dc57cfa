"""Links of the pages lead somewhere, commands are taken by the command line, and figures are the recorded ones."""

from pathlib import Path

import pytest
from benchmarks import figures
from benchmarks.gpu.table import BEGIN, END
from tests.docs.commands import Command, commands, require_valid
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


SHOWN = list(commands())


@pytest.mark.parametrize("command", SHOWN, ids=lambda command: f"{command.page}: {command.text}")
def test_the_command_line_takes_every_command_that_a_page_shows(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    require_valid(command)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("dagrpo shwo tiny", "there is no `dagrpo shwo`"),
        ("dagrpo show tiny --stpe 3", "No such option: --stpe"),
        ("dagrpo compare", "Missing parameter: experiments"),
        ("dagrpo use arithmetic_tinny", "there is no preset `arithmetic_tinny`"),
        ("dagrpo grade gsm9k completions.jsonl", "`gsm9k` is not a task"),
        ("snakemake --cores all tagret", "no rule is called"),
        ("snakemake --cores all target --config training__stepz=3", "stepz"),
        ("snakemake --coars all target", "2"),  # argparse ends with exit code 2
        ("dvc repro --no-such-option", ""),
        ("dvc exp run -S training.stepz=3", "stepz"),
        ("make tset", "make has the targets"),
        ("python benchmarks/nothing.py", "No such file"),
        ("python benchmarks/correction.py --no-such-option", "has no --no-such-option"),
    ],
)
def test_a_command_that_is_misspelled_is_refused(text: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises((Exception, SystemExit)) as refused:  # each command line has errors of its own
        require_valid(Command(page="", text=text, is_whole=True))
    assert error in str(refused.value)


def test_the_page_is_the_rendering_of_the_recorded_figures() -> None:
    text = figures.PAGE.read_text()
    on_a_gpu = text.partition(BEGIN)[2].partition(END)[0]
    assert figures.page(figures.read(), on_a_gpu) == text, "run `python -m benchmarks.figures`"


def test_a_printed_table_replaces_the_rows_of_one_and_no_other() -> None:
    tables = figures.read()
    printed = "5 rounds\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    replaced = figures.replaced(tables, "Staleness", printed, "one core")
    changed = [new for old, new in zip(tables, replaced, strict=True) if old != new]
    assert [(table.title, table.columns, table.rows, table.machine) for table in changed] == [
        ("Staleness", ["a", "b"], [["1", "2"]], "one core")
    ]
    with pytest.raises(SystemExit, match="No table is called 'Stale'"):
        figures.replaced(tables, "Stale", printed, "one core")
