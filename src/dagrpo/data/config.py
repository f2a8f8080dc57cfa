"""Section `data`: sources of raw data, and the amount used.

Read by the prepare stage. A generated task has a section in it, named after its module: the class Config of that module.
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, create_model, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.experiment import Experiment
from dagrpo.core.plugins import entry_points
from dagrpo.core.section import MOST_TOKENS, Count, Section, Share
from dagrpo.data import datasets

DATASETS = "dagrpo.data.datasets"
ConfigType = TypeVar("ConfigType", bound=Section)


class Sources(Section):
    """Keys that do not depend on a task."""

    mirror: str | None = Field(
        None,
        description="Folder with local copies of the hub's data sets (<mirror>/gsm8k/train.jsonl, ...); null: the hub.",
    )
    max_train: Count | None = Field(
        None,
        description="Keep only the first rows of each train split; null: all. The card has the number of dropped rows.",
    )
    max_test: Count | None = Field(None, description="Keep only the first rows of each test split; null: all.")
    held_out: Count = Field(
        512,
        description="Number of test problems to hold out from a data set without a test split, selected by a hash of the question.",
    )
    held_out_validation: Annotated[int, Field(ge=0, le=100_000_000)] = Field(
        0,
        description="Number of train problems to hold out as the validation rows of an evaluated task without any, selected in the same "
        "way among those that share no run of words with a test problem: for evaluation.choose and training.evaluate_every. Train problems "
        "of all tasks that share a run with a validation row are dropped.",
    )
    unreadable_answers: Literal["refuse", "drop"] = Field(
        "refuse",
        description="Treatment of a ground truth that the task's verifier cannot parse, and of a source's own answer in another form: "
        "refuse the data, or drop the row and report it.",
    )
    contamination: Literal["report", "drop"] = Field(
        "report",
        description="Report or drop train problems that share a run of words with a test problem of experiment.evaluate.",
    )
    contamination_words: Annotated[int, Field(ge=5, le=1000)] = Field(
        13, description="Length of such a run, in words of the normalised text."
    )
    max_prompt_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = Field(
        None, description="Drop problems whose prompt, tools included, has more tokens; null: keep all."
    )
    pass_rates: str | None = Field(
        None,
        description="Path of an earlier experiment's difficulty.parquet, which has the pass rates of the problems; null: none.",
    )
    min_pass_rate: Share = Field(
        0.0, description="Drop train problems with a known pass rate below this, which are too hard to learn from."
    )
    max_pass_rate: Share = Field(
        1.0, description="Drop train problems with a known pass rate above this, which are too easy to learn from."
    )

    @model_validator(mode="after")
    def _mirror_is_not_empty(self) -> Self:
        if self.mirror == "":
            raise UserError("data.mirror is empty: give a folder, or null to use the hub")
        return self

    @model_validator(mode="after")
    def _pass_rates_are_a_range(self) -> Self:
        if self.min_pass_rate > self.max_pass_rate:
            raise UserError(
                f"data.min_pass_rate ({self.min_pass_rate}) is above data.max_pass_rate ({self.max_pass_rate}): swap them"
            )
        return self

    def check(self, experiment: Experiment) -> None:
        """Raise UserError if pass rates are an output of this experiment."""
        if self.pass_rates and f"results/{experiment.name}/" in self.pass_rates:
            raise UserError(
                f"data.pass_rates is {self.pass_rates}, which this experiment makes out of the data itself: give "
                "another experiment's file, or choose with training.min_pass_rate and max_pass_rate"
            )

    def has_validation(self, task: str) -> bool:
        """Return True if a task has validation rows: of its source, or held out of its train rows."""
        from dagrpo.data.task import get_task

        source = get_task(task).source
        files = {"train": ""} if source is None else source.mirror_files
        return "validation" in files or ("train" in files and self.held_out_validation > 0)

    def section(self, config: type[ConfigType]) -> ConfigType:
        """Return the section of a generated task, by its class."""
        return next(value for _, value in self if type(value) is config)


def _generated_tasks() -> dict[str, Any]:
    """Return a field for each module of a generated task, here and in the packages beside dagrpo."""
    modules = {module.name: f"{DATASETS}.{module.name}" for module in pkgutil.iter_modules(datasets.__path__)}
    modules |= {point.name: point.module for point in entry_points("dagrpo.tasks") if point.name in datasets.PACKAGED}
    # Imported by name: an import statement would put every task into the code of every stage, and so into its identity.
    configs = {name: getattr(import_module(module), "Config", None) for name, module in sorted(modules.items())}
    return {
        name: (config, Field(config(), description=(config.__doc__ or "").partition("\n")[0]))
        for name, config in configs.items()
        if config is not None
    }


if TYPE_CHECKING:

    class Data(Sources):
        """Sources, and the section of each generated task."""

        def __init__(self, **values: Any) -> None: ...

else:
    Data = create_model("Data", __base__=Sources, **_generated_tasks())
