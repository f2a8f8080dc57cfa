"""The kinds of plug-in that `dagrpo new` writes, and their folders."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A kind of plug-in to write."""

    TASK = "task"
    VERIFIER = "verifier"
    LOSS = "loss"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folders of a kind in this repository."""

    package: str  # dotted, of the folder in which plug-ins are found
    tests: str  # the folder of its tests
    docs: str  # where it is described


PLACES = {
    Kind.TASK: Place(package="dagrpo.data.datasets", tests="tests/data/datasets", docs="docs/tasks.md"),
    Kind.VERIFIER: Place(package="dagrpo.rewards.verifiers", tests="tests/rewards/verifiers", docs="docs/rewards.md"),
    Kind.LOSS: Place(package="dagrpo.algorithms.losses", tests="tests/algorithms", docs="docs/algorithms.md"),
    Kind.TOOL: Place(package="dagrpo.tools", tests="tests/tools", docs="docs/tools.md"),
}

SELECTED_BY = {  # what params.yaml, or a task, says
    Kind.TASK: "experiment: {{train: {name}, evaluate: [{name}], tasks: [{name}]}}",
    Kind.VERIFIER: 'reward: {{verifier: {name}}}, or a task with verifier="{name}"',
    Kind.LOSS: "algorithm: {{loss: {{name: {name}}}}}",
    Kind.TOOL: 'a task with tools=("{name}",)',
}
