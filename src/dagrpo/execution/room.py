"""Check of the memory plan before a stage trains.

Refuses what `dagrpo plan` refuses.
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagrpo.errors import UserError
from dagrpo.execution.record import configuration_of
from dagrpo.params.runtime import Runtime

if TYPE_CHECKING:
    from dagrpo.params.schema import Params

TRAINING = frozenset({"sft", "train"})  # stages
ALL_THE_SAME = "To run it all the same, set runtime.training.require_room to false."


def require_planned_room(options: Namespace, runtime: Runtime) -> None:
    """Raise UserError if the plan of the whole experiment exceeds the visible GPUs, with what to change.

    Checks nothing if runtime.training.require_room is false, or the plan lacks data: a stage started by hand has no configuration,
    and a driver may not report how much memory there is.
    """
    configuration = configuration_of(options)
    if not runtime.training.require_room or not configuration:
        return
    # Imported here: they load torch, which other stages do without.
    from dagrpo.plan.machine import machine_for
    from dagrpo.plan.memory import Models
    from dagrpo.plan.remedy import refusal

    try:
        params, machine = whole_params(configuration, runtime), machine_for(None, None)
        refused = refusal(params, Models.of(params), machine)
    except UserError:  # the stage itself reports faults of its inputs
        return
    if refused is not None:
        raise UserError(f"{refused} {ALL_THE_SAME}")


def whole_params(configuration: Mapping[str, Any], runtime: Runtime) -> "Params":
    """Return an experiment's parameters from those that are not the defaults, by dotted key, and section runtime."""
    from dagrpo.params.overlay import merged
    from dagrpo.params.schema import Params, parse

    own: dict[str, Any] = {"runtime": runtime.model_dump()}
    for key, value in configuration["changed"].items():
        section = own
        *above, last = key.split(".")
        for name in above:
            section = section.setdefault(name, {})
        section[last] = value
    return parse(merged(Params().model_dump(), own))
