"""Check that engine and trainer compute the same logprobs.

It compares a step's rollouts, after they were sampled, by the mean and by the share of tokens that differ by more than
rounding: a mean of 7e-4 has hidden 8% of such tokens (verl issue 6280).
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dagrpo.core.errors import UserError
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.batches.batch import Batch
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.state.refused_tables import keep

# Mean distance in nats per token that is not taken for rounding. With equal weights, SGLang on a CPU in float32 is 4e-8
# away; SmolLM2-135M is 0.0056 away in float16, and 0.043 in bfloat16. Their limits are wide on purpose: they are to catch another
# model, not to judge an engine.
LARGEST_MEAN_DIFFERENCE = {"float32": 0.02, "float16": 0.05, "bfloat16": 0.25}
# Nats that rounding explains for nearly every token. In float32 on a CPU 6.8e-5 is the most that any run has shown, and in
# float16 0.027 of SmolLM2-135M; in bfloat16, 8% of tokens were outside when only the shape of a batch had changed.
BAND = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.1}
# Share of the tokens that may be outside the band. In bfloat16 it is large: 8% of a batch (above; verl issue 6280) may be many of
# a probe's few tokens.
_LARGEST_SHARE = {"float32": 0.01, "float16": 0.1, "bfloat16": 0.5}
# Mean distance in nats per token beyond which no correction helps with what earlier weights have sampled: the importance weights
# of most tokens are then far outside its bounds.
FARTHEST = 1.0
OUTSIDE = "gate/rollout_outside_fraction"


def compared_in(rollout: Rollout, training: Training) -> str:
    """Return the type whose rounding explains logprob differences: the coarser one of the engine's and the trainer's."""
    return max(rollout.dtype, training.dtype, key=BAND.__getitem__)


def outside_share(differences: ArrayLike, dtype: str) -> float:
    """Return the share of logprob differences, in nats, outside the band of an engine's type; 0 of none."""
    outside = ~(np.abs(np.asarray(differences, dtype=np.float64)) <= BAND[dtype])  # NaN is outside
    return float(outside.mean()) if len(outside) else 0.0


def largest_share(gates: Gates, dtype: str) -> float:
    """Return the share that training.gates.outside_share allows; by default, that of an engine's type."""
    return _LARGEST_SHARE[dtype] if gates.outside_share is None else gates.outside_share


def require_the_policys_rollouts(
    batch: Batch,
    trainer_logprobs: Tensor,
    gates: Gates,
    *,
    dtype: str,
    state: Path,
    step: int,
    staleness: int = 0,
    is_earlier: NDArray[np.bool_] | None = None,
) -> dict[str, float]:
    """Return the share of a step's tokens outside the band, of those that weights of earlier steps have not sampled.

    `trainer_logprobs`: [trained tokens], of the policy before the step; how far the step's updates move it is not limited.
    `dtype` is the value of `compared_in`; the step counts from 1. Raises UserError, which names a table of all tokens in the
    folder `state`, if the engine's logprobs are not the policy's, so that it sampled with other weights.

    `staleness`: how many steps ago the sampling weights were the policy's. Above 0 the policy has moved since, and only a mean
    difference that no weight could correct is refused. Digests and probe then show whether the engine holds the synced weights. The same
    holds for the tokens that `is_earlier` marks, [trained tokens], which an attempt that went on had from earlier steps.
    """
    differences = np.abs((batch.rollout_logprobs - trainer_logprobs.cpu()).numpy().astype(np.float64))
    is_old = np.full(len(differences), staleness > 0) if is_earlier is None else is_earlier | (staleness > 0)
    share = outside_share(differences if staleness else differences[~is_old], dtype)
    moved, mean = (float(part.mean()) if len(part) else 0.0 for part in (differences[is_old], differences[~is_old]))
    limit, largest = LARGEST_MEAN_DIFFERENCE[dtype], 1.0 if staleness else largest_share(gates, dtype)
    if moved <= FARTHEST and mean <= limit and share <= largest:  # NaN fails each comparison
        return {OUTSIDE: share}
    path = keep(state, "rollouts", step, _table(batch, trainer_logprobs))
    if not moved <= FARTHEST:
        key = "training.staleness" if staleness else "training.dynamic_sampling.max_aborts"
        raise UserError(
            f"step {step}: the policy has moved by {moved:.3g} nats per token since earlier weights sampled tokens of its batch, and no "
            f"correction reaches further than {FARTHEST:g}: lower {key} or training.learning_rate. Every token is in {path}."
        )
    if not mean <= limit:
        found = f"the engine's logprobs are {mean:.3g} nats per token away from the trainer's, where {dtype} explains at most {limit:g}"
    else:
        found = (
            f"{share:.0%} of the tokens have logprobs of engine and trainer more than {BAND[dtype]:g} nats apart "
            f"(training.gates.outside_share: {largest:.0%})"
        )
    raise UserError(
        f"step {step}: {found}: the engine samples from other weights, at another temperature, or computes this model "
        "otherwise. Give the run its own server (runtime.engine.servers), or set rollout.dtype and training.dtype to "
        f"float32. Every token is in {path}."
    )


def _table(batch: Batch, trainer_logprobs: Tensor) -> pa.Table:
    """Return a table with one row per trained token and both logprobs."""
    sequences, trained = batch.sequences, trainer_logprobs.new_tensor(batch.sequences.trained).long()
    return pa.table(
        {
            "attempt": batch.trajectories.repeat_interleave(trained).tolist(),
            "token_id": sequences.token_ids[sequences.loss_mask].tolist(),
            "engine_logprob": batch.rollout_logprobs.tolist(),
            "trainer_logprob": trainer_logprobs.tolist(),
        }
    )
