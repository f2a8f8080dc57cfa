"""Check of the memory plan before a stage trains.

Refuses what `dagrpo plan` refuses.
"""

import logging
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagrpo.core.errors import UserError
from dagrpo.pipeline.record import configuration_of
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.failures import words_of

if TYPE_CHECKING:
    from dagrpo.config.schema import Params

logger = logging.getLogger(__name__)
TRAINING = frozenset({"sft", "train"})  # stages
ALL_THE_SAME = "To run it all the same, set runtime.training.require_room to false."


def require_planned_room(options: Namespace, runtime: Runtime) -> None:
    """Raise UserError if the plan of the whole experiment exceeds the visible GPUs, with what to change.

    Checks nothing if runtime.training.require_room is false, or a stage was started by hand, which has no configuration.
    Where the plan cannot be made, a warning says why: a driver may not say how much memory there is.
    """
    configuration = configuration_of(options)
    if not runtime.training.require_room or not configuration:
        return
    # Imported here: they load torch, which other stages do without.
    from dagrpo.pipeline.plan.machine import machine_for
    from dagrpo.pipeline.plan.models import Models
    from dagrpo.pipeline.plan.remedy import refusal

    try:
        params, machine = whole_params(configuration, runtime), machine_for(None, None)
        models = Models.of(params)
        refused = refusal(params, models, machine)
    except Exception as error:  # noqa: BLE001 - a plan that fails is no reason not to train; the stage itself reports wrong inputs
        logger.warning("Whether this experiment fits the GPU was not checked: %s", words_of(error))
        return
    if refused is not None:
        raise UserError(f"{refused} {ALL_THE_SAME}")


def whole_params(configuration: Mapping[str, Any], runtime: Runtime) -> "Params":
    """Return an experiment's parameters from those that are not the defaults, by dotted key, and section runtime."""
    from dagrpo.config.overlay import merged
    from dagrpo.config.schema import Params, parse

    own: dict[str, Any] = {"runtime": runtime.model_dump()}
    for key, value in configuration["changed"].items():
        section = own
        *above, last = key.split(".")
        for name in above:
            section = section.setdefault(name, {})
        section[last] = value
    return parse(merged(Params().model_dump(), own))
