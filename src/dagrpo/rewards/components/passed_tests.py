"""passed_tests: the share of tests passed, or of instructions followed."""

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted


class Config(Weighted):
    """The share of tests that a program passes, or of instructions that a text follows."""


def passed_tests(graded: GradedTrajectory, config: Config) -> float:
    """Return the share; 0 without an answer, or if it cannot be tested."""
    return graded.score.passed or 0.0


COMPONENT = Component(config=Config, function=passed_tests, limits=lambda config: (0.0, 1.0), needs_tests=True)
