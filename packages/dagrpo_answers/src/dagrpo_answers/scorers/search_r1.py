"""Search-R1's exact match, as verl has it."""

import re
import string

from dagrpo_answers.scorers import Scorer
from dagrpo_answers.text_match import texts_of

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_END = "</answer>"
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(completion: str, ground_truth: str) -> bool:
    """Return True if the last `<answer>` equals one of the texts, by SQuAD's normalisation."""
    answers = _ANSWER.findall(completion, 0, completion.rfind(_END) + len(_END))  # none without an end
    return bool(answers) and _normalised(answers[-1]) in map(_normalised, texts_of(ground_truth))


def _normalised(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


SCORERS = (
    Scorer(
        name="verl_search_r1",
        source="verl 0.9.1, utils/reward_score/search_r1_like_qa_em.py (Apache-2.0), as in Search-R1, arXiv:2503.09516",
        right=exact_match,
        verifiers=("exact_match", "substring_match"),
    ),
)
