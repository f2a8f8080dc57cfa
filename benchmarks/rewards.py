"""Gradings per second, beside math-verify and beside the published formulas, in one run; and what hostile answers cost.

    OMP_NUM_THREADS=1 python benchmarks/rewards.py ../shared/data

The folder holds GSM8K (gsm8k/train.jsonl) and DAPO-Math-17k (dapo/dapo_math_17k.parquet); without them texts of the same
form are made up. `published` is this file's own writing of verl's formulas (gsm8k.py and math_dapo.py at commit b178a3cd5:
the last 300 characters, findall, equal texts), not verl itself, which is not installed. Every speed is the median of 5.
"""

import json
import logging
import multiprocessing
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from math_verify import parse, verify

from dagrpo.rewards.grading import Grader
from dagrpo.utils.tables import read_parquet

REPEATS = 5
PUBLISHED_CHARACTERS = 300
MATH_VERIFY_ROWS = 500
VERIFY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Texts with a right answer in them, and their ground truths."""

    name: str
    verifier: str
    texts: list[str]
    truths: list[str]

    def repeated(self, rows: int) -> "Corpus":
        times = rows // len(self.texts) + 1
        texts, truths = (self.texts * times)[:rows], (self.truths * times)[:rows]
        return Corpus(name=self.name, verifier=self.verifier, texts=texts, truths=truths)


# ---- the texts ----


def corpora(folder: Path) -> tuple[Corpus, Corpus]:
    """GSM8K's own solutions, and the same reasoning with DAPO's ground truths on a line `Answer:`."""
    solutions = _solutions(folder / "gsm8k/train.jsonl")
    truths = [solution.rpartition("####")[2].strip() for solution in solutions]
    gsm8k = Corpus(name="GSM8K", verifier="gsm8k", texts=solutions, truths=truths)
    answers = _dapo_truths(folder / "dapo/dapo_math_17k.parquet", len(solutions))
    forms = ("Answer: {}", "Answer: ${}$", "Answer: \\boxed{{{}}}", "**Answer:** {}", "Answer: {}.")
    texts = [
        solution.rpartition("####")[0] + forms[row % len(forms)].format(answer)
        for row, (solution, answer) in enumerate(zip(solutions, answers, strict=True))
    ]
    return gsm8k, Corpus(name="DAPO", verifier="math_dapo", texts=texts, truths=answers)


def _solutions(path: Path) -> list[str]:
    if path.exists():
        return [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()]
    print(f"{path} is missing: texts are made up.")
    numbers = random.Random(0)
    sentence = "She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs a day.\n"
    return [sentence * numbers.randint(2, 11) + f"#### {numbers.randint(1, 9999):,}" for _ in range(7473)]


def _dapo_truths(path: Path, rows: int) -> list[str]:
    if path.exists():
        return [row["ground_truth"] for row in read_parquet(path).column("reward_model").to_pylist()[:rows]]
    print(f"{path} is missing: ground truths are made up.")
    numbers = random.Random(1)
    return [str(numbers.randint(-99, 9999)) for _ in range(rows)]


# ---- the published formulas ----

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(\-?[0-9\.\,]+)")
ANSWER = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_REPLACED = (("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text"))
_WORDS = (
    "square|ways|integers|dollars|mph|inches|hours|km|units|sue|points|feet|minutes|digits|cents|degrees|cm|gm|pounds|meters|"
    "meals|edges|students|childrentickets|multiples"
)
_MARKS = ("\\ldots", "\\text{s}", "\\text{.}", "\\text{}^2", "\\text{}^3", "\\text{}", "\\mathrm{th}", "^\\circ")
_MORE_MARKS = ("^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots")


def published_gsm8k(text: str, truth: str, flexible: bool = False) -> bool:
    """The last match in the last 300 characters, without commas and dollars, is the same text as the ground truth."""
    found = (_FLEXIBLE if flexible else _STRICT).findall(text[-PUBLISHED_CHARACTERS:])
    if flexible:
        return next((item for item in reversed(found) if item not in ("", ".")), None) == truth
    return bool(found) and found[-1].replace(",", "").replace("$", "") == truth


def published_math_dapo(text: str, truth: str) -> bool:
    """The last `Answer:` of the last 300 characters and the ground truth have the same Minerva form."""
    found = ANSWER.findall(text[-PUBLISHED_CHARACTERS:])
    return _minerva(found[-1] if found else "[INVALID]") == _minerva(truth)


def _minerva(answer: str) -> str:
    answer = answer.split("=")[-1]
    for old, new in _REPLACED:
        answer = answer.replace(old, new)
    for unit in (*_WORDS.split("|"), *_MARKS, *_MORE_MARKS):
        answer = answer.replace(unit, "")
    answer = re.sub(r"(.*?)(\$)(.*?)(\$)(.*)", "$\\3$", answer)
    answer = re.sub(r"\\(?:text|textbf|overline|boxed)\{(.*?)\}", r"\1", answer)
    answer = re.sub(r"(frac)([^{])(.)", r"frac{\2}{\3}", answer)
    answer = re.sub(r"(sqrt)([^{])", r"sqrt{\2}", answer).replace("$", "")
    return (answer.replace(",", "") if answer.replace(",", "").isdigit() else answer).strip()


def with_math_verify(text: str, truth: str) -> bool:
    """math-verify as its README uses it, its own time limits on."""
    return bool(verify(parse(f"${truth}$"), parse(text)))


# ---- speed ----


def per_second(work: Callable[[], object], rows: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Rows per second, the median of several repeats. time.process_time counts one process, whoever else is at work."""
    return rows / statistics.median(_seconds(work, clock) for _ in range(REPEATS))


