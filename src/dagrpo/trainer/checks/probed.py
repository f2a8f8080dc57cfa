"""Requests of a probe: ends of fixed prompts, greedy and sampled.

The sampled ones use the training's sampling parameters. The end of a prompt shows as well as all of it whether logprobs agree,
and saves both sides from computing the rest.
"""

from collections.abc import Sequence
from itertools import cycle, islice

from dagrpo.core.types import SamplingRequest
from dagrpo.rollout.config import Rollout
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.rollout.trajectory import Problem
from dagrpo.trainer.checks_config import Gates

_TOKENS = {"float32": 2, "float16": 8, "bfloat16": 8}  # of a completion, by the type that both sides are compared in


def probe_requests(
    problems: Sequence[Problem], gates: Gates, rollout: Rollout, dtype: str, seed: int
) -> list[SamplingRequest]:
    """Return the probe's requests: first the greedy ones, then the sampled ones; none without problems.

    No prompt is used twice, if there are enough: a repeated one would need one more request. One shows a picture, if any
    of the problems does.
    """
    half, length = gates.probe_prompts, gates.probe_prompt_tokens
    chosen = _chosen(problems, 2 * half, length)
    if len(chosen) < 2 * half:  # too many prompts end alike
        length = None
        chosen = _chosen(problems, 2 * half, length)
    asked = [*islice(cycle(chosen), 2 * half)]
    tokens = _TOKENS[dtype] if gates.probe_tokens is None else gates.probe_tokens
    return [
        SamplingRequest(
            input_ids=_end(problem, length),
            seed=sampling_seed(seed, "probe", number),
            temperature=0.0 if number < half else rollout.temperature,
            top_p=1.0 if number < half else rollout.top_p,
            top_k=-1 if number < half else rollout.top_k,
            max_new_tokens=min(tokens, rollout.max_new_tokens),
            support=rollout.cuts and number >= half,
            pictures=problem.pictures,
        )
        for number, problem in enumerate(asked)
    ]


def _chosen(problems: Sequence[Problem], count: int, length: int | None) -> list[Problem]:
    """Return the first problems with distinct ends. If none shows a picture, the first problem with one replaces the first."""
    first = dict[tuple[int, ...], Problem]()
    for problem in problems:
        if len(first) == count:
            break
        first.setdefault(_end(problem, length), problem)
    chosen = [*first.values()]
    with_picture = next((problem for problem in problems if problem.picture_files), None)
    if with_picture is not None and not any(problem.picture_files for problem in chosen):
        chosen[:1] = [with_picture]
    return chosen


def _end(problem: Problem, length: int | None) -> tuple[int, ...]:
    """Return the last `length` tokens of a prompt. A prompt with pictures stays whole: each picture has placeholders in it."""
    return problem.token_ids if length is None or problem.picture_files else problem.token_ids[-length:]
