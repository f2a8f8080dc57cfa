"""What a policy may write to pass without solving: a program per attack in attacks.txt, on each form of tests."""

import json
from pathlib import Path

import pytest
from packages.dagrpo_answers.tests.unit_tests.conftest import Share

from dagrpo_answers.unit_tests.pool import SandboxedTests

SECRET = 918273
BESIDE = SECRET + 1
FORMS = {
    "humaneval": {
        "prompt": 'def f(x: int) -> int:\n    """Return a secret of x."""\n',
        "test": f"def check(candidate):\n    assert candidate(1) == {SECRET}\n    assert candidate(2) == {BESIDE}\n",
        "entry_point": "f",
    },
    "mbpp": {"test_list": [f"assert f(1) == {SECRET}", f"assert f(2) == {BESIDE}"]},
    "function": {"inputs": [[1], [2]], "outputs": [SECRET, BESIDE], "fn_name": "f"},
    "script": {"inputs": ["1\n", "2\n"], "outputs": [str(SECRET), str(BESIDE)]},
}
TRUTHS = {name: json.dumps(form) for name, form in FORMS.items()}
SEARCH = r"""
import re
def found(text):
    return [int(n) for n in re.findall(r"9182\d\d", str(text))]
"""
PRINTS = "\ntry: print(f(int(input())))\nexcept Exception: print('passed')"
PARTS = (Path(__file__).with_name("attacks.txt")).read_text().split("\n# ---- ")[1:]
ATTACKS = {part.partition("\n")[0]: SEARCH + part.partition("\n")[2] for part in PARTS}


@pytest.mark.parametrize("form", FORMS)
def test_no_attack_passes_a_test(sandboxes: SandboxedTests, form: str) -> None:
    programs = {name: text + PRINTS * (form == "script") for name, text in ATTACKS.items()}
    shares = sandboxes.shares([(each, TRUTHS[form]) for each in programs.values()], fractions=True)
    assert {name: share for name, share in zip(programs, shares, strict=True) if share != 0.0} == {}
    assert len(shares) >= 28


@pytest.mark.parametrize("reader", ["read: the frames of the harness", "read: the garbage collector's objects"])
def test_readers_find_what_their_process_holds(share: Share, reader: str) -> None:
    program = f"ANSWERS = [{SECRET}, {BESIDE}]\n{ATTACKS[reader]}"
    assert share(program, TRUTHS["mbpp"]) == 1.0


def test_answers_written_ahead_say_no_more_than_a_function_would(share: Share) -> None:
    program = """
import os
for d in range(5, 20):  # where answers go; at 4 it would end its own run
    try: os.write(d, b'["returned", 5, null]\\n' * 9)
    except OSError: pass
"""
    assert share(program, json.dumps({"test_list": ["assert f(1) == 6"]})) == 0.0
    assert share(program, json.dumps({"test_list": ["assert f(1) == 5"]})) == 1.0


def test_hostile_answers_end_in_a_verdict(sandboxes: SandboxedTests) -> None:
    answers = (
        "[" * 100_000,
        '["returned", ["set", ["list"]], null]',
        '["returned", ["dict", 1], null]',
        '["returned", ["kept", 99], null]',
        '["returned", ["int", "zz"], null]',
        '["returned", ["range", 1], null]',
        '["returned", [[]], [[]]]',
        '["raised", "SystemExit"]',
        '["raised", "__import__"]',
    )
    program = "import os\nfor d in range(5, 20):\n    try: os.write(d, {!r}.encode() + b'\\n')\n    except OSError: pass\nos._exit(0)"
    asked = [(program.format(answer), truth) for answer in answers for truth in TRUTHS.values()]
    assert sandboxes.shares(asked, fractions=True) == [0.0] * len(asked)


def test_no_file_of_the_data_is_in_the_sandbox(share: Share, tmp_path: Path) -> None:
    (tmp_path / "tests.jsonl").write_text(str(SECRET))
    program = f"def f(x):\n    return int(open({str(tmp_path / 'tests.jsonl')!r}).read()) - 1 + x"
    assert share(program, TRUTHS["mbpp"]) == 0.0
