"""Section `data`: where raw data comes from and how much of it is used. Read by the prepare stage."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.params.base import Section

Level = Literal["sum_1_digit", "sum_2_digit", "difference_2_digit", "sum_3_terms"]


class Arithmetic(Section):
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Seed of the problem generator.")
    train: Annotated[int, Field(ge=1)] = Field(4000, description="Number of training problems, over all levels.")
    test: Annotated[int, Field(ge=1)] = Field(500, description="Number of held-out problems; none of them is in train.")
    levels: Annotated[list[Level], Field(min_length=1)] = Field(
        ["sum_1_digit", "sum_2_digit", "difference_2_digit", "sum_3_terms"],
        description="Kinds of problem, in equal parts as far as a kind has that many distinct problems.",
    )


class Data(Section):
    mirror: str | None = Field(
        None,
        description="Folder with local copies of the hub's data sets (<mirror>/gsm8k/train.jsonl, ...); null: the hub.",
    )
    max_train: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Keep only the first rows of each train split; null: all. The card says how many were left out.",
    )
    max_test: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Keep only the first rows of each test split; null: all."
    )
    arithmetic: Arithmetic = Field(Arithmetic(), description="The generated arithmetic problems.")

    @model_validator(mode="after")
    def _mirror_is_not_empty(self) -> Self:
        if self.mirror == "":
            raise ValueError("data.mirror is empty: give a folder, or null to use the hub")
        return self
