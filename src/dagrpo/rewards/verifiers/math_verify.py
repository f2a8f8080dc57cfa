r"""math_verify: the verifier math, under other trainers' name for it."""

from dagrpo.rewards.boxes import extract, formatted
from dagrpo.rewards.latex import check, equal
from dagrpo.rewards.verifier import Verifier

VERIFIER = Verifier(name="math_verify", extract=extract, equal=equal, formatted=formatted, check=check, same=equal)
