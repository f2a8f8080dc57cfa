"""Check that engine and trainer compute the same logprobs.

It compares a step's rollouts, after they were sampled, by the mean and by the share of tokens that differ by more than
rounding: a mean of 7e-4 has hidden 8% of such tokens (verl issue 6280). Before anything is sampled it probes each weight sync: the engine
completes the ends of fixed prompts, and the trainer scores the same tokens with the weights that it has just synced. These are compared by
the share of differing tokens and by the largest difference. weight_sync.py compares the weights themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine.interface import RolloutEngine
from dagrpo.rollout.config import Rollout
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.trainer.batches.batch import Batch, MicroBatch, TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.batches.sampling_mask import TokenSupport
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.trainer.state.records import keep
from dagrpo.utils.distributed import World

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


PROBED_OUTSIDE, PROBED_LARGEST = "gate/probe_outside_fraction", "gate/probe_largest_difference"
GREEDY_LOGPROBS_AT = 1.0  # the temperature of the logprobs of greedy tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCompletions:
    """Requests of a probe and the engine's completions, in the same order: first the greedy ones, then the sampled ones."""

    requests: Sequence[SamplingRequest]
    completions: Sequence[Completion]

    def sequences(self) -> TokenSequences:
        """Return prompts and completions as the trainer scores them."""
        pairs = [(r.input_ids, c.token_ids) for r, c in zip(self.requests, self.completions, strict=True)]
        return TokenSequences.of(
            [[*prompt, *tokens] for prompt, tokens in pairs],
            [[False] * len(prompt) + [True] * len(tokens) for prompt, tokens in pairs],
            [() if request.pictures is None else request.pictures.files for request in self.requests],
        )

    def support(self) -> TokenSupport | None:
        """Return the sampling mask of the sampled tokens, without the greedy ones; None if it is the whole vocabulary."""
        return TokenSupport.of([ids for completion in self.completions for ids in completion.support])

    def table(self, trainer_logprobs: Sequence[float], dtype: str) -> pa.Table:
        """Return a table with one row per token and both logprobs."""
        tokens = [
            (number, position, token, logprob)
            for number, completion in enumerate(self.completions)
            for position, (token, logprob) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True))
        ]
        rows = [
            {
                "request": number,
                "prompt_ids": list(self.requests[number].input_ids),
                "temperature": self.requests[number].temperature,
                "position": position,
                "token_id": token,
                "engine_logprob": engine,
                "trainer_logprob": trainer,
                "difference": trainer - engine,
                "outside": not abs(trainer - engine) <= BAND[dtype],
            }
            for (number, position, token, engine), trainer in zip(tokens, trainer_logprobs, strict=True)
        ]
        return pa.Table.from_pylist(rows)


