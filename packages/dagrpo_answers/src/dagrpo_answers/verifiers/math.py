r"""math: the answer in the last `\boxed{...}` (MATH, arXiv:2103.03874)."""

from dagrpo.rewards.boxes import extract, formatted
from dagrpo.rewards.latex import check, equal
from dagrpo.rewards.verifier import Verifier

VERIFIER = Verifier(name="math", extract=extract, equal=equal, formatted=formatted, check=check, same=equal)
