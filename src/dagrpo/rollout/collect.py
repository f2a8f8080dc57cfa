"""Sample trajectories for training, difficulty and evaluation.

Two orders of work give the same records. In lockstep the same seeds give the same tokens, to the bit. Free-running is
faster, and repeatable up to the rounding of matrix products.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dagrpo.core.escape import one_line
from dagrpo.core.trajectory import Prompt, Trajectory
from dagrpo.engine.interface import RolloutEngine
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.rollout.sampling import Sampling
from dagrpo.rollout.schedule import OnBatch, SeedOf, attempts_at, free_running, in_lockstep
from dagrpo.utils.console import say

LONGEST_FAULT = 240  # characters that are shown
logger = logging.getLogger(__name__)


def collect(
    prompts: Sequence[Prompt],
    sampling: Sampling,
    seed_of: SeedOf,
    *,
    engine: RolloutEngine,
    agent: OpenAgent,
    on_batch: OnBatch = lambda trajectories: None,
) -> list[Trajectory]:
    """Return all trajectories; per prompt the greedy one if any, then sample 0, 1, ...

    `seed_of(position, sample_index)` seeds the first completion of an attempt; `position` is the index in `prompts`, where a prompt may
    appear twice. `on_batch` is called with trajectories as they finish. Raises ServerError if the engine fails.
    """
    order_of_work = in_lockstep if sampling.lockstep else free_running
    return agent.run(order_of_work(attempts_at(prompts, sampling, seed_of), sampling, engine, agent, on_batch))


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
        here, log = Path.cwd(), self._log
        return f"{fault} ({log.relative_to(here) if log.is_relative_to(here) else log})" if log.exists() else fault
