"""Programs against tests in the three forms of rows, in Python and bash."""

import json
from typing import Any

import pytest
from packages.dagrpo_answers.tests.unit_tests.conftest import Shares

from dagrpo_answers import Judge
from dagrpo_answers.errors import UserError
from dagrpo_answers.unit_tests.running import same_output
from dagrpo_answers.unit_tests.tests_of_row import read_tests
from dagrpo_answers.verifier import ProgramLimits

ADD = json.dumps(
    {
        "prompt": 'from typing import List\n\ndef twice(x): return 2 * x\n\ndef add(a: int, b: int) -> List:\n    """Add."""\n',
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == twice(2)\n",
        "entry_point": "add",
    }
)
REVERSE = json.dumps(
    {"test_list": ["assert rev([1, 2]) == [2, 1]", "assert rev('ab') == ['b', 'a']"], "test_setup_code": ""}
)
SUMS = json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]})
TOTALS = json.dumps({"inputs": ["[1, 2]\n1", "[3]\n0"], "outputs": ["4", "3"], "fn_name": "total"})
BASH = json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"], "language": "bash"})


PROGRAMS: list[tuple[str, str, float]] = [
    ("    return a + b\n", ADD, 1.0),  # continues the prompt
    ("def add(a, b):\n    return a + b", ADD, 1.0),
    ("def add(a, b):\n    return a - b", ADD, 0.0),
    ("    return a +", ADD, 0.0),  # no program
    ("", ADD, 0.0),
    ("def rev(x):\n    return list(x)[::-1]", REVERSE, 1.0),
    ("def rev(x):\n    return x[::-1]", REVERSE, 0.5),
    ("def other(x):\n    return x", REVERSE, 0.0),
    ("a, b = map(int, input().split())\nprint(a + b)", SUMS, 1.0),
    ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", SUMS, 1.0),
    ("print(3)", SUMS, 0.5),
    ("print(3); raise ValueError", SUMS, 0.0),  # the right output of a program that fails
    ("class Solution:\n    def total(self, x, y): return sum(x) + y", TOTALS, 1.0),
    ("def total(x, y): return sum(x)", TOTALS, 0.5),
    (
        "def total(x: List[int], y: Optional[int]): return sum(x) + y",
        TOTALS,
        1.0,
    ),  # as in LeetCode, without an import
    ("def total(x, y): return float(sum(x) + y)", TOTALS, 1.0),  # 4.0 is 4
    ("def total(x, y): return True", TOTALS.replace("4", "1"), 0.0),  # and True is not 1
    ("def total(x, y): return 10 ** 400", TOTALS.replace('"4"', '"4.0"'), 0.0),  # no float holds it
    ("def total(x, y): return {10 ** 5000: 1}", TOTALS.replace('"4"', '"{}"'), 0.0),
    ("print(sum(map(int, input().split())))\nexit()", SUMS, 1.0),
    ("import atexit\natexit.register(lambda: print(sum(map(int, input().split()))))", SUMS, 1.0),
    (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
        "a, b = map(int, input().split())\nprint(P(a).x + b)",
        SUMS,
        1.0,
    ),
    ("read a b; echo $((a+b))", BASH, 1.0),
    ("echo 3", BASH, 0.5),
    ("echo 3; exit 1", BASH, 0.0),
]


def test_a_program_passes_a_share_of_its_tests(shares: Shares) -> None:
    found = shares(*((program, truth) for program, truth, _ in PROGRAMS))
    assert [(case, share) for case, share in zip(PROGRAMS, found, strict=True) if share != case[2]] == []


