"""The registry: every task by its name, what each needs of rollouts, and an import that costs little."""

import subprocess
import sys

import pytest

from dagrpo.data.task import TASKS, get_task
from dagrpo.rewards.verifiers import VERIFIERS
from dagrpo.tools import TOOLS
from dagrpo.tools.simulated_users import INTERACTIONS

HEAVY = ("torch", "datasets", "transformers", "PIL", "reasoning_gym", "huggingface_hub", "sympy", "math_verify")
NAMES = {
    "aime_2024",
    "aime_2024_tool",
    "aime_2025",
    "aime_2025_tool",
    "arithmetic",
    "arithmetic_alone",
    "arithmetic_tool",
    "bigmath",
    "countdown",
    "dapo",
    "dapo_tool",
    "deepscaler",
    "geo3k",
    "geo3k_tool",
    "gpqa",
    "gsm8k",
    "gsm8k_feedback",
    "gsm8k_sft",
    "gsm8k_tool",
    "hh_rlhf",
    "humaneval",
    "ifeval",
    "larger",
    "math",
    "math_500",
    "mbpp",
    "mbpp_one_test",
    "mmlu_pro",
    "nq_hotpotqa",
    "one_liners",
    "openmath",
    "openr1_mm",
    "orz",
    "prime_code",
    "python_math",
    "shapes",
    "verifiers",
    "worlds",
}


def test_every_task_is_known_by_its_own_name() -> None:
    assert TASKS.own_names() == sorted(NAMES)
    assert all(get_task(name).name == name for name in NAMES)


def test_every_task_names_a_verifier_tools_and_a_user_that_exist() -> None:
    for task in map(get_task, NAMES):
        assert task.verifier in VERIFIERS.own_names()
        assert set(task.tools) <= set(TOOLS.own_names())
        assert task.interaction in {"", *INTERACTIONS.own_names()}


def test_a_tool_or_a_user_that_knows_the_answer_is_an_oracle() -> None:
    assert {name for name in NAMES if get_task(name).oracle} == {"gsm8k_tool", "gsm8k_feedback", "geo3k_tool"}


def test_an_unknown_task_is_an_error_that_gives_the_nearest_known_one() -> None:
    with pytest.raises(
        ValueError, match=r"`gsm8` is not a task: the nearest known one is `gsm8k`; correct experiment\.train"
    ):
        get_task("gsm8")
    with pytest.raises(ValueError, match=r"the known ones are aime_2024, aime_2024_tool, .*, worlds; correct"):
        get_task("zzz")


def test_importing_the_registry_imports_nothing_heavy() -> None:
    program = f"import sys, dagrpo.data.task; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
