"""Section `experiment`: name, seeds and tasks.

The workflow reads it to lay out the DAG; of the stages only prepare does.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import Section, Seed

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)]


class Experiment(Section):
    name: Name = Field(
        "arithmetic_tiny",
        description="Names the folders data/<name>, models/<name>, results/<name> and the MLflow experiment.",
    )
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=1000)] = Field(
        [0], description="One independent training run per seed; the report draws intervals over them."
    )
    train: Name = Field("arithmetic", description="The task whose train split the policy learns from.")
    evaluate: Annotated[list[Name], Field(min_length=1, max_length=100)] = Field(
        ["arithmetic"], description="The tasks on whose test split the base and the trained policy are scored."
    )
    tasks: Annotated[list[Name], Field(min_length=1, max_length=100)] = Field(
        ["arithmetic"],
        description="Every task to prepare: `train` and all of `evaluate`, each once (DVC needs the list).",
    )

    @model_validator(mode="after")
    def _lists_agree(self) -> Self:
        for key in ("seeds", "evaluate", "tasks"):
            values = getattr(self, key)
            if len(values) != len(set(values)):
                raise UserError(f"experiment.{key} names something twice: {values}; name each once")
        needed = {self.train, *self.evaluate}
        if set(self.tasks) != needed:
            raise UserError(
                f"experiment.tasks must list train and evaluate, no more and no less: set it to {sorted(needed)}"
            )
        return self
