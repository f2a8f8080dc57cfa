"""The directive `public`: a function or a class as its source says it, with docstrings, and the comments beside fields.

Nothing is imported: the site is made without torch. It is not Sphinx's autodoc, which does not know those comments.
"""

import ast
import io
import json
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]
Function = ast.FunctionDef | ast.AsyncFunctionDef
MEMBER, WHOLE = 3, 4  # lengths of a fence: that of a class is longer than those of its members


class Source:
    """A module's text, and its comments by line."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.body = ast.parse(text).body
        self._beside: dict[int, str] = {}
        self._alone: dict[int, str] = {}
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                is_alone = not token.line[: token.start[1]].strip()
                comment = token.string.removeprefix("#").strip()
                (self._alone if is_alone else self._beside)[token.start[0]] = comment

    def find(self, name: str) -> ast.stmt:
        """The definition at the top of the module. LookupError: there is none."""
        for statement in self.body:
            if isinstance(statement, Function | ast.ClassDef) and statement.name == name:
                return statement
        raise LookupError(name)

    def meaning(self, field: ast.AnnAssign) -> str:
        """What is said of a field: its description, else the comment above it and the one at its end."""
        for keyword in getattr(field.value, "keywords", ()):
            if keyword.arg == "description":
                return str(ast.literal_eval(keyword.value))
        above: list[str] = []
        line = field.lineno - 1
        while line in self._alone:
            above.insert(0, self._alone[line])
            line -= 1
        return " ".join(filter(None, [*above, self._beside.get(field.end_lineno or 0, "")]))


def page_of(source: Source, name: str, shown_as: str) -> str:
    """A definition as MyST Markdown for Sphinx's Python domain."""
    module, _, short = shown_as.rpartition(".")
    statement = source.find(name)
    if isinstance(statement, ast.ClassDef):
        said = ast.get_docstring(statement) or ""
        return _block("py:class", short, f"{said}\n\n" + "\n\n".join(_members(source, statement)), WHOLE, module=module)
    assert isinstance(statement, Function)
    return _function("py:function", statement, short, WHOLE, module=module)


def _members(source: Source, of: ast.ClassDef) -> Iterator[str]:
    for member in of.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            if not member.target.id.startswith("_"):
                yield _field(source, member, member.target.id)
        elif isinstance(member, Function) and not member.name.startswith("_"):
            decorators = [ast.unparse(each) for each in member.decorator_list]
            if "property" in decorators:
                kind = ast.unparse(member.returns) if member.returns else ""
                yield _block("py:property", member.name, ast.get_docstring(member) or "", MEMBER, type=kind)
            else:
                yield _function("py:method", member, member.name, MEMBER)


def _field(source: Source, field: ast.AnnAssign, name: str) -> str:
    default = field.value
    if isinstance(default, ast.Call) and ast.unparse(default.func) == "Field":
        default = default.args[0] if default.args else None
    value = {"value": ast.unparse(default)} if default is not None else {}
    kind = ast.unparse(field.annotation).removeprefix("'").removesuffix("'")
    return _block("py:attribute", name, source.meaning(field), MEMBER, type=kind, **value)


def _function(directive: str, function: Function, name: str, fence: int, **options: str) -> str:
    arguments = ast.unparse(function.args).removeprefix("self, ").removeprefix("self")
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    if isinstance(function, ast.AsyncFunctionDef):
        options["async"] = ""
    said = ast.get_docstring(function) or ""
    return _block(directive, f"{name}({arguments}){result}", said, fence, **options)


def _block(directive: str, argument: str, content: str, fence: int, **options: str) -> str:
    marks = "`" * fence
    lines = [f"{marks}{{{directive}}} {argument}", *(f":{key}: {json.dumps(value)}" for key, value in options.items())]
    if fence == MEMBER:
        lines.append(":no-contents-entry:")
    return "\n".join([*lines, "", content, marks])


class Public(SphinxDirective):  # type: ignore[misc]  # Sphinx is not in .venv
    """`{public} dagrpo.tools.Tool`; with `:as:` the name by which it is offered."""

    required_arguments = 1
    option_spec: ClassVar = {"as": str}

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        folder = ROOT / "src" if module.startswith("dagrpo.") else ROOT / "packages" / module.partition(".")[0] / "src"
        path = folder.joinpath(*module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        self.env.note_dependency(str(file))
        try:
            text = page_of(Source(file), name, self.options.get("as", self.arguments[0]))
        except (OSError, LookupError) as error:
            raise self.error(f"{self.arguments[0]} is not defined in {file}") from error
        holder: Any = nodes.Element()
        self.state.nested_parse(StringList(text.splitlines(), str(file)), self.content_offset, holder)
        children: list[nodes.Node] = holder.children
        return children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("public", Public)
    return {"parallel_read_safe": True}
