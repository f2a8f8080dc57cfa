"""Code that a stage's result depends on: imports and selected plug-ins.

An edit to one of those files runs the stage again; an edit to anything else does not, nor does one that cannot change a result:
to comments and layout, and in this project's own code also to docstrings and to annotations of functions. Imports are read
from the source (ast), inside functions too but not those for type checkers alone, and nothing is imported for it. Plug-ins
are found by name while a stage runs, so no import leads to them: they count only if the parameters name them. A template or
script beside a file that spells its name is code, too. Of libraries, this project's packages count as code, and those in
LIBRARIES by version.
"""

import ast
import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from dagrpo.config.places import PACKAGES, name_of, place_of
from dagrpo.core.errors import UserError
from dagrpo.utils.environment import version_of
from dagrpo.utils.files import digest_of, sha256_of, write_json

# Imported by stages, but unable to change an output: code that starts, shows, records or finds.
WITHOUT_EFFECT = (
    "dagrpo.api",
    "dagrpo.core.plugins",
    "dagrpo.engine.config",
    "dagrpo.pipeline",
    "dagrpo.trainer.config.engines",
    "dagrpo.trainer.config.objective",
    "dagrpo.trainer.config.runtime",
    "dagrpo.utils.console",
    "dagrpo.utils.devices",
    "dagrpo.utils.environment",
    "dagrpo.utils.failures",
    "dagrpo.utils.locks",
    "dagrpo.utils.machine",
    "dagrpo.utils.run_info",
    "dagrpo.utils.watchdog",
)
# Distributions whose versions decide results, by the module that a stage imports. Without torch and numpy, of which the locks for CPUs
# and for GPUs have different versions: results of a GPU stay valid on a laptop. A cache hit needs the same torch, too.
LIBRARIES = {
    "PIL": ("pillow",),
    "bm25s": ("bm25s",),
    "datasets": ("datasets",),
    "gguf": ("gguf",),
    "jinja2": ("jinja2",),
    "jsonschema": ("jsonschema",),
    "math_verify": ("antlr4-python3-runtime", "latex2sympy2-extended", "math-verify", "sympy"),
    "matplotlib": ("matplotlib",),
    "mcp": ("mcp",),
    "peft": ("peft",),
    "pyarrow": ("pyarrow",),
    "reasoning_gym": ("reasoning-gym",),
    "regex": ("regex",),
    "renderers": ("renderers",),
    "safetensors": ("safetensors",),
    "scipy": ("scipy",),
    "sglang": ("sglang",),
    "sympy": ("sympy",),
    "tokenizers": ("tokenizers",),
    "transformers": ("jinja2", "safetensors", "tokenizers", "transformers"),
}
LIBRARY = "library "  # before the name of a distribution in a list of code
# Imports and digests of each file, written here: to parse all of them would take seconds of every start.
PARSED = Path(".state/imports.json")
# Starts of the names of this project's files, whose docstrings nothing reads; a user's may be a tool's description.
_OWN = ("src/dagrpo/", *(f"packages/{package}/" for package in PACKAGES))
STAGES = "dagrpo.pipeline.stages"  # the one part of these whose code is a stage's own
# A text with the name of such a file, and nothing else.
_NAMED_BESIDE = re.compile(r"""["']([\w-][\w.-]*\.(?:j2|js|yaml|py))["']""")
_NAMED_MODULE = re.compile(r"""["'](dagrpo\w*(?:\.\w+)+)["']""")  # such as what python -m runs
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NEVER_RUNS = ("TYPE_CHECKING", "typing.TYPE_CHECKING")  # conditions whose body is for type checkers
_OF_STATEMENTS = ("body", "orelse", "handlers", "finalbody", "cases")  # the fields of a node that hold statements


def code_of(start: str, plugins: Iterable[str] = (), files: Iterable[Path] = ()) -> list[str]:
    """List the files of a stage whose module is `start`, and the libraries that they import, such as "library sympy": sorted names.

    `plugins` are the modules that the parameters select; the stage includes what they import from their own packages. A name that
    ends in .* selects all modules of a package. `files` are code other than modules.
    """
    return sorted({*_modules_of(start, tuple(plugins)), *map(_name, files)})


