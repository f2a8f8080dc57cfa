"""`dagrpo new`: a working plug-in with its test, as a start."""

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.utils.files import write_text

if TYPE_CHECKING:
    from dagrpo.core.plugins import Plugins

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Kind(StrEnum):
    """A kind of plug-in to write."""

    TASK = "task"
    VERIFIER = "verifier"
    REWARD = "reward"
    LOSS = "loss"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folders of a kind in this repository."""

    package: str  # dotted, of the folder in which plug-ins are found
    tests: str  # the folder of its tests
    docs: str  # the page that describes the kind
    selected_by: str  # template of what params.yaml, or a task, says
    attribute: str  # the plug-in's name in its module


PLACES = {
    Kind.TASK: Place(
        package="dagrpo.data.datasets",
        tests="tests/data/datasets",
        docs="docs/tasks.md",
        selected_by="experiment: {{train: {name}, evaluate: [{name}], tasks: [{name}]}}",
        attribute="TASK",
    ),
    Kind.VERIFIER: Place(
        package="dagrpo_answers.verifiers",
        tests="packages/dagrpo_answers/tests/verifiers",
        docs="docs/rewards.md",
        selected_by='reward: {{verifier: {name}}}, or a task with verifier="{name}"',
        attribute="VERIFIER",
    ),
    Kind.REWARD: Place(
        package="dagrpo.rewards.components",
        tests="tests/rewards/components",
        docs="docs/rewards.md",
        selected_by='reward: {{components: {{accuracy: {{}}, "{name}": {{weight: 0.2}}}}}}',
        attribute="COMPONENT",
    ),
    Kind.LOSS: Place(
        package="dagrpo.algorithms.losses",
        tests="tests/algorithms",
        docs="docs/algorithms.md",
        selected_by="algorithm: {{loss: {{name: {name}}}}}",
        attribute="LOSS",
    ),
    Kind.TOOL: Place(
        package="dagrpo.tools",
        tests="tests/tools",
        docs="docs/tools.md",
        selected_by='a task with tools=("{name}",)',
        attribute="TOOL",
    ),
}


def new(
    kind: Annotated[Kind, typer.Argument(help="kind of plug-in")],
    name: Annotated[str, typer.Argument(help="name of the file, and of the plug-in in params.yaml")],
    package: Annotated[
        Path | None,
        typer.Option(
            help="folder of your own package, such as src/my_lab, with the test in `tests` beside it; by default this repository"
        ),
    ] = None,
) -> None:
    """Write a working task, verifier, reward component, loss or tool with its test, as a start."""
    plugin = write(kind, name, package)
    typer.echo(f"Written: {plugin.module} and {plugin.test}.")
    typer.echo(f"Selected by: {plugin.selected_by}")
    typer.echo("Next:")
    for step in plugin.steps:
        typer.echo(f"    {step}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPlugin:
    """The written files, and how to use the plug-in."""

    module: Path
    test: Path
    selected_by: str  # what params.yaml or a task says
    steps: tuple[str, ...]  # what to do next, a command or a sentence each


def write(kind: Kind, name: str, package: Path | None) -> NewPlugin:
    """Write a plug-in and its test. `package`: the folder of the user's own package; None: this repository.

    Raises UserError for an invalid or existing name, and for a missing folder.
    """
    _require_name(kind, name)
    return _write_here(kind, name) if package is None else _write_elsewhere(kind, name, package)


def _write_here(kind: Kind, name: str) -> NewPlugin:
    place = PLACES[kind]
    top = place.package.partition(".")[0]
    folder = Path("src" if top == "dagrpo" else f"packages/{top}/src", *place.package.split("."))
    if not folder.is_dir():
        raise UserError(
            f"{Path.cwd()} is not the repository of dagrpo: name the folder of a package of yours with --package."
        )
    module, test = folder / f"{name}.py", Path(place.tests, f"test_{name}.py")
    _write_both(
        kind, name, f"{place.package}.{name}", {module: f"{kind}.py.j2", test: f"test_{kind}.py.j2"}, inside=True
    )
    generate = ("dagrpo generate",) if kind in {Kind.REWARD, Kind.LOSS, Kind.TOOL} else ()
    steps = (f"pytest {test}", *generate, f"describe it in {place.docs}, and where a test lists its kind by name")
    return NewPlugin(module=module, test=test, selected_by=PLACES[kind].selected_by.format(name=name), steps=steps)


def _write_elsewhere(kind: Kind, name: str, package: Path) -> NewPlugin:
    top = package.name
    if not NAME.fullmatch(top) or keyword.iskeyword(top):
        raise UserError(
            f"--package {package}: {brief(top)} is not a valid package name: use lower-case letters, digits and _."
        )
    module, test = package / f"{name}.py", package.parent / "tests" / f"test_{name}.py"
    _write_both(kind, name, f"{top}.{name}", {module: f"{kind}.py.j2", test: f"test_{kind}.py.j2"}, inside=False)
    if not (package / "__init__.py").exists():
        write_text(package / "__init__.py", f'"""Plug-ins of {top} for dagrpo."""\n')
    separator = registry_of(kind).separator
    path = f"{top}.{name}{separator}{PLACES[kind].attribute}"
    root = package.parent.resolve()
    on_path = () if root == Path("src").resolve() else (f"export PYTHONPATH={root}  # or install the package",)
    steps = (f"PYTHONPATH={root} pytest {test}", *on_path)
    return NewPlugin(module=module, test=test, selected_by=PLACES[kind].selected_by.format(name=path), steps=steps)


def _write_both(kind: Kind, name: str, module: str, files: Mapping[Path, str], *, inside: bool) -> None:
    for path in files:
        if path.exists():
            raise UserError(f"{path} already exists: choose another name, or move the file away.")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Python, of a name that was checked
    )
    for path, template in files.items():
        write_text(path, environment.get_template(template).render(name=name, module=module, inside=inside))


def registry_of(kind: Kind) -> "Plugins[Any]":
    """Return the registry of a kind."""
    from dagrpo.algorithms.losses import LOSSES
    from dagrpo.data.task import TASKS
    from dagrpo.rewards.components import COMPONENTS
    from dagrpo.rewards.verifiers import VERIFIERS
    from dagrpo.tools import TOOLS

    registries: dict[Kind, Plugins[Any]] = {
        Kind.TASK: TASKS,
        Kind.VERIFIER: VERIFIERS,
        Kind.REWARD: COMPONENTS,
        Kind.LOSS: LOSSES,
        Kind.TOOL: TOOLS,
    }
    return registries[kind]


def _require_name(kind: Kind, name: str) -> None:
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UserError(
            f"{brief(name)} is not a valid name of a {kind}: use lower-case letters, digits and _, a letter first."
        )
    if name in registry_of(kind).names():
        raise UserError(f"A {kind} `{name}` already exists: choose another name.")
