"""The two filters of lm-evaluation-harness for GSM8K, with its exact match."""

import re

from dagrpo_answers.scorers import OF_GSM8K, Scorer

SOURCE = "lm-evaluation-harness 0.4.13, tasks/gsm8k/gsm8k.yaml version 3.0 (MIT)"

_MARKED = re.compile(r"#### (-?[0-9.,]+)")
_NUMBERS = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")


def strict_match(completion: str, ground_truth: str) -> bool:
    """Return True if the first number after a `#### ` matches."""
    number = _MARKED.search(completion)
    return number is not None and _matches(number[1], ground_truth)


def flexible_extract(completion: str, ground_truth: str) -> bool:
    """Return True if the last number matches, or the last run of two digits, `$`, full stops and commas at least."""
    numbers = _NUMBERS.findall(completion)
    return bool(numbers) and _matches(numbers[-1], ground_truth)


def _matches(answer: str, ground_truth: str) -> bool:
    return _ignoring(answer) == _ignoring(ground_truth.rpartition("#### ")[2])


def _ignoring(text: str) -> str:
    """Return a text without what `regexes_to_ignore` and `ignore_case` leave out; punctuation counts."""
    return text.replace(",", "").replace("$", "").removesuffix(".").lower()


SCORERS = (
    Scorer(
        name="lm_eval_gsm8k_strict", source=f"{SOURCE}, filter strict-match", right=strict_match, verifiers=OF_GSM8K
    ),
    Scorer(
        name="lm_eval_gsm8k_flexible",
        source=f"{SOURCE}, filter flexible-extract",
        right=flexible_extract,
        verifiers=OF_GSM8K,
    ),
)
