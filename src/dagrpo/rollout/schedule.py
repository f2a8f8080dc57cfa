"""The two orders in which the completions of many attempts are asked for. What an attempt is, only its agent knows."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dagrpo.records import Completion, SamplingRequest
from dagrpo.rollout.agent import Agent
from dagrpo.rollout.engine.interface import RolloutEngine
from dagrpo.rollout.sampling import Sampling
from dagrpo.rollout.seeds import sampling_seed
from dagrpo.rollout.trajectory import Problem, Trajectory

OnBatch = Callable[[Sequence[Trajectory]], None]
Send = Callable[[SamplingRequest], Awaitable[Completion]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAttempt:
    """One attempt that is to be made."""

    position: int  # of its problem among those that were asked for: a problem may be among them twice
    problem: Problem
    sample_index: int
    seed: int  # of its first completion


async def in_lockstep(
    planned: Sequence[PlannedAttempt], sampling: Sampling, engine: RolloutEngine, agent: Agent, on_batch: OnBatch
) -> list[Trajectory]:
    """Batch by batch; within a batch, the next completions of all unfinished attempts are one request."""
    size = sampling.batch_size or max(len(planned), 1)
    trajectories: list[Trajectory] = []
    for start in range(0, len(planned), size):
        batch = planned[start : start + size]
        wave = _Wave(engine, len(batch))
        attempts = [_attempt(each, sampling, agent, wave.sender(order)) for order, each in enumerate(batch)]
        finished = await asyncio.gather(*map(wave.counted, attempts))
        on_batch(finished)
        trajectories += finished
    return trajectories


async def free_running(
    planned: Sequence[PlannedAttempt], sampling: Sampling, engine: RolloutEngine, agent: Agent, on_batch: OnBatch
) -> list[Trajectory]:
    """Each attempt as fast as it can; those at one problem start together, on one server."""
    width = max(len(sampling.sample_indices), 1)
    limit = asyncio.Semaphore(max((sampling.batch_size or len(planned)) // width, 1))

    async def attempts_at(group: Sequence[PlannedAttempt]) -> list[Trajectory]:
        async def send(request: SamplingRequest) -> Completion:
            return await engine.complete(request, session=str(group[0].position))

        async with limit:
            finished = await asyncio.gather(*(_attempt(each, sampling, agent, send) for each in group))
        on_batch(finished)
        return finished

    groups = [planned[start : start + width] for start in range(0, len(planned), width)]
    return [trajectory for group in await asyncio.gather(*map(attempts_at, groups)) for trajectory in group]


async def _attempt(planned: PlannedAttempt, sampling: Sampling, agent: Agent, send: Send) -> Trajectory:
    """Turn 0 has the attempt's seed, each later turn one of its own."""
    turn = 0

    async def complete(token_ids: tuple[int, ...]) -> Completion:
        nonlocal turn
        seed = planned.seed if turn == 0 else sampling_seed(planned.seed, "turn", turn)
        turn += 1
        return await send(sampling.request(token_ids, planned.sample_index, seed))

    return await agent(planned.problem, planned.sample_index, planned.seed, complete)


class _Wave:
    """Collects one request of every unfinished attempt, then asks for all of them at once, in the order of the attempts.

    So what is in a batch follows from the attempts alone, however long anything between two turns takes.
    """

    def __init__(self, engine: RolloutEngine, attempts: int) -> None:
        self._engine = engine
        self._unfinished = attempts
        self._waiting: dict[int, tuple[SamplingRequest, asyncio.Future[Completion]]] = {}

    def sender(self, order: int) -> Send:
        """What the attempt with this place in the batch sends its requests with."""

        async def send(request: SamplingRequest) -> Completion:
            answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
            self._waiting[order] = (request, answer)
            self._go_when_complete()
            return await answer

        return send

    async def counted(self, attempt: Awaitable[Trajectory]) -> Trajectory:
        """The attempt, after which the others no longer wait for it."""
        trajectory = await attempt
        self._unfinished -= 1
        self._go_when_complete()
        return trajectory

    def _go_when_complete(self) -> None:
        if not self._waiting or len(self._waiting) < self._unfinished:
            return
        # Blocks the event loop, which does no harm: every unfinished attempt waits for this request.
        wave = [self._waiting[order] for order in sorted(self._waiting)]
        self._waiting = {}
        completions = self._engine.generate([request for request, _ in wave], lockstep=True)
        for (_, answer), completion in zip(wave, completions, strict=True):
            answer.set_result(completion)
