"""What attempts are worth: the sum of the components of section `reward`, each times its weight."""

from collections.abc import Sequence

from dagrpo.params.reward import Reward, Weights
from dagrpo.records import Attempt, Score
from dagrpo.rewards import components
from dagrpo.rewards.grading import Grader, Judgement


def grade_all(attempts: Sequence[Attempt], reward: Reward, max_new_tokens: int, grader: Grader) -> list[Score]:
    """One score for each attempt, in order.

    `reward.verifier` overrides the one of the attempt unless it is "task". `max_new_tokens` is where the overlong
    penalty ends. UserError names the row whose ground truth is none for its verifier.
    """
    verifiers = [attempt.verifier if reward.verifier == "task" else reward.verifier for attempt in attempts]
    judgements = grader.judge(
        [attempt.text for attempt in attempts],
        [attempt.ground_truth for attempt in attempts],
        verifiers,
        reward.extractor,
    )
    graded = zip(attempts, judgements, verifiers, strict=True)
    return [_score(attempt, judgement, name, reward, max_new_tokens) for attempt, judgement, name in graded]


def _score(attempt: Attempt, judgement: Judgement, verifier: str, reward: Reward, max_new_tokens: int) -> Score:
    verdict = judgement.verdict
    weights = {name: weight for name, weight in reward.weights.model_dump().items() if weight}
    values = {name: _component(name, attempt, judgement, verifier, reward, max_new_tokens) for name in weights}
    return Score(
        extracted=judgement.answer,
        correct=None if verdict == "unverifiable" else verdict == "right",
        reward=sum(weight * values[name] for name, weight in weights.items()),
        verdict=verdict,
        components=values,
    )


def _component(
    name: str, attempt: Attempt, judgement: Judgement, verifier: str, reward: Reward, max_new_tokens: int
) -> float:
    """One component, unweighted; only those with a weight are computed."""
    assert name in Weights.model_fields
    if name == "accuracy":
        return components.accuracy(judgement.verdict, reward)
    if name == "format":
        return components.format(attempt.text, verifier)
    if name == "overlong":
        return components.overlong(attempt.tokens, max_new_tokens, reward.overlong_buffer)
    if name == "tool_calls":
        return components.tool_calls(attempt)
    return components.tool_effort(attempt, judgement.verdict)
