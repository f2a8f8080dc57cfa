"""Schedule the turns of many attempts, in lockstep or free-running.

Agents implement the attempts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dagrpo.core.trajectory import Prompt, Trajectory
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine.background import all_of
from dagrpo.engine.errors import ServerGone
from dagrpo.engine.interface import RolloutEngine
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.rollout.sampling import Sampling, sampling_seed
from dagrpo.utils.console import say

OnBatch = Callable[[Sequence[Trajectory]], None]
SeedOf = Callable[[int, int], int]  # of the position of a prompt and the index of its sample
Send = Callable[[SamplingRequest], Awaitable[Completion]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Attempt that is to be made: which sample of which prompt, by which seed."""

    position: int  # of its prompt among those that are sampled together: a prompt may be among them twice
    prompt: Prompt
    sample_index: int
    seed: int  # of its first turn

    @property
    def name(self) -> str:
        """Return the attempt's name: unique within a step, and the same after an interruption."""
        return f"{self.position}-{self.sample_index}-{self.seed}"


Group = Sequence[Attempt]


def attempts_at(prompts: Sequence[Prompt], sampling: Sampling, seed_of: SeedOf) -> list[Attempt]:
    """Return the attempts at each prompt, in order: the greedy one if any, then sample 0, 1, ..."""
    return [
        Attempt(position=position, prompt=prompt, sample_index=sample, seed=seed_of(position, sample))
        for position, prompt in enumerate(prompts)
        for sample in sampling.sample_indices
    ]


async def in_lockstep(
    attempts: Sequence[Attempt],
    sampling: Sampling,
    engine: RolloutEngine,
    agent: OpenAgent,
    on_batch: OnBatch = lambda trajectories: None,
) -> list[Trajectory]:
    """Make the attempts batch by batch; within a batch, the next turns of all unfinished attempts are one request, a wave."""
    size = sampling.batch_size or max(len(attempts), 1)
    trajectories: list[Trajectory] = []
    for start in range(0, len(attempts), size):
        batch = attempts[start : start + size]
        waves = _Waves(engine, len(batch))
        started = [attempt(each, sampling, agent, waves.sender(place)) for place, each in enumerate(batch)]
        finished = await all_of(map(waves.counted, started))
        on_batch(finished)
        trajectories += finished
    return trajectories


async def free_running(
    attempts: Sequence[Attempt], sampling: Sampling, engine: RolloutEngine, agent: OpenAgent, on_batch: OnBatch
) -> list[Trajectory]:
    """Make each attempt as fast as it can; attempts at one prompt start together, on one server.

    If that server dies and there are others, they start again on one of those.
    """
    groups = groups_of(attempts, sampling)
    width = max(len(sampling.sample_indices), 1)
    limit = asyncio.Semaphore(max((sampling.batch_size or len(attempts)) // width, 1))
    total_retried = 0

    async def finished(group: Group) -> list[Trajectory]:
        nonlocal total_retried

        async def send(request: SamplingRequest) -> Completion:
            return await engine.complete(request, session=str(group[0].position))

        async with limit:
            trajectories, retried = await attempts_of(group, sampling, agent, send)
        total_retried += retried
        on_batch(trajectories)
        return trajectories

    trajectories = [trajectory for group in await all_of(map(finished, groups)) for trajectory in group]
    report_retries(total_retried)
    return trajectories


def groups_of(attempts: Sequence[Attempt], sampling: Sampling) -> list[Group]:
    """Return the attempts grouped by prompt."""
    width = max(len(sampling.sample_indices), 1)
    return [attempts[start : start + width] for start in range(0, len(attempts), width)]


async def attempts_of(group: Group, sampling: Sampling, agent: OpenAgent, send: Send) -> tuple[list[Trajectory], int]:
    """Make the attempts of a group at the same time, again if their server dies; return also the number of lost ones."""
    retried = 0
    while True:
        try:
            return await all_of(attempt(each, sampling, agent, send) for each in group), retried
        except ServerGone:
            retried += len(group)


def report_retries(retried: int) -> None:
    """Print how many trajectories were sampled again."""
    if retried:
        say(f"{retried} trajectories were sampled again, as their server had died.")


async def attempt(one: Attempt, sampling: Sampling, agent: OpenAgent, send: Send) -> Trajectory:
    """Make one attempt. Turn 0 has the attempt's seed, each later turn a separate one."""
    turn = 0

    async def complete(token_ids: tuple[int, ...], most: int) -> Completion:
        nonlocal turn
        seed = one.seed if turn == 0 else sampling_seed(one.seed, "turn", turn)
        turn += 1
        pictures = one.prompt.pictures
        return await send(sampling.request(token_ids, one.sample_index, seed, most, pictures))

    session = agent.session(one.prompt, complete, one.seed, one.name)
    return await agent.make_attempt(one.prompt, one.sample_index, session)


class _Waves:
    """Waves of one request of each unfinished attempt, sent together in the order of the attempts.

    The requests of a wave then depend on the attempts alone, however long anything between two turns takes. The cache is
    emptied before the first wave and kept between the others: its content then depends on the attempts alone as well.
    """

    def __init__(self, engine: RolloutEngine, attempts: int) -> None:
        self._engine = engine
        self._unfinished = attempts
        self._is_first = True
        self._waiting: dict[int, tuple[SamplingRequest, asyncio.Future[Completion]]] = {}
        # Of a program that asks for several turns at once: one at a time, as a wave has one request of each attempt.
        self._turns = [asyncio.Lock() for _ in range(attempts)]

    def sender(self, place: int) -> Send:
        """Return the function that sends the requests of the attempt with this index in the batch."""

        async def send(request: SamplingRequest) -> Completion:
            async with self._turns[place]:
                answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
                self._waiting[place] = (request, answer)
                self._go_when_complete()
                try:
                    return await answer
                finally:
                    self._waiting.pop(place, None)  # the attempt may have run out of time

        return send

    async def counted(self, attempt: Awaitable[Trajectory]) -> Trajectory:
        """Return the attempt's trajectory, after which the others no longer wait for it."""
        trajectory = await attempt
        self._unfinished -= 1
        self._go_when_complete()
        return trajectory

    def _go_when_complete(self) -> None:
        if not self._waiting or len(self._waiting) < self._unfinished:
            return
        # Blocks the event loop, which does no harm: every unfinished attempt waits for this request.
        places = sorted(self._waiting)
        requests, answers = zip(*(self._waiting[place] for place in places), strict=True)
        self._waiting = {}
        completions = self._engine.generate(requests, lockstep=True, places=places, first_wave=self._is_first)
        self._is_first = False
        for answer, completion in zip(answers, completions, strict=True):
            answer.set_result(completion)
