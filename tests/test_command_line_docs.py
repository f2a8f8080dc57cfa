"""docs/command_line.md has every command, and every example in it or in the help is of commands and options that exist."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest
import typer

import dagrpo
from dagrpo.__main__ import app
from dagrpo.execution.identity import ROOT

DOCS = (ROOT / "docs/command_line.md").read_text()
COMMANDS: dict[str, click.Command] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
EXAMPLE = re.compile(r"`(dagrpo [^`]+)`|^ {4}(dagrpo .+)$", re.MULTILINE)


def examples() -> Iterator[str]:
    """Of the page and of every command's help."""
    for text in (DOCS, *(command.epilog or "" for command in COMMANDS.values())):
        yield from (indented or quoted for quoted, indented in EXAMPLE.findall(text))


def test_the_table_has_every_command_and_no_other() -> None:
    rows = [line.split("|")[1] for line in DOCS.splitlines() if line.startswith(("| `", "| [`"))]
    listed = [name for row in rows for name in re.findall(r"`([a-z]+)`", row) if not name.startswith("dagrpo")]
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_an_example_of_it(name: str) -> None:
    assert re.match(rf"Examples?: `dagrpo {name}", COMMANDS[name].epilog or "")


def test_every_example_is_of_a_command_and_of_options_that_exist() -> None:
    found = [shlex.split(example.partition("|")[0]) for example in examples()]
    assert len(found) > 2 * len(COMMANDS)
    for _, name, *words in found:
        if name.startswith("-") or name == "COMMAND":
            continue
        known = {option for parameter in COMMANDS[name].params for option in parameter.opts} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= known, name


def test_the_table_of_functions_is_what_the_package_offers() -> None:
    listed = re.findall(r"^\| `dagrpo\.(\w+)\(", DOCS, re.MULTILINE)
    assert sorted(listed) == sorted(dagrpo.__all__)
