"""Reward functions in TRL's form, called for one attempt at a time.

Each gets lists of one: `prompts`, `completions` (chat messages), `environments` and every column of the row, and
returns a list of one number. TRL's `trainer_state`, `log_extra` and `log_metric` are not passed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.rewards.reporting import as_reward
from dagrpo.tools import InfrastructureFailure
from dagrpo.tools.connections.own_code import imported, trusted_result_of

RewardFunction = Callable[..., Any]


def reward_functions_of(paths: Sequence[str], key: str) -> dict[str, RewardFunction]:
    """Return the functions by their names.

    key: of params.yaml, where the paths stand. Raises UserError if one cannot be imported or called, or two have the same name.
    """
    functions: dict[str, RewardFunction] = {}
    for path in paths:
        function = imported(path, key)
        if not callable(function):
            raise UserError(f"{key}: {path} is not a function: name one that takes environments and **row.")
        name = getattr(function, "__name__", type(function).__name__)
        if name in functions:
            raise UserError(
                f"{key}: two functions are called {name}: rename one, since rewards are told apart by name."
            )
        functions[name] = function
    return functions


async def rewards_by(
    functions: Mapping[str, RewardFunction],
    environment: object,
    row: Mapping[str, Any],
    completion: Sequence[Mapping[str, Any]],
) -> dict[str, float]:
    """Return each function's reward of the attempt, without those that return None.

    Raises InfrastructureFailure if one of them raises, UserError if one returns anything but a list of one finite number.
    """
    columns = {f"{name}s" if name == "prompt" else name: [value] for name, value in row.items()}
    given = {**columns, "completions": [list(completion)], "environments": [environment]}
    return {
        name: reward
        for name, function in functions.items()
        if (reward := _reward(name, await trusted_result_of(function, given))) is not None
    }


def _reward(name: str, returned: Any) -> float | None:
    """Return the one number of a list, of any kind of list and number."""
    try:
        (reward,) = returned
        return None if reward is None else as_reward(reward)
    except (TypeError, ValueError):
        raise UserError(
            f"{name} returns {brief(returned)} for one attempt: return a list of one finite number below 1e30."
        ) from None
    except Exception as error:  # the border to other people's code: a generator works when it is read
        raise InfrastructureFailure(f"{name} raised {type(error).__name__}: {error}") from error
