"""Published rules for MMLU-Pro and GPQA."""

import re
from string import punctuation

from dagrpo_answers.scorers import Scorer

_STATED = re.compile(r"answer is \(?([A-J])\)?")
_LINE = re.compile(r"[aA]nswer:\s*+([A-J])")
_LETTER = re.compile(r"\b[A-J]\b")
_GPQA = re.compile(r"(?<=The answer is )(.*)(?=.)")
_PUNCTUATION = str.maketrans("", "", punctuation)
OF_CHOICES = ("choice",)


def first_stated(completion: str, ground_truth: str) -> bool:
    """Return True if the letter of the first `answer is` is the right one."""
    stated = _STATED.search(completion)
    return stated is not None and stated[1] == ground_truth


def stated_or_last(completion: str, ground_truth: str) -> bool:
    """Return the verdict on `answer is`; without one, on the last letter of a line `answer:`; else on the last letter that is a word."""
    stated = _STATED.search(completion)
    letter = stated[1] if stated else _on_a_line(completion) or (_LETTER.findall(completion) or [""])[-1]
    return letter == ground_truth


def _on_a_line(completion: str) -> str | None:
    """Return the last letter after `answer:` on the first line that has one."""
    found = list(_LINE.finditer(completion))
    if not found:
        return None
    end = completion.find("\n", found[0].start())
    return [each[1] for each in found if end < 0 or each.start() < end][-1]


def gpqa_strict(completion: str, ground_truth: str) -> bool:
    """Return True if the rest of the line after the first `The answer is `, but its last character, is the letter with punctuation."""
    stated = _GPQA.search(completion)
    return stated is not None and stated[1].strip().lower().translate(_PUNCTUATION) == ground_truth.lower()


SCORERS = (
    Scorer(
        name="lm_eval_mmlu_pro",
        source="lm-evaluation-harness 0.4.13, tasks/mmlu_pro version 3.1 (MIT), filter custom-extract",
        right=first_stated,
        verifiers=OF_CHOICES,
    ),
    Scorer(
        name="mmlu_pro",
        source="MMLU-Pro's compute_accuracy.py, level 2 (Apache-2.0), no letter counted as wrong, not as a random one",
        right=stated_or_last,
        verifiers=OF_CHOICES,
    ),
    Scorer(
        name="lm_eval_gpqa_strict",
        source="lm-evaluation-harness 0.4.13, tasks/gpqa/cot_zeroshot version 2.2 (MIT), filter strict-match",
        right=gpqa_strict,
        verifiers=OF_CHOICES,
    ),
)
