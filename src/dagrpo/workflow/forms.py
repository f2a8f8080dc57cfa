"""What the tasks of an experiment ask of the other parameters: refused before any work, in a sentence."""

from dagrpo.errors import UserError
from dagrpo.params.schema import Params
from dagrpo.rewards.components import COMPONENTS
from dagrpo.tasks.registry import get_task


def require_fitting_tasks(params: Params) -> None:
    """UserError when a task is unknown, an evaluation would hand out answers, or a reward could never be earned."""
    for name in params.experiment.tasks:
        get_task(name)
    for name in params.experiment.evaluate:
        if get_task(name).oracle:
            raise UserError(
                f"experiment.evaluate names {name}, which tells the policy whether its answer is right, so that its score "
                "would say nothing: evaluate the task in a form without that help."
            )
    _require_tools(params)


def _require_tools(params: Params) -> None:
    task = get_task(params.experiment.train)
    for name, config in params.reward.components.items():
        if COMPONENTS.get(name).needs_tools and config.weight and not task.tools:
            raise UserError(
                f"reward.components.{name}.weight is {config.weight}, but {task.name} offers no tool to call: set it to 0.0, "
                "or train on a task with tools."
            )


def require_single_turn(name: str) -> None:
    """UserError when the task's rollouts take more than one turn of text, which neither train nor sample does."""
    needs = get_task(name).needs
    if needs:
        raise UserError(
            f"{name} needs rollouts with {' and '.join(needs)}, and train and sample make single turns of text: choose a "
            "single-turn form of it, or make its data alone with `snakemake prepared`."
        )
