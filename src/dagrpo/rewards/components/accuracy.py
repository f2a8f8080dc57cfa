"""accuracy: the price of the verdict."""

from collections.abc import Mapping

from pydantic import Field

from dagrpo.records import Verdict
from dagrpo.rewards.components import Component, Judged, Weighted


class Config(Weighted):
    """The answer: the price of its verdict."""

    correct: float = Field(1.0, description="Price of a right answer.")
    wrong: float = Field(0.0, description="Price of a wrong answer.")
    missing: float = Field(0.0, description="Price when there is no answer to read.")
    unverifiable: float = Field(
        0.0, description="Price of an answer that could not be compared within reward.verify_seconds."
    )


def accuracy(judged: Judged, config: Config) -> float:
    """The price of the verdict."""
    prices: Mapping[Verdict, float] = {
        "right": config.correct,
        "wrong": config.wrong,
        "missing": config.missing,
        "unverifiable": config.unverifiable,
    }
    return prices[judged.verdict]


COMPONENT = Component(config=Config, function=accuracy)
