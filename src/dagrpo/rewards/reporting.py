"""Reports of programs and environments: rewards by name."""

import math
from collections.abc import Mapping
from typing import Any

from dagrpo_answers.verifier import Verdict

TOTAL = "reward"  # the name of a program's whole reward
LARGEST = 1e30  # fits into 32 bits
RIGHT = 1.0  # least reward of an attempt that counts as right


def as_reward(value: Any) -> float:
    """Return a number of any kind, such as numpy's. Raises ValueError or TypeError unless it is finite and at most LARGEST."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except OverflowError:  # of an integer
        number = math.inf
    except (TypeError, ValueError):
        raise
    except Exception as error:  # the border to other people's objects
        raise ValueError(f"the reward cannot be read as a number ({type(error).__name__})") from error
    if not abs(number) <= LARGEST:
        raise ValueError("the reward is not a finite number below 1e30")
    return number


def whole(rewards: Mapping[str, float]) -> float:
    """Return the one named reward, else the sum of all."""
    return rewards[TOTAL] if TOTAL in rewards else sum(rewards[name] for name in sorted(rewards))


def verdict_of(rewards: Mapping[str, float]) -> Verdict:
    """Return right from RIGHT on, else wrong; missing without a report."""
    if not rewards:
        return "missing"
    return "right" if whole(rewards) >= RIGHT else "wrong"
