"""The tools a task may offer, as the policy is told of them: plug-ins of rollout/tools, and some that nothing runs.

What they do when called is not here.

An oracle knows the ground truth: a score obtained with one says nothing about the policy, so that no evaluation offers it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dagrpo.rollout import tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One function in the form in which chat templates take it."""

    name: str
    description: str
    argument: str  # the one argument, a text
    argument_description: str
    oracle: bool

    @property
    def schema(self) -> dict[str, Any]:
        """The OpenAI function schema."""
        properties = {self.argument: {"type": "string", "description": self.argument_description}}
        parameters = {"type": "object", "properties": properties, "required": [self.argument]}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


CALC_GSM8K_REWARD = Tool(
    name="calc_gsm8k_reward",
    description="Check a final answer to the problem: 1.0 when it is right, 0.0 when it is not.",
    argument="answer",
    argument_description="The final answer, a number.",
    oracle=True,
)
CALC_GEO3K_REWARD = Tool(
    name="calc_geo3k_reward",
    description="Check a final answer to the geometry problem: 1.0 when it is right, 0.0 when it is not.",
    argument="answer",
    argument_description="The final answer, as it would stand in \\boxed{}.",
    oracle=True,
)
CODE_INTERPRETER = Tool(
    name="code_interpreter",
    description="Run a Python program and return what it prints.",
    argument="code",
    argument_description="The program. Print what you want to see.",
    oracle=False,
)
TOOLS = {tool.name: tool for tool in (CALC_GSM8K_REWARD, CALC_GEO3K_REWARD, CODE_INTERPRETER)}
INTERACTIONS = {"gsm8k": True}  # simulated users: name -> whether it is an oracle, because it tells right from wrong


def schemas_of(names: Sequence[str]) -> list[dict[str, Any]]:
    """The OpenAI function schemas of tools with their default parameters. UserError: one of them is not known."""
    return [schema for name in names for schema in _schemas(name)]


def is_oracle(name: str) -> bool:
    """Whether a tool knows the ground truth. UserError: it is not known."""
    return TOOLS[name].oracle if _is_only_told(name) else tools.TOOLS.get(name).oracle


@cache  # every problem of a task asks, and looking for plug-ins takes a while
def _schemas(name: str) -> tuple[dict[str, Any], ...]:
    if _is_only_told(name):
        return (TOOLS[name].schema,)
    return tuple(function.schema for functions in tools.functions_of([name], {}).values() for function in functions)


def _is_only_told(name: str) -> bool:
    return name in TOOLS and name not in tools.TOOLS.own_names()
