"""Estimates of an experiment before it runs, for dagrpo itself."""

from collections.abc import Mapping, Sequence

from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo_plan.machine import machine_for
from dagrpo_plan.memory import disk_of
from dagrpo_plan.models import Models
from dagrpo_plan.outcome import minutes_on
from dagrpo_plan.remedy import refusal


class _Planner:
    """The planner of this package, for dagrpo's entry points."""

    def minutes_on(self, params: Params, gpus: Sequence[str]) -> Mapping[str, float]:
        """Return the longest minutes of one run of each stage on the slowest of these GPUs; {} if that is not known."""
        return minutes_on(params, gpus)

    def refusal(self, params: Params) -> str | None:
        """Return in one sentence why the experiment cannot run on this machine, and what to change; None if it may run."""
        return refusal(params, Models.of(params), machine_for(None, None))

    def disk(self, params: Params) -> int:
        """Return the bytes on disk of the whole experiment. Raises UserError without a model's config."""
        return sum(each.bytes for each in disk_of(params, Models.of(params)))

    def gpu_here(self) -> tuple[str, str] | None:
        """Return the preset and the name of this machine's GPU; None without one that is known."""
        try:
            machine = machine_for(None, None)
        except UserError:  # nothing says what GPUs they are
            return None
        if machine.gpu is None or machine.gpu.hardware is None:
            return None
        return machine.gpu.hardware, machine.name


PLANNER = _Planner()
