r"""The worker process of pool.py, which compares answers with math-verify.

python -P -m dagrpo_answers.worker MEMORY_BYTES

Its standard input is a socket with one message of JSON in, one out (multiprocessing's framing, without pickle):
`{"answer": "\\frac{2}{4}", "ground_truth": "\\frac{1}{2}", "published": false, "seconds": 2.0}` -> `"right"`; an answer of null asks only
whether the ground truth can be read, and with `"published": true` the answer is a whole text, which the library reads by its own
defaults. The process ends when its input does, and the kernel ends it after somewhat more than a message's `seconds` (the parent is to
end it first), so that it never outlives a killed parent. pool.py restarts it.
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
from multiprocessing.connection import Connection
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from math_verify.parser import normalize_latex, parse_latex_cached
from sympy import And, Eq, Expr, Float, I, Ne, Rational, cancel, nan, simplify
from sympy.core.relational import Relational

from dagrpo_answers.comparing import same
from dagrpo_answers.forms import Form, read
from dagrpo_answers.pool import Comparison

GRACE_SECONDS = 1.0
STACK_BYTES = 256 << 20
EXACT_DIGITS = 400  # of two exact numbers, relative to their size; after these they are one
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
    """Answer messages until there are no more."""
    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(DEEPEST_RECURSION)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(Connection(0), memory))
    thread.start()
    thread.join()


def _serve(messages: Connection, memory: int) -> None:
    for answer in WARM_UP:
        _decide(answer, answer)
    messages.send_bytes(b"ready")
    while True:
        try:
            request = json.loads(messages.recv_bytes())
        except (EOFError, OSError):  # the parent has ended
            return
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_SECONDS)
        reply = _reply(request, memory)
        signal.setitimer(signal.ITIMER_REAL, 0)
        messages.send_bytes(json.dumps(reply).encode())


def _reply(request: dict[str, Any], memory: int) -> str:
    """Return the verdict. math-verify takes an allocation that failed for two different values, so one that came near ends here."""
    try:
        judge = _published if request["published"] else _judge
        verdict = judge(request["answer"], request["ground_truth"])
    except (MemoryError, RecursionError):
        os._exit(1)
    if _peak_bytes() > memory // 2:
        os._exit(1)
    return verdict


def _published(text: str, ground_truth: str) -> str:
    """Return the library's verdict on a whole text; its time limits are off, since they need the main thread."""
    gold, target = (parse(each, parsing_timeout=None) for each in (f"\\boxed{{{ground_truth}}}", text))
    return "right" if verify(gold, target, timeout_seconds=None) else "wrong"


def _judge(answer: str | None, ground_truth: str) -> str:
    truth = read(ground_truth)
    if not _is_readable(truth, ground_truth):
        return "no_ground_truth"
    if answer is None:
        return "right"
    return "right" if same(read(answer), truth, _decide) else "wrong"


def _is_readable(form: Form, text: str) -> bool:
    """Return True if math-verify reads a ground truth, or each part of one that is compared in parts."""
    if form.kind in ("values", "equation"):
        return all(_is_readable(value, value.latex) for value in form.values)
    return form.kind == "number" or bool(_parse(text))


def _decide(answer: str, ground_truth: str) -> bool:
    """Return True if two formulas or two equations are equal."""
    gold, target = _parse(ground_truth), _parse(answer)
    if not gold or not target:
        return False
    if isinstance(gold[0], Eq) and isinstance(target[0], Eq):
        return _is_the_same_relation(gold[0], target[0])
    if _are_the_same_relations(gold[0], target[0]):
        return True
    if Comparison(answer=answer, ground_truth=ground_truth).endless:
        return _verified(gold, target) and not _differ_in_some_digit(gold, target)
    # Digits first: math-verify takes some ten times as long to simplify the difference of two exact numbers.
    return not _differ_in_some_digit(gold, target) and _verified(gold, target)


def _are_the_same_relations(gold: Any, target: Any) -> bool:
    """Return True if two inequalities, or two chains of as many of them, are the same in any order."""
    golds, targets = (list(each.args) if isinstance(each, And) else [each] for each in (gold, target))
    if len(golds) != len(targets) or not all(isinstance(each, Relational) for each in (*golds, *targets)):
        return False
    return all(any(_is_the_same_relation(one, other) for other in targets) for one in golds)


def _is_the_same_relation(gold: Any, target: Any) -> bool:
    """Return True if one relation is the other with its sides moved, or scaled by a number: `2x > 6` and `3 < x`."""
    if not all(isinstance(side, Expr) for side in (gold.lhs, gold.rhs, target.lhs, target.rhs)):
        return _verified([gold.lhs], [target.lhs]) and _verified([gold.rhs], [target.rhs])
    first, second = (relation.lhs.doit() - relation.rhs.doit() for relation in (gold, target))
    ratio = cancel(first / second) if second.expand() != 0 else nan
    ratio = ratio if ratio.is_number else simplify(ratio)
    if not ratio.is_number or not ratio.is_finite or ratio.is_zero:
        return False
    return target.func is (gold.func if isinstance(gold, Eq | Ne) or ratio.is_positive else gold.reversed.func)


def _verified(gold: Sequence[Any], target: Sequence[Any]) -> bool:
    return bool(verify(list(gold), list(target), timeout_seconds=None, allow_set_relation_comp=True))


def _differ_in_some_digit(gold: Sequence[Any], target: Sequence[Any]) -> bool:
    r"""Return True if two exact numbers differ, as `\sqrt{2}` and `\sqrt{2}+10^{-20}` do: math-verify compares their first digits.

    The difference is computed until two of its digits are certain: one that cancels to EXACT_DIGITS has none, and is 0.
    """
    if len(gold) != 1 or len(target) != 1 or not all(map(_is_exact, (gold[0], target[0]))):
        return False
    first, second = (each.xreplace({f: Rational(str(f)) for f in each.atoms(Float)}) for each in (gold[0], target[0]))
    parts = (first - second).evalf(2, maxn=EXACT_DIGITS).as_real_imag()
    return any(isinstance(part, Float) and part._prec > 1 and part != 0 for part in parts)


def _is_exact(expression: Any) -> bool:
    return isinstance(expression, Expr) and bool(expression.is_number and expression.is_finite)


@lru_cache(maxsize=64)
def _parse(latex: str) -> tuple[Any, ...]:
    """Return math-verify's parse of the whole text; () if it cannot. Its own `parse` then extracts a fraction from it.

    An i that is the only name is the imaginary unit.
    """
    try:
        parsed = parse_latex_cached(normalize_latex(latex, config=_NORMALIZATION))
        names = list(parsed.free_symbols) if isinstance(parsed, Expr) else []
        return (parsed.subs(names[0], I) if [name.name for name in names] == ["i"] else parsed,)
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
