"""unit_tests: a program in a fenced block that passes its tests.

Nothing is compared in this process but texts and numbers (unit_tests/running.py).
"""

from dagrpo_answers.unit_tests.pool import SandboxedTests
from dagrpo_answers.unit_tests.tests_of_row import read_tests
from dagrpo_answers.verifier import Extractor, Verifier

FENCE = "```"


def extract(text: str, extractor: Extractor) -> str | None:
    """strict: the last block of a text that begins and ends with a fence of three backticks.

    flexible: that, else the block that has no end, else the whole text; one that continues a function ends before the first line that is
    not indented. exact: the only block.
    """
    closed, opened = _blocks(text)
    if extractor == "exact":
        return closed[0] if len(closed) == 1 and opened is None else None
    if closed or extractor == "strict":
        return closed[-1] if closed else None
    program = _continuation(text) if opened is None else opened
    return program if program.strip() else None


def _blocks(text: str) -> tuple[list[str], str | None]:
    """Return the blocks between fences that are not empty, and the one that has no end."""
    closed: list[str] = []
    lines: list[str] | None = None
    for line in text.splitlines(keepends=True):
        mark = line.strip()
        if lines is not None and mark == FENCE:
            program = "".join(lines)
            closed += [program] if program.strip() else []
            lines = None
        elif mark.startswith(FENCE) and FENCE not in mark[3:]:
            lines = []
        elif lines is not None:
            lines.append(line)
    return closed, None if lines is None else "".join(lines)


def _continuation(text: str) -> str:
    """Return the indented beginning of a text that begins indented, else all of it."""
    lines = text.splitlines(keepends=True)
    first = next((line for line in lines if line.strip()), "")
    if first[:1] not in (" ", "\t"):
        return text
    end = next((number for number, line in enumerate(lines) if line.strip() and line[0] not in " \t"), len(lines))
    return "".join(lines[:end])


def equal(answer: str, ground_truth: str) -> bool | None:
    """Return None: only tests can tell."""
    return None


def formatted(text: str) -> bool:
    """Return True if there is exactly one block, with an end."""
    return extract(text, "exact") is not None


def check(ground_truth: str) -> None:
    """Raise UserError if a ground truth states no tests."""
    read_tests(ground_truth)


VERIFIER = Verifier(
    name="unit_tests",
    extract=extract,
    equal=equal,
    formatted=formatted,
    check=check,
    tests=SandboxedTests,
)
