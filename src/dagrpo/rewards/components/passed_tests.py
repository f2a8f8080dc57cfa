"""passed_tests: the share of its tests that a program passes."""

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted


class Config(Weighted):
    """The share of tests that a program passes."""


def passed_tests(graded: GradedTrajectory, config: Config) -> float:
    """Return the share; 0 without a program, or if it cannot be tested."""
    return graded.score.passed or 0.0


COMPONENT = Component(config=Config, function=passed_tests, limits=lambda config: (0.0, 1.0), needs_tests=True)