def _seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    started = clock()
    work()
    return clock() - started


def print_speeds(gsm8k: Corpus, dapo: Corpus) -> None:
    print("\n| texts | verifier | dagrpo, per second of a core | published formula | ratio | math-verify | ratio |")
    print("|---|---|---|---|---|---|---|")
    for corpus, published in ((gsm8k, published_gsm8k), (dapo, published_math_dapo)):
        with Grader(VERIFY_SECONDS) as grader:
            ours = per_second(partial(_judge, grader, corpus), len(corpus.texts), time.process_time)
        theirs = _speed_of(published, corpus)
        peer = _speed_of(with_math_verify, corpus.repeated(MATH_VERIFY_ROWS))
        cells = [f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}", f"{peer:,.0f}", f"{ours / peer:,.0f}"]
        print(f"| {corpus.name} | {corpus.verifier}, strict | {' | '.join(cells)} |")


def _judge(grader: Grader, corpus: Corpus) -> None:
    judged = grader.judge(corpus.texts, corpus.truths, [corpus.verifier] * len(corpus.texts), "strict")
    assert all(score.verdict == "right" for score in judged)


def _speed_of(
    grade: Callable[[str, str], bool], corpus: Corpus, clock: Callable[[], float] = time.process_time
) -> float:
    rows = list(zip(corpus.texts, corpus.truths, strict=True))
    return per_second(lambda: [grade(text, truth) for text, truth in rows], len(rows), clock)


