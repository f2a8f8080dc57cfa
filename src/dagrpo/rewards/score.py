"""A trajectory's reward: the weighted sum of the components of section `reward`."""

from collections.abc import Sequence

from dagrpo.core.types import Attempt, Score
from dagrpo.rewards.components import COMPONENTS, Judged, value_of
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader


def grade_all(attempts: Sequence[Attempt], reward: Reward, max_new_tokens: int, grader: Grader) -> list[Score]:
    """Return one score for each attempt, in order.

    `reward.verifier` overrides the one of the attempt unless it is "task". `max_new_tokens` is where the overlong
    penalty ends. UserError names the row whose ground truth its verifier cannot read.
    """
    verifiers = [attempt.verifier if reward.verifier == "task" else reward.verifier for attempt in attempts]
    judgements = grader.judge(
        [attempt.text for attempt in attempts],
        [attempt.ground_truth for attempt in attempts],
        verifiers,
        reward.extractor,
        [attempt.reported for attempt in attempts],
    )
    return [
        _score(
            Judged(
                attempt=attempt,
                verdict=judgement.verdict,
                extracted=judgement.answer,
                verifier=verifier,
                max_new_tokens=max_new_tokens,
            ),
            reward,
        )
        for attempt, judgement, verifier in zip(attempts, judgements, verifiers, strict=True)
    ]


def _score(judged: Judged, reward: Reward) -> Score:
    """Only components with a weight are computed; they are added up in the order of their names."""
    weighted = {name: config for name, config in reward.components.items() if config.weight}
    values = {name: value_of(name, judged, config) for name, config in weighted.items()}
    return Score(
        extracted=judged.extracted,
        correct=None if judged.verdict == "unverifiable" else judged.verdict == "right",
        reward=sum(config.weight * values[name] for name, config in weighted.items()),
        verdict=judged.verdict,
        components={COMPONENTS.label(name): value for name, value in values.items()},
    )
