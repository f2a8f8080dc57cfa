"""Every command's help has examples that its own command line takes."""

import re

import click
import pytest
import typer
from tests.docs.commands import Command, commands_of, require_valid

from dagrpo.cli.application import app
from dagrpo.config.places import ROOT

COMMANDS: dict[str, click.Command] = {
    name: command
    for name, command in typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    if not command.hidden
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_an_example_of_it(name: str) -> None:
    assert re.match(rf"Examples?: `dagrpo {name}", COMMANDS[name].epilog or "")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_in_the_help_are_what_the_command_line_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for example in re.findall(r"`(dagrpo [^`]+)`", COMMANDS[name].epilog or ""):
        for text in commands_of(example):
            require_valid(Command(page=name, text=text, is_whole=True))
