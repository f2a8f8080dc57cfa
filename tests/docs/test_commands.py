"""Every command that a page shows is one that the real command line takes."""

import pytest
from tests.docs.commands import Command, commands, require_valid
from tests.docs.pages import ROOT

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
