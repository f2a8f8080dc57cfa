"""Check that the samples of a prompt are independent.

Their seeds must differ, and their completions must not all be equal by a fault: a group learns from the differences between
its samples. With one seed for all of them it learns nothing, and no other check notices.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import count

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Trajectory
from dagrpo.rollout.sampling import SEEDS, Sampling
from dagrpo.trainer.config.training import Training

IMPOSSIBLE = 1e-12  # of a step, of which a run has thousands


def require_independent(trajectories: Sequence[Trajectory], sampling: Sampling, training: Training, step: int) -> None:
    """Check seeds and completions as section training asks; trajectories: [prompts * samples_per_prompt], step from 1."""
    size, gates = training.samples_per_prompt, training.gates
    if gates.distinct_seeds:
        require_distinct_seeds(trajectories, size, step)
    groups = training.steps * training.prompts_per_step
    require_no_impossible_group(trajectories, size, sampling, gates.coincidence / groups, step)


def require_distinct_seeds(trajectories: Sequence[Trajectory], group_size: int, step: int) -> None:
    """Raise UserError if more samples of one prompt share seeds than chance explains. [prompts * group_size]; step from 1."""
    groups = [*_groups(trajectories, group_size)]
    shared = [len(group) - len({each.sampling_seed for each in group}) for group in groups]
    pairs = len(groups) * math.comb(group_size, 2)
    if sum(shared) >= max(min(_too_many_shared(pairs), pairs), 1):
        worst = max(range(len(groups)), key=shared.__getitem__)
        raise UserError(
            f"step {step}: {sum(shared)} samples have the seed of another sample of their prompt; of the {group_size} at row "
            f"{groups[worst][0].prompt.index} of the train split {group_size - shared[worst]} seeds differ, so that a group "
            "is fewer samples than it seems. Correct what makes the seeds, or set training.gates.distinct_seeds to false."
        )


def _too_many_shared(pairs: int) -> int:
    """Return the least number of equal seeds among `pairs` pairs with a probability below IMPOSSIBLE: its Poisson tail's bound."""
    expected = pairs / SEEDS
    return next(number for number in count(1) if expected**number / math.factorial(number) < IMPOSSIBLE)


def require_no_impossible_group(
    trajectories: Sequence[Trajectory], group_size: int, sampling: Sampling, coincidence: float, step: int
) -> None:
    """Raise UserError if a group's completions are identical although that is less probable than `coincidence`.

    Given one completion of probability p, the other n - 1 are identical to it with p ** (n - 1), if the engine samples each from
    its whole distribution. Where rollout.top_p or top_k truncate that and the logprobs are not renormalised, nothing is
    checked: p is not known.
    """
    if coincidence == 0 or ((sampling.top_p < 1 or sampling.top_k != -1) and not sampling.support):
        return
    for group in _groups(trajectories, group_size):
        learned = [each for each in group if each.learned]
        if len({_tokens(each) for each in learned}) != 1 or len(learned) < 2:
            continue
        logprob = (len(learned) - 1) * sum(math.fsum(s.completion_logprobs) for s in learned[0].samples)
        if logprob < math.log(coincidence):
            raise UserError(
                f"step {step}: all {len(learned)} samples at row {learned[0].prompt.index} of the train split are the same "
                f"{learned[0].tokens} tokens, which chance makes once in 10^{-logprob / math.log(10):.0f} times "
                f"(training.gates.coincidence): the engine does not sample each by itself. Look at its "
                "seeds (sampling_seed needs --enable-deterministic-inference) and at what caches completions."
            )


def _tokens(trajectory: Trajectory) -> tuple[bytes, ...]:
    return tuple(sample.completion_ids.tobytes() for sample in trajectory.samples)


def _groups(trajectories: Sequence[Trajectory], size: int) -> Iterator[Sequence[Trajectory]]:
    """Yield the groups: the adjacent attempts at each prompt."""
    for start in range(0, len(trajectories), size):
        yield trajectories[start : start + size]
