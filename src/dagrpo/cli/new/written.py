"""Writes the two files, and says what to do with them."""

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dagrpo.algorithms.losses import LOSSES
from dagrpo.cli.new.kinds import PLACES, SELECTED_BY, Kind
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.core.plugins import Plugins
from dagrpo.data.registry import TASKS
from dagrpo.rewards.verifiers import VERIFIERS
from dagrpo.tools import TOOLS
from dagrpo.utils.files import write_text

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
KNOWN: Mapping[Kind, Plugins[Any]] = {
    Kind.TASK: TASKS,
    Kind.VERIFIER: VERIFIERS,
    Kind.LOSS: LOSSES,
    Kind.TOOL: TOOLS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The files that were written, and how to use the plug-in."""

    module: Path
    test: Path
    selected_by: str  # what params.yaml or a task says
    steps: tuple[str, ...]  # what to do next, a command or a sentence each


def write(kind: Kind, name: str, package: Path | None) -> Written:
    """Write a plug-in and its test. `package`: the folder of the user's own package; None: this repository.

    Raises UserError for an invalid or existing name, and for a missing folder.
    """
    _require_name(kind, name)
    return _write_here(kind, name) if package is None else _write_elsewhere(kind, name, package)


def _write_here(kind: Kind, name: str) -> Written:
    place = PLACES[kind]
    folder = Path("src", *place.package.split("."))
    if not folder.is_dir():
        raise UserError(
            f"{Path.cwd()} is not the repository of dagrpo: name the folder of a package of yours with --package."
        )
    module, test = folder / f"{name}.py", Path(place.tests, f"test_{name}.py")
    _write_both(
        kind, name, f"{place.package}.{name}", {module: f"{kind}.py.j2", test: f"test_{kind}.py.j2"}, inside=True
    )
    generate = ("dagrpo generate",) if kind in {Kind.LOSS, Kind.TOOL} else ()
    steps = (f"pytest {test}", *generate, f"describe it in {place.docs}, and where a test lists its kind by name")
    return Written(module=module, test=test, selected_by=SELECTED_BY[kind].format(name=name), steps=steps)


def _write_elsewhere(kind: Kind, name: str, package: Path) -> Written:
    top = package.name
    if not NAME.fullmatch(top) or keyword.iskeyword(top):
        raise UserError(
            f"--package {package}: {brief(top)} is no name of a package: use lower-case letters, digits and _."
        )
    module, test = package / f"{name}.py", package.parent / "tests" / f"test_{name}.py"
    _write_both(kind, name, f"{top}.{name}", {module: f"{kind}.py.j2", test: f"test_{kind}.py.j2"}, inside=False)
    if not (package / "__init__.py").exists():
        write_text(package / "__init__.py", f'"""Plug-ins of {top} for dagrpo."""\n')
    separator = KNOWN[kind].separator
    path = f"{top}.{name}{separator}{kind.upper()}"
    root = package.parent.resolve()
    steps = (f"PYTHONPATH={root} pytest {test}", f"export PYTHONPATH={root} where you run, or install the package")
    return Written(module=module, test=test, selected_by=SELECTED_BY[kind].format(name=path), steps=steps)


def _write_both(kind: Kind, name: str, module: str, files: Mapping[Path, str], *, inside: bool) -> None:
    for path in files:
        if path.exists():
            raise UserError(f"{path} is there already: take another name, or move it away.")
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


def _require_name(kind: Kind, name: str) -> None:
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UserError(f"{brief(name)} is no name of a {kind}: use lower-case letters, digits and _, a letter first.")
    if name in KNOWN[kind].names():
        raise UserError(f"There is a {kind} `{name}` already: take another name.")
