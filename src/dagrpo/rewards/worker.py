r"""The worker process of pool.py, which compares answers with math-verify.

python -P -m dagrpo.rewards.worker MEMORY_BYTES

One JSON line in, one out: `{"answer": "\\frac{2}{4}", "ground_truth": "\\frac{1}{2}", "seconds": 2.0}` -> `{"verdict": "right"}`;
an answer of null asks only whether the ground truth can be read, and with `"published": true` the answer is a whole text, which the
library reads by its own defaults. The process ends when its input does, and the kernel
ends it after somewhat more than a line's `seconds` (the parent is to end it first), so that it never outlives a killed
parent. pool.py restarts it.
"""

import json
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TextIO

from math_verify import LatexExtractionConfig, parse, verify
from math_verify.parser import normalize_latex, parse_latex_cached
from sympy import And, Eq, Expr, Float, Symbol
from sympy.core.function import AppliedUndef

from dagrpo.rewards.worker_process import Comparison

GRACE_SECONDS = 1.0
STACK_BYTES = 256 << 20
EXACT_DIGITS = 50  # after which two numbers are one
DEEPEST_RECURSION = 50_000  # beyond it the stack ends, and the process with it
WARM_UP = (
    r"\frac{1}{2}",
    "34",
    r"2\sqrt{3}",
    "(1,2)",
    r"\{1,2\}",
    r"90^\circ",
    r"\text{(A)}",
    "x^2+2x",
    "x=3",
    "2^{10}",
    "1/2",
)
# Names are no units to dagrpo (`\\pi h` is not `\\pi`), and units are read before.
_NORMALIZATION = replace(LatexExtractionConfig().normalization_config, units=False)


def main() -> None:
    """Answer lines until there are no more."""
    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    replies = _private_stdout()
    sys.setrecursionlimit(DEEPEST_RECURSION)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(replies, memory))
    thread.start()
    thread.join()


def _private_stdout() -> TextIO:
    """Return the stream for replies, and redirect stdout, where libraries print, to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _serve(replies: TextIO, memory: int) -> None:
    for answer in WARM_UP:
        _compare(answer, answer)
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_SECONDS)
        reply = _reply(request, memory)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), file=replies, flush=True)


def _reply(request: dict[str, Any], memory: int) -> dict[str, str]:
    """Return the verdict. math-verify takes an allocation that failed for two different values, so one that came near ends here."""
    try:
        judge = _published if request["published"] else _judge
        verdict = judge(request["answer"], request["ground_truth"])
    except (MemoryError, RecursionError):
        os._exit(1)
    if _peak_bytes() > memory // 2:
        os._exit(1)
    return {"verdict": verdict}


def _published(text: str, ground_truth: str) -> str:
    """Return the library's verdict on a whole text; its time limits are off, since they need the main thread."""
    gold, target = (parse(each, parsing_timeout=None) for each in (f"\\boxed{{{ground_truth}}}", text))
    return "right" if verify(gold, target, timeout_seconds=None) else "wrong"


def _judge(answer: str | None, ground_truth: str) -> str:
    gold = _parse(ground_truth)
    if not gold:
        return "no_ground_truth"
    if answer is None:
        return "right"
    return "right" if _compare(answer, ground_truth) else "wrong"


def _compare(answer: str, ground_truth: str) -> bool:
    gold, target = _parse(ground_truth), _parse(answer)
    equations = [equation for each in target for equation in _equations(each)]
    if not any(map(_equations, gold)) and any(map(_contradicts_itself, equations)):
        return False  # math-verify takes the last side alone
    if Comparison(answer=answer, ground_truth=ground_truth).endless:
        return _verified(gold, target) and not _differ_in_some_digit(gold, target)
    # Digits first: math-verify takes some ten times as long to simplify the difference of two exact numbers.
    return not _differ_in_some_digit(gold, target) and _verified(gold, target)


def _verified(gold: Sequence[Any], target: Sequence[Any]) -> bool:
    return bool(verify(list(gold), list(target), timeout_seconds=None, allow_set_relation_comp=True))


def _differ_in_some_digit(gold: Sequence[Any], target: Sequence[Any]) -> bool:
    r"""Return True if two exact numbers differ, as `\sqrt{2}` and `\sqrt{2}+10^{-20}` do: math-verify compares their first digits."""
    if len(gold) != 1 or len(target) != 1 or not all(map(_is_exact, (gold[0], target[0]))):
        return False
    first, second = (each.evalf(EXACT_DIGITS) for each in (gold[0], target[0]))
    return bool(abs(first - second) > max(abs(first), 1) * 10.0 ** (2 - EXACT_DIGITS))


def _is_exact(expression: Any) -> bool:
    return (
        isinstance(expression, Expr)
        and bool(expression.is_number and expression.is_finite)
        and not expression.has(Float)
    )


def _equations(expression: Any) -> list[Any]:
    """Return an equation, or those of a chain of them; none for anything else."""
    each = expression.args if isinstance(expression, And) else [expression]
    return list(each) if all(isinstance(part, Eq) for part in each) else []


def _contradicts_itself(equation: Any) -> bool:
    r"""Return True if two sides in the same names differ, as in `\sqrt{2} = \sqrt{3}`; `y = 2x` gives `2x` a name."""
    left, right = equation.lhs, equation.rhs
    if isinstance(left, Symbol) or not hasattr(left, "free_symbols") or left.atoms(AppliedUndef):
        return False
    return left.free_symbols <= right.free_symbols and not _verified([left], [right])


@lru_cache(maxsize=64)
def _parse(latex: str) -> tuple[Any, ...]:
    """Return math-verify's parse of the whole text; () if it cannot. Its own `parse` then extracts a fraction from it."""
    try:
        return (parse_latex_cached(normalize_latex(latex, config=_NORMALIZATION)),)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001  the border to texts that anybody may have written, and to a parser that raises what it likes
        return ()


def _peak_bytes() -> int:
    """Return the largest address space that this process has had."""
    with open("/proc/self/status", encoding="ascii") as status:
        sizes = dict(line.split(":", 1) for line in status)
    return int(sizes["VmPeak"].split()[0]) << 10


if __name__ == "__main__":
    main()
