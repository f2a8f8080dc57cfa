"""Random batches as TRL and verl have them: responses side by side, padded on the right."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from dagrpo.algorithms.reward_batch import PolicyTokens, RewardBatch
from dagrpo.algorithms.tokens import TokenBatch

LONGEST = 8
# Of rewards so large that no epsilon beside their standard deviation is seen: TRL's is 1e-4.
LARGE = 1e8
WEIGHTS = [1.0, -0.5]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the batches of an estimator have in common."""

    sizes: tuple[int, ...] = (3, 4, 2, 5)  # of the groups
    longest: int = LONGEST
    holes: bool = True  # between tokens of the policy, as tools leave them
    penalties: bool = False
    equal: float = 0.75  # the rewards of the second group; exact in binary, as their sums are
    scale: float = 1.0


def batch_of(kind: Kind, seed: int) -> dict[str, torch.Tensor]:
    """mask: 1 on the policy's tokens; written: those between them, too. [sequences, tokens], [sequences], [functions, sequences]

    The second group has equal rewards; in the first, two are the best.
    """
    generator = torch.Generator().manual_seed(seed)
    sequences = sum(kind.sizes)

    def drawn(low: float, high: float, *shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.float64).uniform_(low, high, generator=generator)

    lengths = torch.randint(1, kind.longest + 1, (sequences,), generator=generator)
    place = torch.arange(kind.longest)
    written = (place < lengths[:, None]).double()
    mask = written * ((drawn(0, 1, sequences, kind.longest) > 0.3 * kind.holes) | (place == lengths[:, None] - 1))
    group = torch.arange(len(kind.sizes)).repeat_interleave(torch.tensor(kind.sizes))
    components = drawn(-0.9, 0.9, len(WEIGHTS), sequences)
    components[:, group == 1] = kind.equal
    components[:, :2] = 0.9375
    probabilities = drawn(0.1, 0.8, sequences, kind.longest)
    old = probabilities.log()
    return {
        "mask": mask,
        "written": written,
        "group": group,
        "rewards": components[0] * kind.scale,
        "components": components * kind.scale,
        "weights": torch.tensor(WEIGHTS, dtype=torch.float64) * kind.scale,
        "greedy_rewards": drawn(-1, 1, len(kind.sizes)),
        "penalty": drawn(-0.1, 0.2, sequences, kind.longest) * kind.penalties,
        "collision": probabilities**2 + drawn(0, 1, sequences, kind.longest) * (1 - probabilities) ** 2,
        "old_logprobs": old,
        # TRL keeps those of the engine in single precision.
        "rollout_logprobs": (old + drawn(-0.3, 0.3, sequences, kind.longest)).float().double(),
        "logprobs": old + drawn(-0.4, 0.4, sequences, kind.longest),
        "advantages": torch.tensor([0.0, -1.0, 1.0], dtype=torch.float64).repeat(sequences)[:sequences],
    }


def reward_batch(batch: Mapping[str, torch.Tensor]) -> RewardBatch:
    """The same, flat."""
    mask = batch["mask"].bool()
    penalty = batch["penalty"]
    weighted = batch["components"] * batch["weights"][:, None]
    return RewardBatch(
        rewards=batch["rewards"] - (penalty * batch["mask"]).sum(-1),
        group=batch["group"],
        groups=len(batch["greedy_rewards"]),
        trajectory=mask.nonzero()[:, 0],
        components={str(place): values for place, values in enumerate(weighted)},
        weights={str(place): float(weight) for place, weight in enumerate(batch["weights"])},
        penalty=penalty[mask] if penalty.any() else None,
        policy=PolicyTokens(logprobs=batch["old_logprobs"][mask], collision=batch["collision"][mask]),
        greedy_rewards=batch["greedy_rewards"],
    )


def token_batch(batch: Mapping[str, torch.Tensor]) -> TokenBatch:
    """The same, flat, for what weighs tokens."""
    mask = batch["mask"].bool()
    sequence = mask.nonzero()[:, 0]
    advantages = batch["advantages"][sequence]
    return TokenBatch(
        logprobs=batch["logprobs"][mask],
        old_logprobs=batch["old_logprobs"][mask],
        rollout_logprobs=batch["rollout_logprobs"][mask],
        reference_logprobs=None,
        entropy=torch.zeros(len(sequence), dtype=torch.float64),
        advantages=advantages,
        positive=advantages > 0,
        sequence=sequence,
        sequences=len(mask),
    )