LEETCODE = """
class Solution:
    def f(self, x: Optional[int] = None) -> List[int]:
        return {}
"""
MODULES = {  # an expression that is [3, 1], with each module by its name and what it has without
    "heapq": "heapq.nlargest(2, [1, 3]) if heappush else 0",
    "bisect": "[bisect.bisect_left([1, 2, 3], 4), bisect_left([1, 2], 2)]",
    "math": "[math.gcd(3, 9), math.comb(1, 1)] if inf else 0",
    "collections": "[*collections.Counter([3, 1])] if defaultdict else 0",
    "itertools": "[*itertools.chain([3], [1])] if accumulate else 0",
    "functools": "[functools.reduce(add, [1, 2]), 1] if cache else 0",
    "string": "[string.ascii_lowercase.index('d'), 1] if ascii_lowercase else 0",
    "re": "[*map(int, re.findall('[0-9]', '3a1'))]",
    "random": "[random.randint(3, 3), randint(1, 1)]",
    "operator": "[operator.itemgetter(0)([3]), 1]",
    "copy": "copy.deepcopy([3, 1]) if deepcopy else 0",
    "sys": "[3, 1] if sys.maxsize == maxsize else 0",
    "json": "json.loads('[3, 1]') if dumps else 0",
    "datetime": "[datetime.datetime(1, 3, 1).month, timedelta(days=1).days]",
    "statistics": "[statistics.mean([2, 4]), median([1])]",
    "io": "[*map(int, io.StringIO('31').read())]",
    "typing": "[3, 1] if List and Optional else 0",
    "builtins": "[pow(2, -1, 5), abs(-1)] if min(2, 1) and sum([1]) else 0",  # not the pow and sum of other modules
}


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_an_answer_in_leetcodes_form_has_modules_and_their_names(shares: Shares, future: str) -> None:
    truth = {"inputs": ["null"], "outputs": ["[3, 1]"], "fn_name": "f"}
    found = shares(*((future + LEETCODE.format(expression), truth) for expression in MODULES.values()))
    assert dict(zip(MODULES, found, strict=True)) == dict.fromkeys(MODULES, 1.0)


DEEP = "def depth(n): return 0 if n == 0 else 1 + depth(n - 1)\n"
CACHED = "import functools\n@functools.lru_cache(None)\n" + DEEP  # each level is one of C's stack, too


@pytest.mark.parametrize("levels", [5_000, 40_000])
@pytest.mark.parametrize("depth", [DEEP, CACHED])
def test_recursion_is_as_deep_as_a_problem_needs(shares: Shares, levels: int, depth: str) -> None:
    n = str(levels)
    forms = [
        ("print(depth(int(input())))", {"inputs": [n], "outputs": [n]}),
        ("class Solution:\n    def f(self, n): return depth(n)", {"inputs": [n], "outputs": [n], "fn_name": "f"}),
        ("def f(n): return depth(n)", {"test_list": [f"assert f({n}) == {n}"]}),
        (
            "def f(n): return depth(n)",
            {"prompt": "", "test": f"def check(f):\n    assert f({n}) == {n}", "entry_point": "f"},
        ),
    ]
    assert shares(*((depth + program, truth) for program, truth in forms)) == [1.0] * 4


def test_recursion_without_an_end_fails_one_test(shares: Shares) -> None:
    truth = {"inputs": ["-1", "7"], "outputs": ["7", "7"], "seconds": 4}
    assert shares(*((depth + "print(depth(int(input())))", truth) for depth in (DEEP, CACHED))) == [0.5, 0.5]


def test_a_thread_may_have_a_large_stack(shares: Shares) -> None:
    program = CACHED + (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
        "t = threading.Thread(target=lambda: print(depth(int(input()))))\nt.start()\nt.join()"
    )
    assert shares((program, {"inputs": ["40000"], "outputs": ["40000"]})) == [1.0]


LONG = "7" * 5_000


def test_whole_numbers_may_have_many_digits(shares: Shares) -> None:
    function = {"inputs": [LONG], "outputs": [LONG[:-1] + "8"], "fn_name": "f"}
    as_text = {"inputs": [[int("7" * 4_000)]], "outputs": ["7" * 3_999 + "8"], "fn_name": "f"}
    asserted = {"test_list": [f"assert f('{LONG}') == int('{LONG}')", f"assert str(f('{LONG}')) == '{LONG}'"]}
    found = shares(
        ("print(int(input()) + 1)", {"inputs": [LONG], "outputs": [LONG[:-1] + "8"]}),
        ("def f(x): return x + 1", function),
        ("def f(x): return str(x + 1)", as_text),
        ("def f(d): return len(d)", {"inputs": [[{LONG: 1}]], "outputs": [1], "fn_name": "f"}),
        ("def f(x): return int(x)", asserted),
    )
    assert found == [1.0] * 5


@pytest.mark.parametrize("value", ["7" * (1 << 20), "[" * 600 + "]" * 600])
def test_tests_with_boundless_values_are_refused(value: str) -> None:
    with pytest.raises(UserError, match="states no tests"):
        read_tests(json.dumps({"inputs": [value], "outputs": ["1"], "fn_name": "f"}))


