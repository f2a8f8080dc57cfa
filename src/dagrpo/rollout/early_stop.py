"""Free-running groups, judged as they finish, until there are enough.

The rest is cut off: its requests are aborted at the engine, and none of its tokens is used. trainer/sampling/dynamic_sampling.py decides
which groups count.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from dagrpo.core.trajectory import Trajectory
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine.errors import ServerError
from dagrpo.engine.interface import RolloutEngine
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.rollout.sampling import Sampling
from dagrpo.rollout.schedule import Group, attempts_of, report_retries


class Judge(Protocol):
    """Decision, from finished groups, whether there are enough."""

    def judge(self, position: int, group: Sequence[Trajectory]) -> None:
        """Take a finished group. Called in a separate thread, one group at a time, in the order in which they finish."""
        ...

    @property
    def is_full(self) -> bool:
        """Return True if there are enough, and from then on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """Result of an early stop: the groups that were cut off."""

    positions: tuple[int, ...] = ()  # rising, of the problems whose groups were cut off
    tokens: int = 0  # that were written for these, as far as the engine tells


class EarlyStop:
    """Free-running groups of one round, of which unfinished ones are cut off once `judge` has enough.

    Only groups at the positions `cuttable` are cut off; all others are waited for. If the server of a group dies and there are
    others, its attempts are made again on one of those.
    """

    def __init__(
        self, sampling: Sampling, engine: RolloutEngine, agent: OpenAgent, judge: Judge, cuttable: Collection[int]
    ) -> None:
        assert sampling.batch_size is None, "all are in flight at once"
        self._sampling = sampling
        self._engine = engine
        self._agent = agent
        self._judge = judge
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="judging")
        self._cuttable = {*cuttable}  # of those that still run
        self._abortable = bool(cuttable)
        self._cut: set[int] = set()
        self._token_counts: Counter[int] = Counter()  # tokens that the engine has given to each group
        self._retried = 0

    async def run(self, groups: Sequence[Group]) -> CutOff:
        """Run until the last group is judged or cut off."""
        tasks = {asyncio.ensure_future(self._make_and_judge(group)): group[0].position for group in groups}
        running, aborted = {*tasks}, 0
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if self._cuttable and running and self._judge.is_full:
                    cut = {task for task in running if tasks[task] in self._cuttable}
                    running -= cut
                    aborted += await self._cut_off({task: tasks[task] for task in cut})
        finally:
            for task in running:
                task.cancel()
            await _wait_for_end(tasks)
            self._executor.shutdown(wait=False, cancel_futures=True)  # it works only where this was broken off
        report_retries(self._retried)
        returned = sum(self._token_counts[position] for position in self._cut)
        return CutOff(positions=tuple(sorted(self._cut)), tokens=returned + aborted)

    async def _make_and_judge(self, group: Group) -> None:
        position = group[0].position

        async def send(request: SamplingRequest) -> Completion:
            if position in self._cut:  # an agent that takes its time to end
                raise ServerError("The attempt was cut off, as there are enough others.")
            completion = await self._engine.complete(request, session=str(position), abortable=self._abortable)
            self._token_counts[position] += len(completion.token_ids)
            return completion

        trajectories, retried = await attempts_of(group, self._sampling, self._agent, send)
        self._retried += retried
        self._cuttable.discard(position)
        if position not in self._cut:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._judge.judge, position, trajectories)

    async def _cut_off(self, groups: dict["asyncio.Task[None]", int]) -> int:
        """Cancel these groups, here and at the engine; return how many tokens the engine had written but not returned.

        Errors of an agent while it is cut off are ignored.
        """
        self._cut |= {*groups.values()}
        self._cuttable -= self._cut
        for task in groups:
            task.cancel()
        tokens = await self._engine.abort([str(position) for position in groups.values()])
        await _wait_for_end(groups)
        return tokens


async def _wait_for_end(tasks: Collection["asyncio.Task[None]"]) -> None:
    """Wait until all have ended, whatever they raise. They are cancelled only once, so that agents can close their resources."""
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # asyncio complains about an exception that is never retrieved
