"""The definition of one metric."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure of a run, or several that are named alike."""

    name: str  # with its group; <label> stands for what the run itself names, such as a component of the reward
    unit: str
    meaning: str  # one line

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]

    def covers(self, name: str) -> bool:
        """Return whether a recorded metric's name is this one, or one of this family."""
        fixed = (re.escape(part) for part in re.split(r"<\w+>", self.name))
        return re.fullmatch("[^/]+".join(fixed), name) is not None