PASSED_ON = [
    ("def f(x):\n    x.append(3)", "values = [1]\nf(values)\nassert values == [1, 3]"),  # it changes its argument
    ("def f(x):\n    raise KeyError(x)", "try:\n    f(1)\n    assert False\nexcept KeyError:\n    pass"),
    ("def f(x):\n    return {1: (2.5, 'a'), 'b': {3}}", "assert f(0) == {1: (2.5, 'a'), 'b': {3}}"),
    ("def f(x):\n    return 10 ** 5000", "assert f(0) == 10 ** 5000"),
    ("def f(x):\n    return 1j, b'x', range(3), None", "assert f(0) == (1j, b'x', range(3), None)"),
    ("def f(x):\n    return x + 1", "assert f(f(f(1))) == 4"),  # calls that depend on results
    (
        "class Node:\n    def __init__(self, v): self.v, self.next = v, None\ndef last(n):\n    return last(n.next) if n.next else n.v",
        "a = Node(1)\na.next = Node(2)\nassert last(a) == 2",
    ),
    ("def f(x):\n    return 0.1 + x", "assert math.isclose(f(0.2), 0.3)"),  # a module that the test does not import
    ("def f(x):\n    print('noise')\n    return 1", "assert f(1) == 1"),
    ("def f(x):\n    return x != x", "assert f(float('nan'))"),
    (
        "class Odd(ValueError): pass\ndef f(x):\n    raise Odd(x)",
        "try:\n    f(1)\n    assert False\nexcept ValueError:\n    pass",
    ),
    (
        "def sum(a, b):\n    return a + b",
        "assert sum(10, 15) == 25",
    ),  # a function of the program with a built-in name
]


def test_values_and_objects_pass_between_a_program_and_its_tests(shares: Shares) -> None:
    found = shares(*((program, {"test_list": [test]}) for program, test in PASSED_ON))
    assert [case for case, share in zip(PASSED_ON, found, strict=True) if share != 1.0] == []


def test_results_are_read_in_linear_time_and_a_call_with_what_is_no_data_cannot_be_decided(shares: Shares) -> None:
    equal_hashes = "def f(x):\n    return {k * (2 ** 61 - 1) for k in range(20000)}"
    of_no_data = {"test_list": ["assert f(lambda: 1) == 1"]}
    megabyte = {"inputs": ["x" * (1 << 20)], "outputs": [str(1 << 20)]}
    assert shares(
        (equal_hashes, {"inputs": [[1]], "outputs": [[1]], "fn_name": "f"}),
        ("def f(x):\n    return x()", of_no_data),
        ("print(len(input()))", megabyte),  # arrives whole
    ) == [0.0, None, 1.0]


def test_each_test_has_limits_of_time_memory_and_output(shares: Shares) -> None:
    fields: dict[str, Any] = {"inputs": [""], "outputs": ["3"]}
    endless = (
        "while True: pass",
        "import time\ntime.sleep(60)",
        "x = bytes(1 << 30)\nprint(3)",
        "print('x' * (9 << 20))",
    )
    assert shares(*((program, fields | {"seconds": 0.5}) for program in endless)) == [0.0] * 4
    large = "x = bytes(150 << 20)\nprint(3)"  # a row may have less than the parameters give
    assert shares((large, fields), (large, fields | {"memory_mb": 96})) == [1.0, 0.0]


def test_outputs_are_compared_by_words_and_lines() -> None:
    same = [("1 2\n3\n", "1  2 \n3"), ("0.3333333", "0.33333333")]
    # A whole number is expected; 1_0.0 is Python's spelling, and no other program's.
    other = [
        ("1 2 3", "1 2\n3"),
        ("0.34", "0.33"),
        ("1.0", "1"),
        ("nan", "1.0"),
        ("1_0.0", "10.0"),
        ("10.0", "1_0.0"),
        ("", "1"),
    ]
    assert [same_output(*pair) for pair in same + other] == [True] * 2 + [False] * 7


@pytest.mark.usefixtures("sandboxes")
def test_the_judge_gives_verdicts_and_shares() -> None:
    texts = ["```python\nprint(3)\n```", "```python\nprint(sum(map(int, input().split())))\n```", "print(3)"]
    with Judge(limits=ProgramLimits(seconds=1.0, memory_mb=256, parallel=2)) as judge:
        scores = judge.judge(texts, [SUMS] * 3, ["unit_tests"] * 3, "strict", fractions=True)
    assert [(score.verdict, score.passed) for score in scores] == [("wrong", 0.5), ("right", 1.0), ("missing", None)]
