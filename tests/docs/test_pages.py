"""Links of the pages lead somewhere, commands are taken, figures are recorded; the site loads nothing from elsewhere."""

import re
import subprocess
from importlib import import_module
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


PAGE = (ROOT / "docs/site/api.md").read_text()
PUBLIC = re.findall(r"^```\{public\} (\S+)$", PAGE, re.MULTILINE)
PYTHON = ROOT / ".venv-docs/bin/python"
FROM_ELSEWHERE = re.compile(
    r"""(?:src|srcset)=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)


@pytest.mark.parametrize("name", PUBLIC)
def test_what_the_page_names_is_described_and_defined_in_the_file_of_its_module(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    defined = import_module(module)
    assert getattr(defined, attribute).__doc__
    text = Path(str(defined.__file__)).read_text()
    assert re.search(rf"^(class|def|async def) {attribute}\b|^{attribute}\b.*=", text, re.MULTILINE)


def test_the_lock_of_the_site_agrees_with_that_of_the_project() -> None:
    """A page shows what a reader of the sources would run."""
    pinned = _pins("cpu.lock")
    assert {name: version for name, version in _pins("docs.lock").items() if pinned.get(name, version) != version} == {}


@pytest.mark.nightly
@pytest.mark.skipif(not PYTHON.exists(), reason="`make docs` makes its environment")
def test_the_site_is_made_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    places = ("-c", "docs/site", "-d", tmp_path / "trees", ".", tmp_path / "site")
    command = (PYTHON, "-m", "sphinx", "-q", "-W", *places)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    made = [path for path in (tmp_path / "site").rglob("*") if path.suffix in {".html", ".css"}]
    assert (tmp_path / "site/index.html").read_bytes() == (tmp_path / "site/README.html").read_bytes()
    assert [path.name for path in made if FROM_ELSEWHERE.search(path.read_text())] == []


def _pins(lock: str) -> dict[str, str]:
    found = re.findall(
        r"^([a-z0-9_.-]+)==([^\s;]+)", (ROOT / "requirements" / lock).read_text(), re.MULTILINE | re.IGNORECASE
    )
    return {name.lower().replace("_", "-"): version for name, version in found}
