"""Checks that end a broken training run with an error.

Without them it would go wrong in silence. One file for each; watch.py combines them for the loop.
"""

from dagrpo.trainer.gates.agreement import logprob_differences, require_the_policys_rollouts
from dagrpo.trainer.gates.finite import require_finite_gradient
from dagrpo.trainer.gates.memory import advice_on_memory
from dagrpo.trainer.gates.usable import FIRST_STEPS, require_calls, require_usable

__all__ = [
    "FIRST_STEPS",
    "advice_on_memory",
    "logprob_differences",
    "require_calls",
    "require_finite_gradient",
    "require_the_policys_rollouts",
    "require_usable",
]
