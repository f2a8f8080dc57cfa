"""choice: the letter of an option, `the answer is (C)`."""

import re

from dagrpo_answers.errors import UserError
from dagrpo_answers.reading import last_boxed
from dagrpo_answers.verifier import Extractor, Verifier

LETTERS = "ABCDEFGHIJ"
_WORD = "[^\\W\u4e00-\u9fff]"  # a letter that makes a longer word; not a Chinese one
_DRESSING = r"(?:[\s*_$(\[{\uff08\u3010]|\\(?:[(\[]|(?:boxed|text|textbf|mathbf|mathrm)(?=\{)))*+"
_END = r"[\s*_$)\]}\\\uff09\u3011]*+"
_ANSWER = re.compile(
    rf"(?:(?i:answer[\s*_]*+(?:is|[:\uff1a]))|(?:答案|故|应|應)(?:[为為是选選]|[\s*_]*+[:\uff1a])++)[\s:*_$]*+{_DRESSING}"
    rf"([A-J])(?!\u2019|'|{_WORD})"
)
_OTHER = re.compile(  # a second letter, after a separator or in brackets; not the pronoun of `C, I think`
    rf"{_END}(?:(?:,?\s*+\b(?:or|and)\b|[/,;|&、\uff0c或和及]){_DRESSING}(?!I[ \t]++[a-z])[A-J](?!{_WORD})"
    rf"|(?=\\?[(\[{{]){_DRESSING}[A-J]\\?[)\]}}])"
)
_GOES_ON = re.compile(
    r"[*_$]*+[ \t]++(?!(?:as|because|since)\b)[^\W\d_]"
)  # a word after a bare A or I: `A good question`
_CLOSING = re.compile(r"[\s*_$)\]}.\\\uff09\u3011\u3002]*+\Z")
_ALONE = re.compile(rf"\A{_DRESSING}([A-J])[\s*_$)\]}}.\\]*+\Z")
_BRACKETED = re.compile(r"\(([A-J])\)")


def extract(text: str, extractor: Extractor) -> str | None:
    r"""Return the letter that a text gives as its answer.

    strict: after the last `answer is` or `answer:`, in brackets, emphasis or a box or bare, without a second letter beside it; exact: with
    nothing after it; flexible: that, else in the last `\boxed{...}`, else alone on the last line, else the last one in round brackets.
    """
    stated = None
    for stated in _ANSWER.finditer(text):  # noqa: B007 (the last one)
        pass
    letter = None if stated is None else _letter(text, stated)
    if extractor == "exact":
        return letter if stated and _CLOSING.match(text, stated.end()) else None
    return _anywhere(text) if stated is None and extractor == "flexible" else letter


def _letter(text: str, stated: re.Match[str]) -> str | None:
    bare = stated[1] in "AI" and text[stated.start(1) - 1].isspace()
    if _OTHER.match(text, stated.end()) or (bare and _GOES_ON.match(text, stated.end())):
        return None
    return stated[1]


def _anywhere(text: str) -> str | None:
    lines = text.rstrip().rsplit("\n", 1)
    alone = _ALONE.match(last_boxed(text) or lines[-1])
    bracketed = None if alone else _BRACKETED.findall(text)
    return alone[1] if alone else bracketed[-1] if bracketed else None


def check(ground_truth: str) -> None:
    """Raise UserError unless a ground truth is one letter from A to J."""
    if len(ground_truth) != 1 or ground_truth not in LETTERS:
        raise UserError(f"{ground_truth[:40]!r} is no letter from A to J: correct the ground truth.")


def equal(answer: str, ground_truth: str) -> bool:
    """Return True if it is the same letter."""
    check(ground_truth)
    return answer == ground_truth


VERIFIER = Verifier(
    name="choice",
    extract=extract,
    equal=equal,
    formatted=lambda text: extract(text, "strict") is not None,
    check=check,
    same=str.__eq__,
    reads_truths_of=("exact_match", "substring_match", "math"),
)
