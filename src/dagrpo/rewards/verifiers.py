"""Verifiers, one file each: how answers are extracted and compared."""

from dagrpo.core.plugins import Plugins
from dagrpo.rewards.verifier import Verifier

VERIFIERS: Plugins[Verifier] = Plugins(
    what="verifier",
    package=__name__,
    attribute="VERIFIER",
    group="dagrpo.verifiers",
    key="reward.verifier",
    kind=Verifier,
    renamed={
        "math_verify": "it is now called `math`, whose grammar it was, and the library's own verdict is a scorer, "
        "`evaluation.scoring: {also: [math_verify]}`"
    },
)


def get_verifier(name: str) -> Verifier:
    """Return a verifier by its name or import path. UserError gives the nearest name."""
    return VERIFIERS.get(name)
