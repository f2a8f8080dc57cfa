"""Check that docstrings and comments are worded as in docs/glossary.md."""

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


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and fault of every docstring or comment that docs/glossary.md would word otherwise."""
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
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for word in WORDS.finditer(token.string):
                yield token.start[0], f"{word.group()!r} in a comment"


def main(roots: list[str]) -> int:
    """Print every fault in the Python files below `roots`, tests apart, and return 1 if there is any."""
    paths = [path for root in roots for path in sorted(Path(root).rglob("*.py"))]
    found = [
        f"{path}:{line}: {fault}"
        for path in paths
        if not {"tests", "build"} & set(path.parts)
        for line, fault in faults(path.read_text())
    ]
    print("\n".join(found) or f"{len(paths)} files are worded as in docs/glossary.md.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["src", "packages"]))
