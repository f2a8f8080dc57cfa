"""The components of a reward: what each of them reads of an attempt, before its weight.

Accuracy is priced by section `reward`; the others stand by their formulas here.
"""

from collections.abc import Mapping

from dagrpo.params.reward import Reward
from dagrpo.records import Attempt, Verdict
from dagrpo.rewards.verifiers import get_verifier

EFFORT_PER_TURN = 0.1
MOST_EFFORT = 0.4


def accuracy(verdict: Verdict, reward: Reward) -> float:
    """The price of a verdict."""
    prices: Mapping[Verdict, float] = {
        "right": reward.correct,
        "wrong": reward.wrong,
        "missing": reward.missing,
        "unverifiable": reward.unverifiable,
    }
    return prices[verdict]


def format(text: str, verifier: str) -> float:
    """1 when the text has the form that its verifier asks for, else 0."""
    return float(get_verifier(verifier).formatted(text))


def overlong(tokens: int, max_new_tokens: int, buffer: int) -> float:
    """DAPO's soft overlong punishment (arXiv:2503.14476, equation 13): 0 up to max_new_tokens - buffer, -1 at the maximum.

    Linear in between, and -1 beyond.
    """
    allowed = max_new_tokens - buffer
    return max(-1.0, min(0.0, (allowed - tokens) / buffer))


def tool_calls(attempt: Attempt) -> float:
    """The share of tool calls that worked; 0 without a call."""
    calls = attempt.tool_calls
    return (calls - attempt.failed_tool_calls) / calls if calls else 0.0


def tool_effort(attempt: Attempt, verdict: Verdict) -> float:
    """ReTool's credit for trying (arXiv:2504.11536): 0.1 for every tool turn and answer after it, at most 0.4.

    0 when the answer is right, and nothing for turns that answered no tool.
    """
    if verdict == "right":
        return 0.0
    return min(MOST_EFFORT, EFFORT_PER_TURN * min(attempt.turns - 1, attempt.tool_calls))
