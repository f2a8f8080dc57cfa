"""Count docstrings and comments in words that docs/glossary.md replaces."""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CEILING = 2  # may only fall: lower it after rewriting a file
HEAD_WORDS = 12  # of a module's docstring, without citations in parentheses
OPENING = re.compile(
    r"(What|Whether|Who|Whom|Whose|Which|How|Why|Where|When|Of|That|Those|These|This|Such|So|It|Its|As|On|In|By|From|For|"
    r"At|With|Without|After|Before|While|Until|Around|Inside|None|Nothing|Nobody|Told|Not|The same|All of them|Has|Have)(?![-\w])"
)
WORDS = re.compile(
    r"\b(is none|are none|(?i:so many|so much|whoever|somebody|nobody|anew|told|mends?|mended|of its own|of their own|hand-overs?|"
    r"handed over|goes on|go on from|taken over|takes over|is made of|no more than that))\b"
)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and fault of every docstring or comment that docs/glossary.md would word otherwise."""
    tree = ast.parse(source)
    head = ast.get_docstring(tree) or ""
    if len(re.sub(r"\([^)]*\)", "", head.split("\n\n")[0]).split()) > HEAD_WORDS:
        yield 1, f"a module's first paragraph has more than {HEAD_WORDS} words"
    for line, text in docstrings(tree):
        if opening := OPENING.match(text):
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
    """Print faults below `roots`, or their number per folder; return 1 where src and packages have more than CEILING."""
    found = [
        (path, line, fault)
        for root in roots or ["src", "packages"]
        for path in ([Path(root)] if root.endswith(".py") else sorted(Path(root).rglob("*.py")))
        if not {"tests", "build"} & set(path.parts)
        for line, fault in faults(path.read_text())
    ]
    if roots:
        print(*(f"{path}:{line}: {fault}" for path, line, fault in found), sep="\n")
        return 0
    if len(found) <= CEILING:
        return 0
    folders = Counter("/".join(path.parts[:3]) for path, _, _ in found)
    print(f"{len(found)} docstrings and comments are worded against docs/glossary.md; the ceiling is {CEILING}:")
    print(*(f"  {number:4} {folder}" for folder, number in folders.most_common()), sep="\n")
    print("`python tests/language.py PATH` lists them.")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
