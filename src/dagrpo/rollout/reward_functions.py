"""Reward functions in the form that TRL made common, asked about one attempt at a time.

Each gets lists of one: `prompts`, `completions` (chat messages), `environments` and every column of the problem's row, and
returns a list of one number. Not here: TRL's `trainer_state`, `log_extra` and `log_metric`, which it passes as well.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dagrpo.errors import UserError
from dagrpo.rewards.reporting import as_reward
from dagrpo.rollout.toolbox.own_code import imported, trusted_result_of
from dagrpo.rollout.tools import InfrastructureFailure
from dagrpo.visible import shown

RewardFunction = Callable[..., Any]


def reward_functions_of(paths: Sequence[str], key: str) -> dict[str, RewardFunction]:
    """The functions by their names. UserError: one cannot be imported or called, or two have the same name.

    key: of params.yaml, where the paths stand.
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
    """What each function says of the attempt; nothing where it says None. InfrastructureFailure: one of them raised.

    UserError: what one of them returns is not a list of one finite number.
    """
    columns = {f"{name}s" if name == "prompt" else name: [value] for name, value in row.items()}
    given = {**columns, "completions": [list(completion)], "environments": [environment]}
    return {
        name: reward
        for name, function in functions.items()
        if (reward := _reward(name, await trusted_result_of(function, given))) is not None
    }


def _reward(name: str, returned: Any) -> float | None:
    """The one number of a list, whatever kind of list and number it is."""
    try:
        (reward,) = returned
        return None if reward is None else as_reward(reward)
    except (TypeError, ValueError):
        raise UserError(
            f"{name} returns {shown(returned)} for one attempt: return a list of one finite number below 1e30."
        ) from None
    except Exception as error:  # the border to other people's code: a generator works when it is read
        raise InfrastructureFailure(f"{name} raised {type(error).__name__}: {error}") from error
