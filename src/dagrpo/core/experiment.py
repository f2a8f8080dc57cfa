"""Section `experiment`: name, seeds and tasks.

The workflow reads it to lay out the DAG; of the stages only prepare does.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import Section, Seed

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*(~[a-z0-9_]+)?$", max_length=64)]
TaskName = Annotated[str, Field(pattern=r"^[a-z0-9][A-Za-z0-9_.-]*$", max_length=64)]  # also my_lab.capitals.TASK


class Experiment(Section):
    name: Name = Field(
        "arithmetic_tiny",
        description="Name of the experiment: of the folders data/<name>, models/<name> and results/<name>, and in MLflow. "
        "`--config experiment__name=NAME~WORD` names an override run.",
    )
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=1000)] = Field(
        [0], description="Seeds, one independent training run each; the report gives intervals over them."
    )
    train: TaskName = Field("arithmetic", description="Task whose train split the policy learns from.")
    evaluate: Annotated[list[TaskName], Field(min_length=1, max_length=100)] = Field(
        ["arithmetic"], description="Tasks on whose test split the base and the trained policy are scored."
    )
    tasks: Annotated[list[TaskName], Field(min_length=1, max_length=100)] = Field(
        ["arithmetic"],
        description="Every task to prepare: `train` and all of `evaluate`, each once. DVC needs this list.",
    )

    @model_validator(mode="after")
    def _check_lists(self) -> Self:
        for key in ("seeds", "evaluate", "tasks"):
            values = getattr(self, key)
            if len(values) != len(set(values)):
                raise UserError(f"experiment.{key} contains duplicates: {values}; name each once")
        needed = {self.train, *self.evaluate}
        if set(self.tasks) != needed:
            raise UserError(f"experiment.tasks must list exactly train and evaluate: set it to {sorted(needed)}")
        return self