@cache
def _modules_of(start: str, plugins: tuple[str, ...]) -> frozenset[str]:
    with _remembering():
        files, libraries = _files((start, *plugins))
        return frozenset({*map(_name, files), *(f"{LIBRARY}{name}" for name in libraries)})


@contextmanager
def _remembering() -> Iterator[None]:
    """Write what is parsed inside the block to PARSED."""
    parsed = _parsed_before()
    before = dict(parsed)
    yield
    if parsed != before:
        with suppress(OSError, UserError):  # a folder that cannot be written costs time alone
            write_json(PARSED, {"parser": sha256_of(Path(__file__)), "modules": parsed})


def code_digest(files: Iterable[str]) -> str:
    """Return one digest of `code_digests`."""
    return digest_of(code_digests(files))


def code_digests(files: Iterable[str]) -> dict[str, str]:
    """Return the digest of each file of code that is here, and the version of each installed library.

    A version's local part, such as +cpu, does not count.
    """
    names = list(files)
    libraries = {name: version_of(name.removeprefix(LIBRARY)) for name in names if name.startswith(LIBRARY)}
    with _remembering():
        digests = {name: _digest(name) for name in names if name not in libraries and place_of(name).is_file()}
    return digests | {name: version.partition("+")[0] for name, version in libraries.items() if version}


def _digest(file: str) -> str:
    content, parsed = place_of(file).read_bytes(), _parsed_before()
    digest = hashlib.sha256(content).hexdigest()
    if parsed.get(file, {}).get("digest") != digest:
        parsed[file] = {"digest": digest, "code": digest_of_code(file, content)}
    return str(parsed[file]["code"])


def digest_of_code(file: str, content: bytes) -> str:
    """Return the sha256 of what a file's content means: of Python its syntax tree; of other content its bytes."""
    if file.endswith(".py"):
        with suppress(SyntaxError, ValueError):
            content = _text(ast.parse(content), own=file.startswith(_OWN)).encode()
    return hashlib.sha256(content).hexdigest()


def _text(tree: ast.AST, *, own: bool) -> str:
    """Return a syntax tree as text without positions, the same with every version of Python that has these nodes."""
    written: list[str] = []
    waiting: list[Any] = [tree]
    while waiting:  # no recursion: a chain of elif is as deep as it is long
        node = waiting.pop()
        if isinstance(node, _Mark):
            written.append(node)
        elif isinstance(node, list):
            waiting += [_Mark("]"), *reversed(node), _Mark("[")]
        elif isinstance(node, ast.AST):
            waiting.append(_Mark(")"))
            for name, value in reversed(_fields(node, own=own)):
                waiting += [value, _Mark(f"{name}=")]
            waiting.append(_Mark(f"{type(node).__name__}("))
        else:
            written.append(f"{node!r},")
    return "".join(written)


class _Mark(str):
    """A piece of the text of a tree, which is no constant of it."""

    __slots__ = ()


def _fields(node: ast.AST, *, own: bool) -> list[tuple[str, Any]]:
    """Return the fields of a node with their values, without those that are empty or, in our own code, read by nothing."""
    fields: dict[str, Any] = {name: getattr(node, name, None) for name in node._fields}
    if own and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        del fields["returns"]
    if own and isinstance(node, ast.arg):  # the types of a class's fields are read
        del fields["annotation"]
    if own and isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = fields["body"][1:]
    return [(name, value) for name, value in fields.items() if value is not None and value != []]


def _files(starts: tuple[str, ...]) -> tuple[set[Path], set[str]]:
    """Return the files that the modules reach, and the libraries in LIBRARIES that these import."""
    packages = {*PACKAGES, *(start.partition(".")[0] for start in starts)}
    waiting = [parent for start in starts for name in _modules(start) for parent in _with_parents(name)]
    files, libraries = set[Path](), set[str]()
    while waiting:
        module = waiting.pop()
        file = _file_of(module)
        hidden = any(f"{module}.".startswith(f"{name}.") for name in WITHOUT_EFFECT)
        if file is None or file in files or (hidden and not f"{module}.".startswith(f"{STAGES}.")):
            continue
        files.add(file)
        files |= _beside(file)
        imports = _imports(file, module)
        waiting += [name for name in imports if name.partition(".")[0] in packages]
        libraries.update(*(LIBRARIES.get(name, ()) for name in imports))
    return files, libraries


