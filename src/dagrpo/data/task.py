"""Tasks: data set, prompt form, verifier and tools; and their registry."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagrpo.core.errors import UserError, require_arguments
from dagrpo.core.plugins import Plugins
from dagrpo.core.types import Row
from dagrpo.data.datasets import PACKAGED
from dagrpo.data.source import Source
from dagrpo.tools import TOOLS
from dagrpo.tools.retrieval import Passage
from dagrpo.tools.simulated_users import INTERACTIONS

if TYPE_CHECKING:
    from dagrpo.data.config import Data


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRows:
    """All rows of a task before filtering, and their source."""

    splits: Mapping[str, Sequence[Row]]  # train, test, and validation where the source has one
    source: str
    origin: str  # "hub", "mirror" or "generator"
    revision: str | None  # commit on the hub
    files: Mapping[str, str]  # raw file -> sha256; <file>#<column> -> sha256 over the pictures that it names
    expected: Mapping[str, int]  # split -> rows of the whole source, copies not counted; none where not known
    read: Mapping[str, int]  # split -> rows read, exact copies included
    held_out: bool = False  # no test split in the source: data.held_out problems of train become one
    levels: Sequence[str] = ()  # where a row's `ability` is its level: all of them
    passages: Sequence[Passage] = ()  # of all splits, for a tool that searches
    untested: bool = False  # as in Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A data set in one prompt form. `load` and `load_tests` raise UserError on bad raw data."""

    name: str
    load: Callable[["Data"], TaskRows]
    verifier: str
    tools: tuple[str, ...] = ()  # names of plug-ins (tools/)
    interaction: str = ""  # name of the plug-in that is the simulated user (tools/simulated_users/); "": none
    images: bool = False  # the prompts have pictures
    # As `load`, with the test split alone, where that reads less; None: the test split is a part of what `load` reads.
    load_tests: Callable[["Data"], TaskRows] | None = None
    source: Source | None = None  # None: the rows are generated, or a plug-in of one's own reads them
    files: tuple[str, ...] = ()  # that `load` or `to_row` opens itself: paths from the working directory
    # Mean tokens of a prompt by Qwen3's tokenizer and chat template, for `dagrpo plan` before data are prepared; None: not counted.
    prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise UserError, with file and line, for a `load` that takes other arguments, or `tools` or `files` that are no tuple."""
        require_arguments("load", self.load, "params")
        if self.load_tests is not None:
            require_arguments("load_tests", self.load_tests, "params")
        for field in ("tools", "files"):
            names: object = getattr(self, field)
            if isinstance(names, str):
                raise UserError(f"task {self.name}: `{field}` is {names!r}, not a tuple of names: write ({names!r},).")

    @property
    def oracle(self) -> bool:
        """Return whether a tool or the simulated user knows the ground truth, which makes a score meaningless for the policy.

        Raises UserError if one of them does not exist.
        """
        user = bool(self.interaction) and INTERACTIONS.get(self.interaction).oracle
        return user or any(TOOLS.get(name).oracle for name in self.tools)


def chat(user: str, system: str = "") -> tuple[dict[str, str], ...]:
    """Return a prompt of one user turn, after a system turn if `system` is not empty."""
    opening = ({"role": "system", "content": system},) if system else ()
    return (*opening, {"role": "user", "content": user})


TASKS: Plugins[Task] = Plugins(
    what="task",
    package="dagrpo.data.datasets",
    attribute="TASKS",
    group="dagrpo.tasks",
    key="experiment.train, evaluate and tasks",
    kind=Task,
    several=True,
    packaged=PACKAGED,
    separator=".",
)


def get_task(name: str) -> Task:
    """Return the task of that name, under that name. Raises UserError, with the nearest known name, for an unknown one."""
    task = TASKS.get(name)
    return task if task.name == name else _called(name, task)


def _called(name: str, task: Task) -> Task:
    """Return the task under another name, which its rows also get."""

    def renamed(load: Callable[["Data"], TaskRows]) -> Callable[["Data"], TaskRows]:
        return lambda params: _with_task(load(params), name)

    load_tests = None if task.load_tests is None else renamed(task.load_tests)
    return replace(task, name=name, load=renamed(task.load), load_tests=load_tests)


def _with_task(task_rows: TaskRows, name: str) -> TaskRows:
    splits = {split: [replace(row, task=name) for row in rows] for split, rows in task_rows.splits.items()}
    return replace(task_rows, splits=splits)
