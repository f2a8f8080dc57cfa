"""Attempts whose program failed: a stage goes on through them, and says so once.

Not here: a step in which all of them failed, which stops a training (trainer/gates.py).
"""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dagrpo.console import say
from dagrpo.rollout.trajectory import Trajectory
from dagrpo.visible import one_line

LONGEST_FAULT = 240  # characters that are shown
logger = logging.getLogger(__name__)


class FailedPrograms:
    """Looks at the attempts of a stage as they are made."""

    def __init__(self, agent_folder: Path) -> None:
        self._log = agent_folder / "program.log"
        self._has_warned = False

    def warn(self, what: str, trajectories: Sequence[Trajectory]) -> None:
        """Say it of the first attempts among which some failed, on the screen and in the log; of later ones no more.

        what: whose attempts these are, such as "train (seed 1), step 3".
        """
        faults = [trajectory.fault for trajectory in trajectories if trajectory.stop_reason == "program_failed"]
        if self._has_warned or not faults:
            return
        self._has_warned = True
        sentence = f"{what}: {len(faults)} of {len(trajectories)} attempts ended with program_failed, such as: {self._of(faults)}"
        logger.warning(sentence)
        say(sentence)

    def _of(self, faults: Sequence[str]) -> str:
        """The most frequent fault, and where the program's errors are if it has written any."""
        fault = one_line(Counter(faults).most_common(1)[0][0], LONGEST_FAULT)
        return f"{fault} ({_from_here(self._log)})" if self._log.exists() else fault


def _from_here(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
