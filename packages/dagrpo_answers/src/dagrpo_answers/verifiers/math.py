r"""math: the answer in the last `\boxed{...}` (MATH, arXiv:2103.03874)."""

from dagrpo_answers.comparing import check, equal
from dagrpo_answers.reading import answer_line, answer_tag, last_boxed, last_formula, tidied
from dagrpo_answers.verifier import Extractor, Verifier


def extract(text: str, extractor: Extractor) -> str | None:
    r"""Return the answer that a text gives; a plain number is normalised (`1,234` is `1234`), anything else stays as written.

    strict and exact: the last `\boxed{...}`. flexible: as strict, else the text after the last `Answer:`, else in the last
    `<answer>...</answer>`, else the last formula or number.
    """
    answer = last_boxed(text)
    if answer is None and extractor == "flexible":
        answer = answer_line(text) or answer_tag(text) or last_formula(text)
        answer = answer and (last_boxed(answer) or answer)
    return None if answer is None else tidied(answer)


def formatted(text: str) -> bool:
    r"""Return True if there is a `\boxed{...}` that is not empty."""
    return last_boxed(text) is not None


VERIFIER = Verifier(name="math", extract=extract, equal=equal, formatted=formatted, check=check, same=equal)
