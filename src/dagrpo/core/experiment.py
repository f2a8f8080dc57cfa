"""Section `experiment`: name, seeds and tasks.

The workflow reads it to lay out the DAG; of the stages only prepare does.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Annotated, Any, Self, TypeVar

from pydantic import Discriminator, Field, Tag, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import Section, Seed

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*(~[a-z0-9_]+)?$", max_length=64)]
TaskName = Annotated[str, Field(pattern=r"^[a-z0-9][A-Za-z0-9_.-]*$", max_length=64)]  # also my_lab.capitals.TASK

Tasks = Annotated[list[TaskName], Field(min_length=1, max_length=100)]
MOST = 1_000_000  # of a share
RelativeShare = Annotated[float, Field(ge=0, le=MOST)]
Shares = Annotated[dict[TaskName, RelativeShare], Field(min_length=1, max_length=100)]
SMALLEST_SHARE = 1e-6  # to which a mixture is exact
Train = str | Sequence[str] | Mapping[str, float]
T = TypeVar("T")


def _kind(value: Any) -> str:
    return "[list]" if isinstance(value, list) else "[shares]" if isinstance(value, dict) else "[name]"


def tasks_of(train: Train) -> tuple[str, ...]:
    """Return the tasks that a value of experiment.train names, sorted: in a file of JSON, shares have no other order."""
    return (train,) if isinstance(train, str) else tuple(sorted(train))


def shares_of(train: Train) -> dict[str, float]:
    """Return the positive shares in a value of experiment.train, with the sum 1; {} where the tasks count by their sizes."""
    if not isinstance(train, Mapping):
        return {}
    whole = sum(train.values())
    return {task: share / whole for task, share in sorted(train.items()) if share / whole}


def in_lowest_terms(train: Train) -> Train:
    """Return the one value of all that give the same batches: a name alone, sorted names, or shares as the smallest whole numbers.

    Shares whose numbers would be too large stay as they are.
    """
    if len(tasks_of(train)) == 1:
        return tasks_of(train)[0]
    if not isinstance(train, Mapping):
        return list(tasks_of(train))
    shares = {task: Fraction(str(train[task])) for task in tasks_of(train)}
    scale = lcm(*(share.denominator for share in shares.values()))
    numbers = {task: int(share * scale) for task, share in shares.items()}
    whole = {task: number // gcd(*numbers.values()) for task, number in numbers.items()}
    return {task: float(number) for task, number in whole.items()} if max(whole.values()) <= MOST else train


def learned(train: Train, values: Sequence[T]) -> dict[str, T]:
    """Return the value of each task that the trainer sees, without those of share 0. `values`: of all tasks, sorted."""
    shares = shares_of(train)
    return {task: value for task, value in zip(tasks_of(train), values, strict=True) if task in shares or not shares}


def as_params(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded parameters as params.yaml has them.

    Records of the stage prepare have `experiment.train_tasks` in place of `train` with its shares; it stays where the two differ.
    """
    experiment = recorded.get("experiment", {})
    if not isinstance(tasks := experiment.get("train_tasks"), list) or not tasks:
        return dict(recorded)
    train = experiment.get("train", tasks[0] if len(tasks) == 1 else tasks)
    if sorted(map(str, [train] if isinstance(train, str) else train)) != tasks:
        return dict(recorded)
    return {**recorded, "experiment": {k: v for k, v in experiment.items() if k != "train_tasks"} | {"train": train}}


def task_metric(task: str, what: str) -> str:
    """Return the name of a figure of one task in a mixture."""
    return f"task/{task}/{what}"


def tasks_among(names: Iterable[str]) -> list[str]:
    """Return the tasks of a mixture whose own metrics are among recorded ones, in their order; [] of a single task."""
    return list(dict.fromkeys(name.split("/")[1] for name in names if name.startswith("task/")))


class Experiment(Section):
    name: Name = Field(
        "arithmetic_tiny",
        description="Name of the experiment: of the folders data/<name>, models/<name> and results/<name>, and in MLflow. "
        "`--config experiment__name=NAME~WORD` names an override run.",
    )
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=1000)] = Field(
        [0], description="Seeds, one independent training run each; the report gives intervals over them."
    )
    train: Annotated[
        Annotated[TaskName, Tag("[name]")] | Annotated[Tasks, Tag("[list]")] | Annotated[Shares, Tag("[shares]")],
        Discriminator(_kind),
    ] = Field(
        "arithmetic",
        description="Task whose train split the policy learns from; a list of several, which count by their sizes; or each with its "
        "share of a batch, such as {gsm8k: 0.5, math: 0.5}.",
    )
    evaluate: Tasks = Field(
        ["arithmetic"], description="Tasks on whose test split the base and the trained policy are scored."
    )
    tasks: Tasks = Field(
        ["arithmetic"],
        description="Every task to prepare: all of `train` and of `evaluate`, each once. DVC needs this list.",
    )

    @property
    def train_tasks(self) -> tuple[str, ...]:
        """Return the tasks to learn from, also those of share 0, sorted."""
        return tasks_of(self.train)

    @property
    def shares(self) -> dict[str, float]:
        """Return the positive shares of these tasks, with the sum 1; {} where they count by their sizes."""
        return shares_of(self.train)

    @model_validator(mode="after")
    def _check_lists(self) -> Self:
        for key in ("train", "seeds", "evaluate", "tasks"):
            values = getattr(self, key)
            if isinstance(values, list) and len(values) != len(set(values)):
                raise UserError(f"experiment.{key} contains duplicates: {values}; name each once")
        if isinstance(self.train, dict) and not any(self.train.values()):
            raise UserError("experiment.train has only shares of 0: give one of its tasks a positive share")
        shares = self.train if isinstance(self.train, dict) else {}
        if small := [task for task, share in shares.items() if 0 < share < SMALLEST_SHARE * sum(shares.values())]:
            raise UserError(
                f"experiment.train gives {small[0]} less than a millionth of a batch: give it a larger share, or 0 to leave it out"
            )
        needed = {*self.train_tasks, *self.evaluate}
        if set(self.tasks) != needed:
            raise UserError(f"experiment.tasks must list exactly train and evaluate: set it to {sorted(needed)}")
        return self
