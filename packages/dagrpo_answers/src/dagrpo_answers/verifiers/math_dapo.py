"""DAPO's answers: the last line `Answer: 34`, by Minerva's normalisation (arXiv:2503.14476).

All of the text is read; the published reward looks at its last 300 characters.
"""

from dagrpo_answers.comparing import check, equal
from dagrpo_answers.reading import answer_line, box_alone, last_boxed, tidied
from dagrpo_answers.verifier import Extractor, Verifier
from dagrpo_answers.verifiers.gsm8k import extract as extract_after_the_mark


def extract(text: str, extractor: Extractor) -> str | None:
    r"""Return the answer that a text gives; a plain number is normalised (`1,234` is `1234`), anything else stays as written.

    strict: the last line `Answer:`, and the `\boxed{...}` on it, where that says all. flexible: that, else the last `\boxed{...}`, else the
    number after the last `####`. exact: the last `\boxed{...}`, as it stands.
    """
    if extractor == "exact":
        return last_boxed(text)
    answer = _on_the_answer_line(text)
    if answer is None and extractor == "flexible":
        boxed = last_boxed(text)
        answer = extract_after_the_mark(text, "strict") if boxed is None else tidied(boxed)
    return answer


def formatted(text: str) -> bool:
    """Return True if there is an answer on a line `Answer:`."""
    return answer_line(text) is not None


def _on_the_answer_line(text: str) -> str | None:
    line = answer_line(text)
    inside = None if line is None else box_alone(line)
    return None if inside is None else tidied(inside)


VERIFIER = Verifier(
    name="math_dapo", extract=extract, equal=equal, formatted=formatted, check=check, same=equal, literal=True
)
