r"""math: the answer in the last `\boxed{...}` (MATH, arXiv:2103.03874)."""

from dagrpo_answers.boxes import extract, formatted
from dagrpo_answers.latex import check, equal
from dagrpo_answers.verifier import Verifier

VERIFIER = Verifier(name="math", extract=extract, equal=equal, formatted=formatted, check=check, same=equal)
