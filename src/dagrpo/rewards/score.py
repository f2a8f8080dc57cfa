"""What a completion is worth: the reading of rewards/gsm8k.py, priced by section `reward`."""

from dagrpo.params.reward import Reward
from dagrpo.records import Score
from dagrpo.rewards.gsm8k import equal, extract


def grade(text: str, ground_truth: str, reward: Reward) -> Score:
    """Grade one completion.

    `text` is the completion alone, never the prompt: the prompt itself names `####`, and may hold numbers. ValueError
    when the ground truth is not a plain number.
    """
    extracted = extract(text, reward.extractor)
    if extracted is None:
        return Score(extracted=None, correct=False, reward=reward.missing)
    correct = equal(extracted, ground_truth)
    return Score(extracted=extracted, correct=correct, reward=reward.correct if correct else reward.wrong)
