"""Verifiers and published scorers by name, also those of other packages."""

from dagrpo.core.plugins import Plugins
from dagrpo_answers.scorers import Scorer
from dagrpo_answers.verifier import Verifier

VERIFIERS: Plugins[Verifier] = Plugins(
    what="verifier",
    package="dagrpo_answers.verifiers",
    attribute="VERIFIER",
    group="dagrpo.verifiers",
    key="reward.verifier",
    kind=Verifier,
    renamed={
        "math_verify": "it is now called `math`, whose grammar it was, and the library's own verdict is a scorer, "
        "`evaluation.scoring: {also: [math_verify]}`"
    },
)
SCORERS: Plugins[Scorer] = Plugins(
    what="scorer",
    package="dagrpo_answers.scorers",
    attribute="SCORERS",
    group="dagrpo.scorers",
    key="evaluation.scoring.also",
    kind=Scorer,
    several=True,
)


def get_verifier(name: str) -> Verifier:
    """Return a verifier by its name or import path. UserError gives the nearest name."""
    return VERIFIERS.get(name)
