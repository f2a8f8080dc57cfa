"""GSM8K's scorers: lm-evaluation-harness's filters with its exact match, and verl's.

verl compares the last 300 characters letter by letter.
"""

import re

from dagrpo_answers.scorers import OF_GSM8K, Scorer

LM_EVAL = "lm-evaluation-harness 0.4.13, tasks/gsm8k/gsm8k.yaml version 3.0 (MIT)"
VERL = "verl 0.9.1, utils/reward_score/gsm8k.py (Apache-2.0)"
CHARACTERS = 300

_MARKED = re.compile(r"#### (-?[0-9.,]+)")
_NUMBERS = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_RUNS = re.compile(r"-?[0-9.,]+")


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


def strict(completion: str, ground_truth: str) -> bool:
    """Return True if the last number after `#### `, without its commas, is the ground truth."""
    numbers = _MARKED.findall(completion[-CHARACTERS:])
    return bool(numbers) and numbers[-1].replace(",", "") == ground_truth


def flexible(completion: str, ground_truth: str) -> bool:
    """Return True if the last run of digits, full stops and commas, but not a mere full stop, is the ground truth. Commas stay."""
    numbers = [number for number in _RUNS.findall(completion[-CHARACTERS:]) if number != "."]
    return bool(numbers) and numbers[-1] == ground_truth


SCORERS = (
    Scorer(
        name="lm_eval_gsm8k_strict", source=f"{LM_EVAL}, filter strict-match", right=strict_match, verifiers=OF_GSM8K
    ),
    Scorer(
        name="lm_eval_gsm8k_flexible",
        source=f"{LM_EVAL}, filter flexible-extract",
        right=flexible_extract,
        verifiers=OF_GSM8K,
    ),
    Scorer(name="verl_gsm8k", source=f"{VERL}, method strict", right=strict, verifiers=OF_GSM8K),
    Scorer(name="verl_gsm8k_flexible", source=f"{VERL}, method flexible", right=flexible, verifiers=OF_GSM8K),
)
