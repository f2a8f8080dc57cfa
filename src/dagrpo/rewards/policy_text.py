"""Which part of a trajectory a reward may read: what the policy wrote, and nothing else."""

from collections.abc import Sequence

from dagrpo.records import Turn


def policy_text(turns: Sequence[Turn]) -> str:
    """The assistant's turns, one after the other on lines of their own; no tool's result, no user's turn."""
    return "\n".join(turn.text for turn in turns if turn.role == "assistant")
