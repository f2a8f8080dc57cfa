"""Warn once about attempts whose program failed; the stage continues.

The checks in trainer/checks/ stop a training step in which all of them failed.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dagrpo.core.escape import one_line
from dagrpo.rollout.trajectory import Trajectory
from dagrpo.utils.console import say

LONGEST_FAULT = 240  # characters that are shown
logger = logging.getLogger(__name__)


class FailedPrograms:
    """Watcher of a stage's attempts as they finish."""

    def __init__(self, agent_folder: Path) -> None:
        self._log = agent_folder / "program.log"
        self._has_warned = False

    def warn(self, what: str, trajectories: Sequence[Trajectory]) -> None:
        """Warn about the first attempts among which some failed, on the screen and in the log; ignore later ones.

        what: origin of these attempts, such as "train (seed 1), step 3".
        """
        faults = [trajectory.fault for trajectory in trajectories if trajectory.stop_reason == "program_failed"]
        if self._has_warned or not faults:
            return
        self._has_warned = True
        sentence = f"{what}: {len(faults)} of {len(trajectories)} attempts ended with program_failed, such as: {self._of(faults)}"
        logger.warning(sentence)
        say(sentence)

    def _of(self, faults: Sequence[str]) -> str:
        """Return the most frequent fault, and the path of the program's errors if it has written any."""
        fault = one_line(Counter(faults).most_common(1)[0][0], LONGEST_FAULT)
        return f"{fault} ({_from_here(self._log)})" if self._log.exists() else fault


def _from_here(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