def _modules(start: str) -> list[str]:
    """Return a start's own name, or those of all modules of the package before its .*; none if that is not installed."""
    package, _, rest = start.rpartition(".")
    if rest != "*":
        return [start]
    folder = _folder_of(package)
    if folder is None:
        return []
    names = sorted(file.relative_to(folder).with_suffix("").parts for file in folder.rglob("*.py"))
    return [".".join((package, *parts)).removesuffix(".__init__") for parts in names]


def _beside(file: Path) -> set[Path]:
    """Return the templates and scripts beside a file that it names, and those that these name."""
    found, waiting = set[Path](), [file]
    while waiting:
        new = set(_named_beside(waiting.pop())) - found
        found |= new
        waiting += new
    return found


@cache
def _named_beside(file: Path) -> tuple[Path, ...]:
    names = _NAMED_BESIDE.findall(file.read_text(encoding="utf-8", errors="replace"))
    return tuple(place for place in map(file.with_name, sorted(set(names))) if place.is_file())


@cache
def _imports(file: Path, module: str) -> tuple[str, ...]:
    """List every module that a file may import, parent packages included; a name other than a module's has no file."""
    digest, parsed = sha256_of(file), _parsed_before()
    if parsed.get(module, {}).get("digest") != digest:
        named = sorted(set(_NAMED_MODULE.findall(file.read_text(encoding="utf-8", errors="replace"))))
        parsed[module] = {"digest": digest, "imports": sorted(set(_imported_by(file, module))), "named": named}
    places = {name: _file_of(name) for name in parsed[module]["named"]}  # a package is named for its registry alone
    started = [name for name, place in places.items() if place is not None and place.name != "__init__.py"]
    return (*parsed[module]["imports"], *(parent for name in started for parent in _with_parents(name)))


@cache
def _parsed_before() -> dict[str, dict[str, Any]]:
    """Return what PARSED holds: {module: {"digest": of its file, "imports": modules}}; nothing if it is missing, damaged, or of other
    rules than those of this file, which find other imports.
    """
    with suppress(OSError, ValueError):
        known = json.loads(PARSED.read_bytes())
        return dict(known["modules"]) if known.get("parser") == sha256_of(Path(__file__)) else {}
    return {}


def _imported_by(file: Path, module: str) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not Python ({error}): correct it.") from None
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in _statements(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        yield from (parent for name in names for parent in _with_parents(name))


def _statements(outer: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement that may run, at any depth. No expression holds one, and expressions are most of a file."""
    waiting = [outer]
    while waiting:  # no recursion: a chain of elif is as deep as it is long
        around = waiting.pop()
        for field in _OF_STATEMENTS:
            if field == "body" and isinstance(around, ast.If) and ast.unparse(around.test) in _NEVER_RUNS:
                continue
            inner = getattr(around, field, ())
            yield from inner
            waiting += inner


def _with_parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[: end + 1]) for end in range(len(parts)))


@cache
def _file_of(module: str) -> Path | None:
    """Return a module's source file below the folder of its top package; None if it is not a module."""
    top, _, rest = module.partition(".")
    folder = _folder_of(top)
    if folder is None:
        return None
    path = folder.joinpath(*rest.split(".")) if rest else folder
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@cache
def _folder_of(top: str) -> Path | None:
    """Return the folder of a package, or the one that a single-file module would have."""
    spec = None if top == "__main__" else importlib.util.find_spec(top)
    if spec is not None and spec.origin is None and spec.submodule_search_locations:  # a folder without __init__.py
        return Path(next(iter(spec.submodule_search_locations)))
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin.with_suffix("")


_name = cache(name_of)
