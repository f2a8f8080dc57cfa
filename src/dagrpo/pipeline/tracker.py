"""Records of executions beside the results, by the package dagrpo_mlflow."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

from dagrpo.core.plugins import entry_points


class Tracker(Protocol):
    """A record of stages at work, failed and finished. Cannot change an output."""

    def noted(
        self, record: Mapping[str, Any], configuration: Mapping[str, Any], facts: Mapping[str, str], log: Path
    ) -> AbstractContextManager[str]:
        """Note an execution while it works, and for good if it fails; yield the note's name, which may be empty.

        record: of provenance.json, with the paths of all outputs; facts: commit, versions, hardware.
        Raises UserError, before any work, if the record cannot be kept.
        """

    def record_what_is_new(self, every_s: float = 0) -> str:
        """Record new results unless the last call is less than `every_s` seconds ago; return why that failed, and raise nothing."""

    def follow_jobs(self, experiments: Collection[str]) -> None:
        """Follow the stages of experiments that work in jobs of SLURM."""

    def leave_database_to_the_head(self) -> None:
        """Keep the stages of this process from writing a database, which several machines would damage on a shared disk."""


def tracker() -> Tracker | None:
    """Return the installed tracker; None without the package, and nothing is recorded beside the results then."""
    return next((cast(Tracker, point.load()) for point in entry_points("dagrpo.trackers")), None)
