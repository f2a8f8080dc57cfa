"""Check the words of docstrings, comments, messages and pages, and that no checkpoint's code may run."""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

HEAD_WORDS = 12  # of a module's docstring, without citations in parentheses
OPENING = re.compile(
    r"(What|Whether|Who|Whom|Whose|Which|How|Why|Where|When|Of|That|Those|These|This|Such|So|It|Its|As|On|In|By|From|For|"
    r"At|With|Without|After|Before|While|Until|Around|Inside|None|Nothing|Nobody|Told|Not|The same|All of them|Has|Have)(?![-\w])"
)
WORDS = re.compile(
    r"\b(is none|are none|(?i:so many|so much|whoever|somebody|nobody|anew|told|mends?|mended|of its own|of their own|hand-overs?|"
    r"handed over|goes on|go on from|taken over|takes over|is made of|no more than that))\b"
)
DESCRIPTION = re.compile(r"(What|Whether|Who|Whom|Whose|Of|That|Those|So|As|None|Nothing|Nobody|The same)(?![-\w])")
PAGES = ("*.md", "packages/*/README.md", "docs/**/*.md", "examples/**/*.md")
LEFT_OUT = (
    "docs/parameters.md",
    "docs/glossary.md",
)  # generated from checked descriptions; names the words that it replaces
CODE = re.compile(r"^(```|~~~).*?^\1|^(?: {4}|\t).*?$|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
PAGE_WORDS = re.compile(r"\b(a try|tries|(?<!training\.)gates)\b")  # an override run, a check or filter
LOADERS = (
    "from_pretrained",
    "from_config",
    "pipeline",
)  # of transformers, which imports code beside a model if allowed
ARTICLE = re.compile(r"(The|A|An|One|Every|Each|All|Some)(?! [=~])\b(?![-_])")


def _is_function(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any("property" in ast.unparse(each) for each in node.decorator_list)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of every docstring, and whether it is of a function that is not a property."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text, _is_function(node)


def _text(node: ast.expr) -> str:
    """Return the text of a string or f-string, its values left out; "" for any other expression."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def texts_for_users(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of the descriptions of parameters and of the messages of UserError."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            if keyword.arg == "description":
                yield node.lineno, "description", _text(keyword.value)
        if isinstance(node.func, ast.Name) and node.func.id == "UserError" and node.args:
            yield node.lineno, "message", _text(node.args[0])


def calls_that_may_run_code(tree: ast.Module) -> Iterator[int]:
    """Yield the line of every call of transformers that does not say `trust_remote_code=False` itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOADERS:
            given = [keyword.value for keyword in node.keywords if keyword.arg == "trust_remote_code"]
            if [ast.unparse(value) for value in given] != ["False"]:
                yield node.lineno


def faults_of_page(markdown: str) -> Iterator[tuple[int, str]]:
    """Yield line and fault of the prose of a page; code and addresses are left out."""
    prose = CODE.sub(lambda match: re.sub(r"[^\n]", "", match.group()), markdown)
    for line, text in enumerate(prose.splitlines(), 1):
        for word in (*WORDS.finditer(text), *PAGE_WORDS.finditer(text)):
            yield line, f"{word.group()!r} on a page"


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and fault of every docstring or comment worded otherwise, and of calls that may run a checkpoint's code."""
    tree = ast.parse(source)
    head = ast.get_docstring(tree) or ""
    if len(re.sub(r"\([^)]*\)", "", head.split("\n\n")[0]).split()) > HEAD_WORDS:
        yield 1, f"a module's first paragraph has more than {HEAD_WORDS} words"
    for line, text, is_function in docstrings(tree):
        opening = OPENING.match(text) or (ARTICLE.match(text) if is_function else None)
        if opening:
            yield (
                line,
                f"a docstring opens with {opening.group()!r}: begin with its verb, or with the noun it describes",
            )
        for word in WORDS.finditer(text):
            yield line, f"{word.group()!r} in a docstring"
    for line, kind, text in texts_for_users(tree):
        opening = DESCRIPTION.match(text) if kind == "description" else None
        if opening:
            yield line, f"a description opens with {opening.group()!r}: begin with the noun or the effect"
        for word in WORDS.finditer(text):
            yield line, f"{word.group()!r} in a {kind}"
    for line in calls_that_may_run_code(tree):
        yield line, "a call that may run a checkpoint's code: give it trust_remote_code=False"
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for word in WORDS.finditer(token.string):
                yield token.start[0], f"{word.group()!r} in a comment"


def main(roots: list[str]) -> int:
    """Print every fault in the Python files below `roots`, tests apart, and in the pages; return 1 if there is any."""
    modules = [
        path for root in roots for path in sorted(Path(root).rglob("*.py")) if not {"tests", "build"} & set(path.parts)
    ]
    pages = [path for pattern in PAGES for path in sorted(Path().glob(pattern)) if str(path) not in LEFT_OUT]
    found = [f"{path}:{line}: {fault}" for path in modules for line, fault in faults(path.read_text())]
    found += [f"{path}:{line}: {fault}" for path in pages for line, fault in faults_of_page(path.read_text())]
    print("\n".join(found) or f"{len(modules)} modules and {len(pages)} pages are worded as in docs/glossary.md.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["src", "packages"]))
