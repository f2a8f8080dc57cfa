"""verl's scorer of GSM8K: the last 300 characters, compared letter by letter."""

import re

from dagrpo_answers.scorers import OF_GSM8K, Scorer

SOURCE = "verl 0.9.1, utils/reward_score/gsm8k.py (Apache-2.0)"
CHARACTERS = 300

_MARKED = re.compile(r"#### (-?[0-9.,]+)")
_NUMBERS = re.compile(r"-?[0-9.,]+")


def strict(completion: str, ground_truth: str) -> bool:
    """Return True if the last number after `#### `, without its commas, is the ground truth."""
    numbers = _MARKED.findall(completion[-CHARACTERS:])
    return bool(numbers) and numbers[-1].replace(",", "") == ground_truth


def flexible(completion: str, ground_truth: str) -> bool:
    """Return True if the last run of digits, full stops and commas, but not a mere full stop, is the ground truth. Commas stay."""
    numbers = [number for number in _NUMBERS.findall(completion[-CHARACTERS:]) if number != "."]
    return bool(numbers) and numbers[-1] == ground_truth


SCORERS = (
    Scorer(name="verl_gsm8k", source=f"{SOURCE}, method strict", right=strict, verifiers=OF_GSM8K),
    Scorer(name="verl_gsm8k_flexible", source=f"{SOURCE}, method flexible", right=flexible, verifiers=OF_GSM8K),
)
