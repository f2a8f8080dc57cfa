"""Checks that end a broken training run with an error.

Without them it would go wrong in silence. One file for each; suite.py combines them for the loop.
"""

from dagrpo.trainer.checks.finite import require_finite_gradient
from dagrpo.trainer.checks.logprob_agreement import logprob_differences, require_the_policys_rollouts
from dagrpo.trainer.checks.memory import advice_on_memory
from dagrpo.trainer.checks.usable import FIRST_STEPS, require_calls, require_usable

__all__ = [
    "FIRST_STEPS",
    "advice_on_memory",
    "logprob_differences",
    "require_calls",
    "require_finite_gradient",
    "require_the_policys_rollouts",
    "require_usable",
]
