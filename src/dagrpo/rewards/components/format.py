"""format: a reward for the form that the verifier asks for."""

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted
from dagrpo.rewards.verifiers import get_verifier
from dagrpo_answers.judging import has_form


class Config(Weighted):
    """1 if the completion has the form that its verifier asks for, else 0."""


def format(graded: GradedTrajectory, config: Config) -> float:
    """Return 1 or 0, by the verifier that judged. Gamed by the form without an answer: keep the weight far below accuracy's."""
    return float(has_form(get_verifier(graded.score.verifier), graded.trajectory.text))


COMPONENT = Component(config=Config, function=format, limits=lambda config: (0.0, 1.0))
