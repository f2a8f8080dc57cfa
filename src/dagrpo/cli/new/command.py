"""`dagrpo new`: a working plug-in with its test, as a start."""

import keyword
import re
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.report.html import render_text
from dagrpo.utils.files import write_text

if TYPE_CHECKING:
    from dagrpo.core.plugins import Plugins

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
TEMPLATES = Path(__file__).parent / "templates"


class Kind(StrEnum):
    """A kind of plug-in to write."""

    TASK = "task"
    VERIFIER = "verifier"
    REWARD = "reward"
    LOSS = "loss"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The registry of a kind, and its folders in this repository."""

    registry: str  # module:NAME
    tests: str  # the folder of its tests
    docs: str  # the page that describes the kind
    selected_by: str  # template of what params.yaml, or a task, says
    attribute: str  # the plug-in's name in its module


PLACES = {
    Kind.TASK: Place(
        registry="dagrpo.data.task:TASKS",
        tests="tests/data/datasets",
        docs="docs/tasks.md",
        selected_by="experiment: {{train: {name}, evaluate: [{name}], tasks: [{name}]}}",
        attribute="TASK",
    ),
    Kind.VERIFIER: Place(
        registry="dagrpo.rewards.verifiers:VERIFIERS",
        tests="packages/dagrpo_answers/tests/verifiers",
        docs="docs/rewards.md",
        selected_by='reward: {{verifier: {name}}}, or a task with verifier="{name}"',
        attribute="VERIFIER",
    ),
    Kind.REWARD: Place(
        registry="dagrpo.rewards.components:COMPONENTS",
        tests="tests/rewards/components",
        docs="docs/rewards.md",
        selected_by='reward: {{components: {{accuracy: {{}}, "{name}": {{weight: 0.2}}}}}}',
        attribute="COMPONENT",
    ),
    Kind.LOSS: Place(
        registry="dagrpo.algorithms.losses:LOSSES",
        tests="tests/algorithms",
        docs="docs/algorithms.md",
        selected_by="algorithm: {{loss: {{name: {name}}}}}",
        attribute="LOSS",
    ),
    Kind.TOOL: Place(
        registry="dagrpo.tools:TOOLS",
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
    _require_name(name, kind)
    place = PLACES[kind]
    package_of_kind, _, attribute = place.registry.partition(":")
    registry: Plugins[Any] = getattr(import_module(package_of_kind), attribute)
    if name in registry.names():
        raise UserError(f"A {kind} `{name}` already exists: choose another name.")
    if package is None:
        folder, test, top, selected = _require_clone(registry.package), Path(place.tests), registry.package, name
    else:
        _require_name(package.name, "package")
        folder, test, top = package, package.parent / "tests", package.name
        selected = f"{top}.{name}{registry.separator}{place.attribute}"
    module, test = folder / f"{name}.py", test / f"test_{name}.py"
    _write(kind, name, f"{top}.{name}", module, test, inside=package is None)
    if package is None:
        generate = ["dagrpo generate"] if kind in {Kind.REWARD, Kind.LOSS, Kind.TOOL} else []
        steps = [f"pytest {test}", *generate, f"describe it in {place.docs}, and where a test lists its kind by name"]
    else:
        if not (package / "__init__.py").exists():
            write_text(package / "__init__.py", f'"""Plug-ins of {top} for dagrpo."""\n')
        root = package.parent.resolve()
        on_path = [] if root == Path("src").resolve() else [f"export PYTHONPATH={root}  # or install the package"]
        steps = [f"PYTHONPATH={root} pytest {test}", *on_path]
    typer.echo(f"Written: {module} and {test}.")
    typer.echo(f"Selected by: {place.selected_by.format(name=selected)}")
    typer.echo("\n    ".join(["Next:", *steps]))


def _require_clone(package: str) -> Path:
    top = package.partition(".")[0]
    folder = Path("src" if top == "dagrpo" else f"packages/{top}/src", *package.split("."))
    if not folder.is_dir():
        raise UserError(
            f"{Path.cwd()} is not the repository of dagrpo: name the folder of a package of yours with --package."
        )
    return folder


def _require_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UserError(
            f"{brief(name)} is not a valid name of a {what}: use lower-case letters, digits and _, a letter first."
        )


def _write(kind: Kind, name: str, import_path: str, module: Path, test: Path, *, inside: bool) -> None:
    for path in (module, test):
        if path.exists():
            raise UserError(f"{path} already exists: choose another name, or move the file away.")
    for path, template in ((module, f"{kind}.py.j2"), (test, f"test_{kind}.py.j2")):
        write_text(path, render_text(TEMPLATES / template, name=name, module=import_path, inside=inside))