def print_cores(gsm8k: Corpus, dapo: Corpus) -> None:
    """What it would bring to judge the fast way in two processes, started beforehand, half a batch each."""
    print("\n| texts | batch | one process, per second | two processes | ratio |")
    print("|---|---|---|---|---|")
    with ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as processes:
        list(processes.map(_judge_part, [gsm8k.repeated(100)] * 4))
        for corpus in (gsm8k, dapo):
            for rows in (1_000, 10_000, 100_000):
                whole, half = corpus.repeated(rows), corpus.repeated(rows // 2)
                one = per_second(partial(_judge_part, whole), rows)
                two = per_second(partial(_judge_halves, processes, half), rows)
                print(f"| {corpus.name} | {rows:,} | {one:,.0f} | {two:,.0f} | {two / one:.2f} |")


def _judge_halves(processes: ProcessPoolExecutor, half: Corpus) -> None:
    list(processes.map(_judge_part, [half, half]))


def _judge_part(corpus: Corpus) -> list[tuple[str | None, str]]:
    with Grader(VERIFY_SECONDS) as grader:
        judged = grader.judge(corpus.texts, corpus.truths, [corpus.verifier] * len(corpus.texts), "strict")
    return [(score.extracted, score.verdict) for score in judged]


def print_slow_path(rows: int = 400) -> None:
    """Answers that only math-verify can compare, all different."""
    texts = [f"\\boxed{{\\frac{{{2 * n}\\sqrt{{2}}}}{{{3 * n}}} + {n}}}" for n in range(1, rows + 1)]
    truths = [f"\\frac{{2\\sqrt{{2}}}}{{3}} + {n}" for n in range(1, rows + 1)]
    verifiers = ["math"] * rows
    alone = _speed_of(with_math_verify, Corpus(name="", verifier="", texts=texts, truths=truths), time.perf_counter)
    print("\n| answers for math-verify | per second | ratio |")
    print(f"|---|---|---|\n| math-verify in the calling process | {alone:,.0f} | 1.00 |")
    for processes in (1, 2):
        with Grader(VERIFY_SECONDS, processes) as grader:
            grader.judge(texts[:4], truths[:4], verifiers[:4], "strict")
            speed = per_second(partial(grader.judge, texts, truths, verifiers, "strict"), rows)
        print(f"| dagrpo, worker processes: {processes} | {speed:,.0f} | {speed / alone:.2f} |")


# ---- what is read ----

FORMS: Sequence[tuple[str, str, str, str]] = (  # what it is, text, ground truth, verifier
    ("zeros after the point", "#### 18.00", "18", "gsm8k"),
    ("a full stop", "#### 18.", "18", "gsm8k"),
    ("a currency", "#### $18", "18", "gsm8k"),
    ("thousands, truth without", "#### 1,000", "1000", "gsm8k"),
    ("emphasis", "#### **18**", "18", "gsm8k"),
    ("full-width digits", "#### \uff11\uff18", "18", "gsm8k"),
    ("a unicode minus", "#### \u221218", "-18", "gsm8k"),
    ("300 characters after it", "#### 18\n" + "That was easy. " * 20, "18", "gsm8k"),
    ("lower case, full stop", "answer: 34.", "34", "math_dapo"),
    ("emphasis", "**Answer:** 34", "34", "math_dapo"),
    ("a box on the line", "Answer: \\boxed{34}", "34", "math_dapo"),
    ("a unit", "Answer: 34 degrees", "34", "math_dapo"),
    ("300 characters after it", "Answer: 34\n" + "That was easy. " * 20, "34", "math_dapo"),
    ("another way to write it", "Answer: 2^{10}", "1024", "math_dapo"),
    ("digits with a space (wrong)", "Answer: 3 4", "34", "math_dapo"),
    ("of two formulas the first (wrong)", "Answer: $34$ or $35$", "34", "math_dapo"),
)


def print_forms() -> None:
    print("\n| form | verifier | dagrpo | published formula | math-verify |")
    print("|---|---|---|---|---|")
    with Grader(VERIFY_SECONDS) as grader:
        for name, text, truth, verifier in FORMS:
            ours = grader.judge([text], [truth], [verifier], "strict")[0].verdict == "right"
            published = published_gsm8k(text, truth) if verifier == "gsm8k" else published_math_dapo(text, truth)
            marks = ["right" if right else "wrong" for right in (ours, published, with_math_verify(text, truth))]
            print(f"| {name} | {verifier} | {' | '.join(marks)} |")


# ---- hostile answers ----

HALF_ROOT = "\\frac{\\sqrt{3}}{2}"
HOSTILE = {
    "`9^{9^{9}}`": "9^{9^{9}}",
    "`10^{10^{10}}`": "10^{10^{10}}",
    "`(10^{9})!`": "(10^{9})!",
    "`((100!)!)!`": "((100!)!)!",
    "`\\sum_{k=1}^{10^{10}} k^{k}`": "\\sum_{k=1}^{10^{10}} k^{k}",
    "50 nested parentheses": "(" * 50 + "1" + ")" * 50,
    "400 nested parentheses": "(" * 400 + "1" + ")" * 400,
    "300 nested fractions": "\\frac{1}{" * 300 + "2" + "}" * 300,
    "200,000 characters": "1+" * 100_000 + "1",
    "1,000,000 characters of `\\boxed{`": "\\boxed{" * 142_857,
}


def print_hostile() -> None:
    """Each with 32 ordinary answers for math-verify in the same batch, on two workers."""
    ordinary = [f"\\boxed{{\\frac{{{2 * n}\\sqrt{{3}}}}{{{4 * n}}}}}" for n in range(2, 34)]
    print("\n| answer | verdict | seconds for it and 32 others | the others right |")
    print("|---|---|---|---|")
    with Grader(VERIFY_SECONDS, 2) as grader:
        grader.judge(ordinary, [HALF_ROOT] * 32, ["math"] * 32, "strict")
        for name, answer in HOSTILE.items():
            texts = [f"\\boxed{{{answer}}}", *ordinary]
            started = time.perf_counter()
            judged = grader.judge(texts, [HALF_ROOT] * 33, ["math"] * 33, "strict")
            took = time.perf_counter() - started
            others = sum(score.verdict == "right" for score in judged[1:])
            print(f"| {name} | {judged[0].verdict} | {took:.2f} | {others} of 32 |")


def main() -> None:
    logging.disable(logging.CRITICAL)  # math-verify's complaints
    gsm8k, dapo = corpora(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    print(f"{len(gsm8k.texts)} texts, {statistics.mean(map(len, gsm8k.texts)):.0f} characters in the mean")
    print_speeds(gsm8k, dapo)
    print_cores(gsm8k, dapo)
    print_slow_path()
    print_forms()
    print_hostile()


if __name__ == "__main__":
    main()
