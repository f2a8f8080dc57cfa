"""Section `data`: sources of raw data, and the amount used.

Read by the prepare stage.
"""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import MOST_TOKENS, Section, Seed, Share, Unchecked

if TYPE_CHECKING:
    from dagrpo.config.schema import Params

Level = Literal["sum_1_digit", "sum_2_digit", "difference_2_digit", "sum_3_terms"]
ShapesLevel = Literal["count", "colour", "length"]
Problems = Annotated[int, Field(ge=1, le=100_000_000)]


class GeneratedTask(Section):
    """Keys of a task whose problems are generated."""

    def check(self, params: "Params") -> None:
        """Raise UserError if the other parameters do not fit. Called when params.yaml is read."""


class Arithmetic(Section):
    seed: Seed = Field(0, description="Seed of the problem generator.")
    train: Problems = Field(4000, description="Number of training problems, over all levels.")
    test: Problems = Field(500, description="Number of held-out problems; none of them is in train.")
    levels: Annotated[list[Level], Field(min_length=1, max_length=4)] = Field(
        ["sum_1_digit", "sum_2_digit", "difference_2_digit", "sum_3_terms"],
        description="Kinds of problem, in equal parts as far as a kind has that many distinct problems.",
    )


class ArithmeticTool(Section):
    seed: Seed = Field(0, description="Seed of the problem generator.")
    train: Annotated[int, Field(ge=1, le=400_000)] = Field(10_000, description="Number of training problems.")
    test: Annotated[int, Field(ge=1, le=100_000)] = Field(
        500, description="Number of held-out problems; none of them is in train."
    )
    demonstrated_calls: Share = Field(
        0.33, description="Share of the training problems whose demonstration calls the tool; the rest answer at once."
    )


class Worlds(Section):
    seed: Seed = Field(0, description="Seed of both worlds.")
    train_people: Annotated[int, Field(ge=2, le=20_000)] = Field(
        4000, description="People of the world that is trained on; there are as many firms and as many places."
    )
    test_people: Annotated[int, Field(ge=2, le=20_000)] = Field(
        100, description="People of the held-out world, no name of which is in the other."
    )
    hops: Annotated[list[Literal[1, 2, 3]], Field(min_length=1, max_length=3)] = Field(
        [1, 2, 3],
        description="How many passages a question leads through; per person there are 3, 2 and 1 such questions.",
    )
    demonstrated_calls: Share = Field(
        0.5, description="Share of the training problems whose demonstration searches; the rest answer at once."
    )


class PythonMath(Section):
    seed: Seed = Field(0, description="Seed of the problem generator.")
    train: Annotated[int, Field(ge=1, le=8000)] = Field(6000, description="Number of training problems.")
    test: Annotated[int, Field(ge=1, le=2000)] = Field(
        300, description="Number of held-out problems; none of them is in train."
    )
    demonstrated_calls: Share = Field(
        0.5, description="Share of the training problems whose demonstration runs a program; the rest answer at once."
    )


class Shapes(GeneratedTask):
    seed: Seed = Field(0, description="Seed of the generator that draws the pictures.")
    train: Annotated[int, Field(ge=2, le=100_000)] = Field(4000, description="Number of training problems.")
    test: Annotated[int, Field(ge=2, le=20_000)] = Field(
        300, description="Number of held-out problems; none of their pictures is in train."
    )
    levels: Annotated[list[ShapesLevel], Field(min_length=1, max_length=3)] = Field(
        ["count", "colour", "length"],
        description="What is asked, in turn: how many shapes there are, which colour one has, how long a labelled line is.",
    )
    swapped: bool = Field(
        False,
        description="Control experiment: permute the pictures among the problems of a split, so that the text alone is left.",
    )

    @model_validator(mode="after")
    def _levels_are_distinct(self) -> Self:
        for level in self.levels:
            if self.levels.count(level) > 1:
                raise UserError(f"data.shapes.levels lists {level} twice: list each level once")
        return self

    def check(self, params: "Params") -> None:
        """Raise UserError if both controls are on: a lower score would not show which of them is the reason."""
        if self.swapped and params.reward.permuted:
            raise UserError(
                "reward.permuted and data.shapes.swapped are both true, and a score that falls would not say which of them is the reason: "
                "set one of them to false"
            )


class VerifiersTaskset(Section):
    taskset: str = Field("", description="Module of the taskset, as rollout.agent.taskset names it.")
    parameters: Unchecked = Field({}, description="Of the taskset, as in rollout.agent.parameters.")
    train: Problems = Field(64, description="Tasks to train on, after those that are held out.")
    test: Problems = Field(16, description="Tasks that are held out: the taskset's first.")


class Data(Section):
    mirror: str | None = Field(
        None,
        description="Folder with local copies of the hub's data sets (<mirror>/gsm8k/train.jsonl, ...); null: the hub.",
    )
    max_train: Problems | None = Field(
        None,
        description="Keep only the first rows of each train split; null: all. The card has the number of dropped rows.",
    )
    max_test: Problems | None = Field(None, description="Keep only the first rows of each test split; null: all.")
    held_out: Problems = Field(
        512,
        description="Number of test problems to hold out from a data set without a test split, selected by a hash of the question.",
    )
    unreadable_answers: Literal["refuse", "drop"] = Field(
        "refuse",
        description="What to do if the task's verifier cannot read a ground truth: refuse the data, or drop the row and report it.",
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
    arithmetic: Arithmetic = Field(Arithmetic(), description="The generated arithmetic problems.")
    arithmetic_tool: ArithmeticTool = Field(
        ArithmeticTool(), description="Generated products and sums, with a calculator or without."
    )
    worlds: Worlds = Field(Worlds(), description="Questions about made-up people, firms and places, with a search.")
    python_math: PythonMath = Field(PythonMath(), description="Numbers that a short program gives.")

    shapes: Shapes = Field(Shapes(), description="Questions about small pictures that are drawn.")
    verifiers: VerifiersTaskset = Field(VerifiersTaskset(), description="The tasks of a taskset of `verifiers`.")

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
