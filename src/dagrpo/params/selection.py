"""Which plug-ins a set of parameters names: their modules are part of the code of the stages that run them."""

from dagrpo.params.schema import Params
from dagrpo.rewards.verifiers import VERIFIERS
from dagrpo.tasks.registry import get_task


def selected_modules(params: Params) -> dict[str, list[str]]:
    """Modules by kind of plug-in."""
    tasks = [get_task(name) for name in params.experiment.tasks]
    names = {task.verifier for task in tasks} | ({params.reward.verifier} - {"task"})
    return {
        "loss": ["dagrpo.algorithms.losses.ppo_clip"],
        "advantage": [f"dagrpo.algorithms.advantages.{params.algorithm.advantage}"],
        "verifier": sorted({VERIFIERS[name].extract.__module__ for name in names}),
        "component": [],
        "task": sorted({task.load.__module__ for task in tasks}),
        "format": [],
    }
