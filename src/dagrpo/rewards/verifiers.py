"""Every verifier by its name."""

import difflib

from dagrpo.errors import UserError
from dagrpo.rewards import countdown, geo3k, gsm8k, hendrycks_math, math_dapo, symbolic_math, text_match
from dagrpo.rewards.verifier import Verifier

VERIFIERS: dict[str, Verifier] = {
    verifier.name: verifier
    for verifier in (
        gsm8k.VERIFIER,
        math_dapo.VERIFIER,
        hendrycks_math.VERIFIER,
        symbolic_math.VERIFIER,
        geo3k.VERIFIER,
        text_match.EXACT_MATCH,
        text_match.SUBSTRING_MATCH,
        countdown.VERIFIER,
    )
}


def get_verifier(name: str) -> Verifier:
    """A verifier by its name. UserError with the nearest known one when there is none."""
    if name in VERIFIERS:
        return VERIFIERS[name]
    nearest = difflib.get_close_matches(name, VERIFIERS, n=1, cutoff=0.0)[0]
    raise UserError(f"there is no verifier {name!r}: did you mean {nearest}? Known are {', '.join(VERIFIERS)}.")
