"""accuracy: the price of the verdict."""

from collections.abc import Mapping

from pydantic import Field

from dagrpo.core.section import Factor
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted
from dagrpo_answers.verifier import Verdict


class Config(Weighted):
    """A price for the verdict on the answer."""

    correct: Factor = Field(1.0, description="Price of a right answer.")
    wrong: Factor = Field(0.0, description="Price of a wrong answer.")
    missing: Factor = Field(0.0, description="Price of a completion without an answer.")
    unverifiable: Factor | None = Field(
        None,
        description="Price of an answer that is too long or could not be compared within reward.verify_seconds; null: that of a wrong one. "
        "A higher price would pay for such answers.",
    )


def prices(config: Config) -> Mapping[Verdict, float]:
    """Return the price of each verdict."""
    unverifiable = config.wrong if config.unverifiable is None else config.unverifiable
    return {"right": config.correct, "wrong": config.wrong, "missing": config.missing, "unverifiable": unverifiable}


def accuracy(graded: GradedTrajectory, config: Config) -> float:
    """Return the price of the verdict."""
    return prices(config)[graded.score.verdict]


def limits(config: Config) -> tuple[float, float]:
    """Return the lowest price and the highest."""
    all_prices = prices(config).values()
    return min(all_prices), max(all_prices)


COMPONENT = Component(config=Config, function=accuracy, limits=limits)
