"""The commands that pages show, and whether the real command lines would take them.

A command in a sentence may be a part of one (`dagrpo show`); one in a block has to be whole. CHANGES.md is left out: it names
commands of earlier versions.
"""

import importlib.util
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml
from tests.docs.pages import PAGES, ROOT, lines_of_code, name_of

from dagrpo.cli.application import app
from dagrpo.config.overlay import with_overrides
from dagrpo.config.presets import composed
from dagrpo.config.schema import parse
from dagrpo.config.sweeps import read_sweep
from dagrpo.data.task import get_task
from dagrpo.pipeline.validation import require_fitting_tasks

PLACEHOLDER = re.compile(r"[A-Z_]+|NAME=VALUE|.*\.\.\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, without its comment."""

    page: str
    text: str
    is_whole: bool  # in a block of code

    @property
    def words(self) -> list[str]:
        """As a shell takes them. Of a synopsis, such as `[--to hf|dcp]`, what may be left out is there, the first of several."""
        plain = self.text.replace("[", "").replace("]", "") if re.search(r" \[--", self.text) else self.text
        return [word.split("|")[0] for word in shlex.split(plain)]


sys.path.insert(0, str(ROOT / "examples/own_task"))  # its page has it on PYTHONPATH


def commands() -> Iterator[Command]:
    """Of all pages, in order."""
    for page in PAGES:
        if name_of(page) != "CHANGES.md":
            yield from _of(page)


def _of(page: Path) -> Iterator[Command]:
    for line in lines_of_code(page):
        for text in commands_of(line.text):
            yield Command(page=line.page, text=text, is_whole=not line.is_inline)


def commands_of(line: str) -> Iterator[str]:
    """Those of our programs in a line of a shell, which may have several and end in a comment."""
    for part in re.split(r" && | \| | ; ", re.split(r"\s+# ", line)[0]):
        if part.strip().split(" ")[0] in CHECKS:
            yield part.strip()


def require_valid(command: Command) -> None:
    """AssertionError, or the error of the command line that would refuse it."""
    program, *arguments = command.words
    if arguments:
        CHECKS[program](arguments, command.is_whole)


def _dagrpo(arguments: list[str], is_whole: bool) -> None:
    name, *rest = arguments
    group: Any = typer.main.get_command(app)
    if name.startswith("-") or name == "COMMAND":
        assert name in {"--help", "--version", "--install-completion", "COMMAND"}, name
        return
    assert name in group.commands, f"there is no `dagrpo {name}`"
    if is_whole or hasattr(group.commands[name], "commands"):
        group.commands[name].make_context(name, list(rest)).close()
    else:
        known = {option for parameter in group.commands[name].params for option in parameter.opts} | {"--help"}
        assert {word for word in rest if word.startswith("--")} <= known, f"dagrpo {name} has the options {known}"
    if name in MEANT:
        MEANT[name]([word for word in rest if not word.startswith("-") and not PLACEHOLDER.fullmatch(word)])


def _presets_fit(names: list[str]) -> None:
    if names:
        require_fitting_tasks(composed(names))


def _task_is_known(arguments: list[str]) -> None:
    for task in arguments[:1]:
        get_task(task)


MEANT: dict[str, Callable[[list[str]], None]] = {"use": _presets_fit, "grade": _task_is_known}


def _snakemake(arguments: list[str], is_whole: bool) -> None:
    given = _snakemakes_parser().parse_args(arguments)
    assert set(given.targets) <= _rules(), f"no rule is called {given.targets}"
    config = {key: value for item in given.config or () for key, _, value in [item.partition("=")]}
    config.pop("params", None)  # a file that no page has
    if sweep := config.pop("sweep", None):
        read_sweep(sweep)
    _require_parameters(config)


def _dvc(arguments: list[str], is_whole: bool) -> None:
    from dvc.cli.parser import get_main_parser

    lacks_a_value = not is_whole and arguments[-1] == "-S"
    given = get_main_parser().parse_args([*arguments, *(["training.steps=1"] if lacks_a_value else [])])
    overrides = (item.partition("=") for item in getattr(given, "set_param", None) or ())
    _require_parameters({key.replace(".", "__"): value for key, _, value in overrides})


def _make(arguments: list[str], is_whole: bool) -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    asked = {argument for argument in arguments if "=" not in argument}  # the others set a variable
    assert asked <= set(targets[1].split()), f"make has the targets {targets[1]}"


def _python(arguments: list[str], is_whole: bool) -> None:
    if "-c" in arguments:
        return
    if arguments[0] == "-m":
        found = importlib.util.find_spec(arguments[1])
        assert found is not None
        assert found.origin is not None
        script = Path(found.origin)
        scripts = script.parent.glob("*.py") if found.submodule_search_locations else [script]
    else:
        script = ROOT / arguments[0]
        scripts = [script]
    text = "\n".join(each.read_text() for each in scripts)
    for option in (word for word in arguments if word.startswith("--")):
        assert option in text or f"{option[2:].replace('-', '_')}:" in text, f"{script} has no {option}"


def _require_parameters(overrides: dict[str, str]) -> None:
    parse(with_overrides(yaml.safe_load((ROOT / "params.yaml").read_text()) | overrides))


@cache
def _snakemakes_parser() -> Any:
    from snakemake.cli import get_argument_parser

    return get_argument_parser()


@cache
def _rules() -> set[str]:
    files = [ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk")]
    return {name for file in files for name in re.findall(r"^rule (\w+):", file.read_text(), re.MULTILINE)}


CHECKS: dict[str, Callable[[list[str], bool], None]] = {
    "dagrpo": _dagrpo,
    "snakemake": _snakemake,
    "dvc": _dvc,
    "make": _make,
    "python": _python,
}
