"""Warnings of reward hacking while a run trains."""

import logging

from dagrpo.rewards.hacking import WINDOW, hacked
from dagrpo.trainer.state.records import Record
from dagrpo.utils.console import say

logger = logging.getLogger(__name__)


class HackingWarnings:
    """Watcher of a run's recorded metrics, which warns once of each component that rises while accuracy falls."""

    def __init__(self, what: str) -> None:
        """Start to watch. what: the run, such as "train (seed 1)"."""
        self._what = what
        self._warned: set[str] = set()
        self._rows: list[dict[str, float]] = []  # of the steps from 1 on

    def warn(self, step: int, record: Record) -> None:
        """Warn on the screen and in the log, as of every WINDOW-th step, from 1."""
        if step % WINDOW:
            return
        rows = self._rows
        rows += [record.metrics(number) for number in range(len(rows) + 1, step + 1)]
        for found in hacked({name: [row[name] for row in rows] for name in rows[0]}):
            if found.component not in self._warned:
                self._warned.add(found.component)
                sentence = f"{self._what}, step {step}: {found}."
                logger.warning(sentence)
                say(sentence)
