"""Components of the answer: verdict, form, parts, and report."""

from collections.abc import Mapping

from pydantic import Field

from dagrpo.core.section import Factor
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted
from dagrpo.rewards.reporting import whole
from dagrpo.rewards.verifiers import get_verifier
from dagrpo_answers.verifier import Verdict


class Accuracy(Weighted):
    """A price for the verdict on the answer."""

    correct: Factor = Field(1.0, description="Price of a right answer.")
    wrong: Factor = Field(0.0, description="Price of a wrong answer.")
    missing: Factor = Field(0.0, description="Price of a completion without an answer.")
    unverifiable: Factor | None = Field(
        None,
        description="Price of an answer that is too long or could not be compared within reward.verify_seconds; null: that of a wrong one. "
        "A higher price would pay for such answers.",
    )

    @property
    def prices(self) -> Mapping[Verdict, float]:
        """Return the price of each verdict."""
        unverifiable = self.wrong if self.unverifiable is None else self.unverifiable
        return {"right": self.correct, "wrong": self.wrong, "missing": self.missing, "unverifiable": unverifiable}


def accuracy(graded: GradedTrajectory, config: Accuracy) -> float:
    """Return the price of the verdict."""
    return config.prices[graded.score.verdict]


ACCURACY = Component(
    config=Accuracy,
    function=accuracy,
    limits=lambda config: (min(config.prices.values()), max(config.prices.values())),
)


class Format(Weighted):
    """1 if the completion has the form that its verifier asks for, else 0."""


def format(graded: GradedTrajectory, config: Format) -> float:
    """Return 1 or 0, by the verifier that judged. Gamed by the form without an answer: keep the weight far below accuracy's."""
    from dagrpo_answers.judging import has_form  # the grammar of answers: checking parameters does not need it

    return float(has_form(get_verifier(graded.score.verifier), graded.trajectory.text))


FORMAT = Component(config=Format, function=format, limits=lambda config: (0.0, 1.0))


class PassedTests(Weighted):
    """The share of tests that a program passes, or of instructions that a text follows."""


def passed_tests(graded: GradedTrajectory, config: PassedTests) -> float:
    """Return the share; 0 without an answer, or if it cannot be tested."""
    return graded.score.passed or 0.0


PASSED_TESTS = Component(config=PassedTests, function=passed_tests, limits=lambda config: (0.0, 1.0), needs_tests=True)


class Reported(Weighted):
    """A reward that a program or an environment reports; 0 if it reports none of that name."""

    name: str = Field("", description='Name of the reported reward; "": the one named `reward`, else the sum of all.')


def reported(graded: GradedTrajectory, config: Reported) -> float:
    """Return the reward of that name, or the whole."""
    rewards = graded.trajectory.reported
    return rewards.get(config.name, 0.0) if config.name else whole(rewards)


REPORTED = Component(config=Reported, function=reported, needs_report=True)
