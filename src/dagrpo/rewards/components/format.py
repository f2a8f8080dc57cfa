"""format: a reward for the form that the verifier asks for."""

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted
from dagrpo.rewards.verifiers import get_verifier
from dagrpo_answers.own_text import answer_text, own_text


class Config(Weighted):
    """1 if the completion has the form that its verifier asks for, else 0."""


def format(graded: GradedTrajectory, config: Config) -> float:
    """Return 1 or 0, by the verifier that judged. Gamed by the form without an answer: keep the weight far below accuracy's."""
    verifier = get_verifier(graded.score.verifier)
    read = own_text if verifier.asks_for_thought else answer_text
    return float(verifier.formatted(read(graded.trajectory.text)))


COMPONENT = Component(config=Config, function=format, limits=lambda config: (0.0, 1.0))