@dataclass(kw_only=True)
class Probe:
    """Comparison of logprobs of engine and trainer on fixed prompts.

    Every rank has one and calls `check` after each weight sync; rank 0 sends the requests.
    """

    params: Gates
    rollout: Rollout
    prompts: Sequence[Prompt]  # rank 0's
    dtype: str  # of the comparison
    policy: Policy
    budget: Budget  # the update's, in whose layout the probe is scored
    pad_token_id: int
    state: Path  # a folder, for a table of a refused probe
    seed: int
    world: World

    def __post_init__(self) -> None:
        """Choose the requests."""
        self._requests = probe_requests(self.prompts, self.params, self.rollout, self.dtype, self.seed)

    def check(self, engine: RolloutEngine | None, step: int) -> dict[str, float]:
        """Score a probe of the weights that sample `step` (0-based); return rank 0's figures.

        `engine` is rank 0's. Raises UserError, which names a table of all tokens, if the two sides do not agree.
        """
        if not self.params.probe_prompts:
            return {}
        probe = None
        if engine is not None:
            completions = engine.generate(self._requests, lockstep=True)
            probe = ProbeCompletions(requests=self._requests, completions=completions)
        logprobs = self._score(probe)
        return {} if probe is None else self._require_agreement(probe, logprobs, step + 1)

    @torch.no_grad()
    def _score(self, probe: ProbeCompletions | None) -> list[float]:
        """Return the trainer's logprobs, computed by all ranks together: the greedy half first. [tokens]"""
        sequences, support = self._share(probe)
        greedy, logprobs = min(self.params.probe_prompts, len(sequences)), list[float]()
        for part, temperature in self._parts(greedy, len(sequences)):
            batch = self._lay_out(sequences, part)
            if support is not None and part.start == greedy:
                sampled = torch.arange(sum(sequences.trained[greedy:]))
                batch = replace(batch, support=support.padded(sampled, self.world.device))
            logprobs += token_logprobs(self.policy, batch, temperature).logprobs.tolist()
        if isinstance(self.policy, FSDPModule):
            self.policy.reshard()
        return logprobs

    def _lay_out(self, sequences: TokenSequences, part: range) -> MicroBatch:
        """Lay out a part of the sequences as the update lays out its micro-batches."""
        device, budget = self.world.device, self.budget
        return sequences.lay_out(part, self.pad_token_id, device, budget.layout, share_prompts=budget.share_prompts)

    def _share(self, probe: ProbeCompletions | None) -> tuple[TokenSequences, TokenSupport | None]:
        """Return the engine's sequences and the sampling mask of the sampled half, sent from rank 0 to every rank."""
        tensors = None
        if probe is not None:
            sequences, support = probe.sequences(), probe.support()
            tensors = sequences.tensors() | ({} if support is None else support.tensors())
        tensors = self.world.broadcast_tensors(tensors)
        return TokenSequences.from_tensors(tensors), TokenSupport.from_tensors(tensors)

    def _parts(self, greedy: int, count: int) -> list[tuple[range, float]]:
        """Return the forward passes over `count` sequences, the first of them greedy: one where all have the same softmax."""
        sampled_at = self.rollout.temperature
        if (sampled_at == GREEDY_LOGPROBS_AT and not self.rollout.cuts) or greedy == count:
            return [(range(count), GREEDY_LOGPROBS_AT)]
        return [(range(greedy), GREEDY_LOGPROBS_AT), (range(greedy, count), sampled_at)]

    def _require_agreement(
        self, probe: ProbeCompletions, trainer_logprobs: Sequence[float], step: int
    ) -> dict[str, float]:
        """Check the logprobs of `step` (1-based) and return the figures."""
        params, dtype = self.params, self.dtype
        table = probe.table(trainer_logprobs, dtype)
        differences = table["difference"].to_pylist()
        share, largest = outside_share(differences, dtype), max(map(abs, differences))
        if share > largest_share(params, dtype) or not all(
            abs(each) <= params.largest_difference for each in differences
        ):
            path = keep(self.state, "probe", step, table)
            raise UserError(
                f"before step {step}: of {len(differences)} probed tokens {share:.0%} have logprobs of engine and trainer "
                f"more than {BAND[dtype]:g} nats apart, at most {largest:.3g} (training.gates.outside_share: "
                f"{largest_share(params, dtype):.0%}, largest_difference: {params.largest_difference:g}): the engine has other "
                f"weights, another temperature or another precision. Look at {path}."
            )
        return {PROBED_OUTSIDE: share, PROBED_LARGEST: largest}


_TOKENS = {"float32": 2, "float16": 8, "bfloat16": 8}  # of a completion, by the type that both sides are compared in


def probe_requests(
    prompts: Sequence[Prompt], gates: Gates, rollout: Rollout, dtype: str, seed: int
) -> list[SamplingRequest]:
    """Return the probe's requests: first the greedy ones, then the sampled ones; none without problems.

    No prompt is used twice, if there are enough: a repeated one would need one more request. One shows a picture, if any
    of the problems does.
    """
    half, length = gates.probe_prompts, gates.probe_prompt_tokens
    chosen = _chosen(prompts, 2 * half, length)
    if len(chosen) < 2 * half:  # too many prompts end alike
        length = None
        chosen = _chosen(prompts, 2 * half, length)
    selected = [*islice(cycle(chosen), 2 * half)]
    tokens = _TOKENS[dtype] if gates.probe_tokens is None else gates.probe_tokens
    return [
        SamplingRequest(
            input_ids=_end(prompt, length),
            seed=sampling_seed(seed, "probe", number),
            temperature=0.0 if number < half else rollout.temperature,
            top_p=1.0 if number < half else rollout.top_p,
            top_k=-1 if number < half else rollout.top_k,
            max_new_tokens=min(tokens, rollout.max_new_tokens),
            support=rollout.cuts and number >= half,
            pictures=prompt.pictures,
        )
        for number, prompt in enumerate(selected)
    ]


def _chosen(prompts: Sequence[Prompt], count: int, length: int | None) -> list[Prompt]:
    """Return the first problems with distinct ends. If none shows a picture, the first problem with one replaces the first."""
    first = dict[tuple[int, ...], Prompt]()
    for prompt in prompts:
        if len(first) == count:
            break
        first.setdefault(_end(prompt, length), prompt)
    chosen = [*first.values()]
    with_picture = next((prompt for prompt in prompts if prompt.picture_files), None)
    if with_picture is not None and not any(prompt.picture_files for prompt in chosen):
        chosen[:1] = [with_picture]
    return chosen


def _end(prompt: Prompt, length: int | None) -> tuple[int, ...]:
    """Return the last `length` tokens of a prompt. A prompt with pictures stays whole: each picture has placeholders in it."""
    return prompt.token_ids if length is None or prompt.picture_files else prompt.token_ids[-length:]
