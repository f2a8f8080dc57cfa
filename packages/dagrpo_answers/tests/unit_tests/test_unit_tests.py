"""Programs against tests in the three forms of rows, in Python and bash."""

import json
from typing import Any

import pytest
from packages.dagrpo_answers.tests.unit_tests.conftest import Share

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


@pytest.mark.parametrize(
    ("program", "truth", "expected"),
    [
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
    ],
)
def test_a_program_passes_a_share_of_its_tests(share: Share, program: str, truth: str, expected: float) -> None:
    assert share(program, truth) == expected


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


@pytest.mark.parametrize("expression", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_an_answer_in_leetcodes_form_has_modules_and_their_names(share: Share, expression: str, future: str) -> None:
    truth = json.dumps({"inputs": ["null"], "outputs": ["[3, 1]"], "fn_name": "f"})
    assert share(future + LEETCODE.format(expression), truth) == 1.0


DEEP = "def depth(n): return 0 if n == 0 else 1 + depth(n - 1)\n"
CACHED = "import functools\n@functools.lru_cache(None)\n" + DEEP  # each level is one of C's stack, too


@pytest.mark.parametrize("levels", [5_000, 40_000])
@pytest.mark.parametrize("depth", [DEEP, CACHED])
@pytest.mark.parametrize(
    ("program", "truth"),
    [
        ("print(depth(int(input())))", {"inputs": ["N"], "outputs": ["N"]}),
        ("class Solution:\n    def f(self, n): return depth(n)", {"inputs": ["N"], "outputs": ["N"], "fn_name": "f"}),
        ("def f(n): return depth(n)", {"test_list": ["assert f(N) == N"]}),
        (
            "def f(n): return depth(n)",
            {"prompt": "", "test": "def check(f):\n    assert f(N) == N", "entry_point": "f"},
        ),
    ],
)
def test_recursion_is_as_deep_as_a_problem_needs(
    share: Share, levels: int, depth: str, program: str, truth: Any
) -> None:
    assert share(depth + program, json.dumps(truth).replace("N", str(levels))) == 1.0


@pytest.mark.parametrize("depth", [DEEP, CACHED])
def test_recursion_without_an_end_fails_one_test(share: Share, depth: str) -> None:
    truth = json.dumps({"inputs": ["-1", "7"], "outputs": ["7", "7"], "seconds": 4})
    assert share(depth + "print(depth(int(input())))", truth) == 0.5


def test_a_thread_may_have_a_large_stack(share: Share) -> None:
    program = CACHED + (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
        "t = threading.Thread(target=lambda: print(depth(int(input()))))\nt.start()\nt.join()"
    )
    assert share(program, json.dumps({"inputs": ["40000"], "outputs": ["40000"]})) == 1.0


LONG = "7" * 5_000


@pytest.mark.parametrize(
    ("program", "truth"),
    [
        ("print(int(input()) + 1)", {"inputs": [LONG], "outputs": [LONG[:-1] + "8"]}),
        ("def f(x): return x + 1", {"inputs": [LONG], "outputs": [LONG[:-1] + "8"], "fn_name": "f"}),
        (
            "def f(x): return str(x + 1)",
            {"inputs": [[int("7" * 4_000)]], "outputs": ["7" * 3_999 + "8"], "fn_name": "f"},
        ),
        ("def f(d): return len(d)", {"inputs": [[{LONG: 1}]], "outputs": [1], "fn_name": "f"}),
        (
            "def f(x): return int(x)",
            {"test_list": [f"assert f('{LONG}') == int('{LONG}')", f"assert str(f('{LONG}')) == '{LONG}'"]},
        ),
    ],
)
def test_whole_numbers_may_have_many_digits(share: Share, program: str, truth: Any) -> None:
    assert share(program, json.dumps(truth)) == 1.0


@pytest.mark.parametrize("value", ["7" * (1 << 20), "[" * 600 + "]" * 600])
def test_tests_with_boundless_values_are_refused(value: str) -> None:
    with pytest.raises(UserError, match="states no tests"):
        read_tests(json.dumps({"inputs": [value], "outputs": ["1"], "fn_name": "f"}))


@pytest.mark.parametrize(
    ("program", "test"),
    [
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
    ],
)
def test_values_and_objects_pass_between_a_program_and_its_tests(share: Share, program: str, test: str) -> None:
    assert share(program, json.dumps({"test_list": [test]})) == 1.0


def test_a_result_with_many_equal_hashes_is_read_in_linear_time(share: Share) -> None:
    truth = json.dumps({"inputs": [[1]], "outputs": [[1]], "fn_name": "f"})
    assert share("def f(x):\n    return {k * (2 ** 61 - 1) for k in range(20000)}", truth) == 0.0


def test_a_call_with_what_is_no_data_cannot_be_decided(share: Share) -> None:
    truth = json.dumps({"test_list": ["assert f(lambda: 1) == 1"]})
    assert share("def f(x):\n    return x()", truth) is None


@pytest.mark.parametrize(
    "program",
    ["while True: pass", "import time\ntime.sleep(60)", "x = bytes(1 << 30)\nprint(3)", "print('x' * (9 << 20))"],
)
def test_each_test_has_limits_of_time_memory_and_output(share: Share, program: str) -> None:
    assert share(program, json.dumps({"inputs": [""], "outputs": ["3"], "seconds": 0.5})) == 0.0


def test_a_row_may_have_less_memory_than_the_parameters_give(share: Share) -> None:
    fields: dict[str, Any] = {"inputs": [""], "outputs": ["3"]}
    program = "x = bytes(150 << 20)\nprint(3)"
    assert share(program, json.dumps(fields)) == 1.0
    assert share(program, json.dumps(fields | {"memory_mb": 96})) == 0.0


def test_an_input_of_a_megabyte_arrives_whole(share: Share) -> None:
    truth = json.dumps({"inputs": ["x" * (1 << 20)], "outputs": [str(1 << 20)]})
    assert share("print(len(input()))", truth) == 1.0


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1 2\n3\n", "1  2 \n3", True),
        ("1 2 3", "1 2\n3", False),
        ("0.3333333", "0.33333333", True),
        ("0.34", "0.33", False),
        ("1.0", "1", False),  # a whole number is expected
        ("nan", "1.0", False),
        ("1_0.0", "10.0", False),  # Python's spelling of a number, and no other program's
        ("10.0", "1_0.0", False),
        ("", "1", False),
    ],
)
def test_outputs_are_compared_by_words_and_lines(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same


def test_the_judge_gives_verdicts_and_shares(share: Share) -> None:
    texts = ["```python\nprint(3)\n```", "```python\nprint(sum(map(int, input().split())))\n```", "print(3)"]
    with Judge(limits=ProgramLimits(seconds=1.0, memory_mb=256, parallel=2)) as judge:
        scores = judge.judge(texts, [SUMS] * 3, ["unit_tests"] * 3, "strict", fractions=True)
    assert [(score.verdict, score.passed) for score in scores] == [("wrong", 0.5), ("right", 1.0), ("missing", None)]
