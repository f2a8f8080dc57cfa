"""Completions that engine and trainer both score after a weight sync.

They come before anything is sampled for training. The engine completes the ends of fixed prompts (`probe_requests`); the
trainer scores the same tokens with the weights that it has just synced. They are compared by the share of differing tokens and by
the largest difference: a mean hides a few tokens that are far off. weight_sync.py compares the weights themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import pyarrow as pa
import torch
from torch.distributed.fsdp import FSDPModule

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine.interface import RolloutEngine
from dagrpo.rollout.config import Rollout
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.trainer.batches.batch import MicroBatch, TokenSequences
from dagrpo.trainer.batches.budget import Budget
from dagrpo.trainer.batches.sampling_mask import TokenSupport
from dagrpo.trainer.checks.logprob_agreement import BAND, largest_share, outside_share
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.trainer.state.refused_tables import keep
from dagrpo.utils.distributed import World

OUTSIDE, LARGEST = "gate/probe_outside_fraction", "gate/probe_largest_difference"
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


class Probe:
    """Comparison of logprobs of engine and trainer on fixed prompts.

    Every rank has one and calls `check` after each weight sync; rank 0 sends the requests.
    """

    def __init__(
        self,
        params: Gates,
        rollout: Rollout,
        prompts: Sequence[Prompt],
        *,
        dtype: str,
        policy: Policy,
        budget: Budget,
        pad_token_id: int,
        state: Path,
        seed: int,
        world: World,
    ) -> None:
        """Choose the requests. `dtype`: the type of the comparison. `budget`: the update's, whose layout the probe is scored in.

        `problems` are rank 0's; a table of a refused probe goes to the folder `state`.
        """
        self._params = params
        self._rollout = rollout
        self._dtype = dtype
        self._requests = probe_requests(prompts, params, rollout, dtype, seed)
        self._policy = policy
        self._budget = budget
        self._pad_token_id = pad_token_id
        self._state = state
        self._world = world

    def check(self, engine: RolloutEngine | None, step: int) -> dict[str, float]:
        """Score a probe of the weights that sample `step` (0-based); return rank 0's figures.

        `engine` is rank 0's. Raises UserError, which names a table of all tokens, if the two sides do not agree.
        """
        if not self._params.probe_prompts:
            return {}
        probe = None
        if engine is not None:
            completions = engine.generate(self._requests, lockstep=True)
            probe = ProbeCompletions(requests=self._requests, completions=completions)
        logprobs = self._scored(probe)
        return {} if probe is None else self._compared(probe, logprobs, step + 1)

    @torch.no_grad()
    def _scored(self, probe: ProbeCompletions | None) -> list[float]:
        """Return the trainer's logprobs, computed by all ranks together: the greedy half first. [tokens]"""
        sequences, support = self._shared(probe)
        greedy, logprobs = min(self._params.probe_prompts, len(sequences)), list[float]()
        for part, temperature in self._parts(greedy, len(sequences)):
            batch = self._laid_out(sequences, part)
            if support is not None and part.start == greedy:
                sampled = torch.arange(sum(sequences.trained[greedy:]))
                batch = replace(batch, support=support.padded(sampled, self._world.device))
            logprobs += token_logprobs(self._policy, batch, temperature).logprobs.tolist()
        if isinstance(self._policy, FSDPModule):
            self._policy.reshard()
        return logprobs

    def _laid_out(self, sequences: TokenSequences, part: range) -> MicroBatch:
        """Lay out a part of the sequences as the update lays out its micro-batches."""
        device, budget = self._world.device, self._budget
        return sequences.lay_out(part, self._pad_token_id, device, budget.layout, share_prompts=budget.share_prompts)

    def _shared(self, probe: ProbeCompletions | None) -> tuple[TokenSequences, TokenSupport | None]:
        """Return the engine's sequences and the sampling mask of the sampled half, sent from rank 0 to every rank."""
        tensors = None
        if probe is not None:
            sequences, support = probe.sequences(), probe.support()
            tensors = sequences.tensors() | ({} if support is None else support.tensors())
        tensors = self._world.broadcast_tensors(tensors)
        return TokenSequences.from_tensors(tensors), TokenSupport.from_tensors(tensors)

    def _parts(self, greedy: int, count: int) -> list[tuple[range, float]]:
        """Return the forward passes over `count` sequences, the first of them greedy: one where all have the same softmax."""
        sampled_at = self._rollout.temperature
        if (sampled_at == GREEDY_LOGPROBS_AT and not self._rollout.cuts) or greedy == count:
            return [(range(count), GREEDY_LOGPROBS_AT)]
        return [(range(greedy), GREEDY_LOGPROBS_AT), (range(greedy, count), sampled_at)]

    def _compared(self, probe: ProbeCompletions, trainer_logprobs: Sequence[float], step: int) -> dict[str, float]:
        """Check the logprobs of `step` (1-based) and return the figures."""
        params, dtype = self._params, self._dtype
        table = probe.table(trainer_logprobs, dtype)
        differences = table["difference"].to_pylist()
        share, largest = outside_share(differences, dtype), max(map(abs, differences))
        if share > largest_share(params, dtype) or not all(
            abs(each) <= params.largest_difference for each in differences
        ):
            path = keep(self._state, "probe", step, table)
            raise UserError(
                f"before step {step}: of {len(differences)} probed tokens {share:.0%} have logprobs of engine and trainer "
                f"more than {BAND[dtype]:g} nats apart, at most {largest:.3g} (training.gates.outside_share: "
                f"{largest_share(params, dtype):.0%}, largest_difference: {params.largest_difference:g}): the engine has other "
                f"weights, another temperature or another precision. Look at {path}."
            )
        return {OUTSIDE: share, LARGEST: largest}


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
