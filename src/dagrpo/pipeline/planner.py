"""Estimates of an experiment, by the package dagrpo_plan."""

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from dagrpo.config.schema import Params
from dagrpo.core.plugins import entry_points


class Planner(Protocol):
    """Estimates of an experiment before it runs."""

    def minutes_on(self, params: Params, gpus: Sequence[str]) -> Mapping[str, float]:
        """Return the longest minutes of one run of each stage on the slowest of these GPUs; {} if that is not known."""

    def refusal(self, params: Params) -> str | None:
        """Return in one sentence why the experiment cannot run on this machine, and what to change; None if it may run."""

    def disk(self, params: Params) -> int:
        """Return the bytes on disk of the whole experiment. Raises UserError without a model's config."""

    def gpu_here(self) -> tuple[str, str] | None:
        """Return the preset and the name of this machine's GPU; None without one that is known."""


def planner() -> Planner | None:
    """Return the installed planner; None without the package, and nothing is estimated then."""
    return next((cast(Planner, point.load()) for point in entry_points("dagrpo.planners")), None)
