"""Free-running groups, judged as they finish, until enough count.

The rest is cut off: its requests are aborted at the engine. What was sampled for it is either thrown away, or returned as parts, which
a later round continues. trainer/sampling/dynamic_sampling.py decides which groups count.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from dagrpo.core.trajectory import GREEDY, Trajectory
from dagrpo.core.types import ABORTED, Completion, SamplingRequest
from dagrpo.engine.errors import ServerError
from dagrpo.engine.interface import RolloutEngine
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.rollout.sampling import Sampling
from dagrpo.rollout.schedule import Group, attempts_of, report_retries


class Judge(Protocol):
    """Decision, from finished groups, of which there are enough."""

    def judge(self, position: int, group: Sequence[Trajectory]) -> None:
        """Take a finished group. Called in a separate thread, one group at a time, in the order in which they finish."""

    def has_enough(self, position: int) -> bool:
        """Return True if no group such as that at `position` is needed, and from then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Attempt of a single turn whose group was cut off, as far as it was sampled."""

    seed: int  # of the attempt
    completion: Completion  # whole, or ABORTED, and then to be continued


Parts = Mapping[int, Part]  # of a group, by the index of the sample


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """Result of an early stop: the groups that were cut off."""

    positions: tuple[int, ...] = ()  # rising, of the problems whose groups were cut off
    tokens: int = 0  # that were written for these and are in no part, as far as the engine tells
    parts: Mapping[int, Parts] = field(default_factory=dict)  # by position


def kept(part: Completion) -> Completion:
    """Return the completion that a later step can continue: without its last token if it was aborted.

    That token may be the end of the completion, which the engine had not seen yet; it is sampled again.
    """
    if part.finish_reason != ABORTED:
        return part
    count = max(len(part.token_ids) - 1, 0)
    return replace(part, token_ids=part.token_ids[:count], logprobs=part.logprobs[:count], support=part.support[:count])


def continued(request: SamplingRequest, part: Completion) -> SamplingRequest:
    """Return the request for the rest of a completion: with the same seed, whose next draws depend on positions."""
    return replace(
        request,
        input_ids=request.input_ids + part.token_ids,
        max_new_tokens=request.max_new_tokens - len(part.token_ids),
    )


def followed(part: Completion, rest: Completion) -> Completion:
    """Return a part and its rest as one completion, which names the weights of both."""
    of_part = len(part.token_ids) - sum(tokens for _, tokens in part.earlier)
    is_same = part.weight_version == rest.weight_version
    return replace(
        rest,
        token_ids=part.token_ids + rest.token_ids,
        logprobs=part.logprobs + rest.logprobs,
        support=part.support + rest.support,
        earlier=part.earlier if is_same else (*part.earlier, (part.weight_version, of_part)),
        cached_tokens=part.cached_tokens,  # of the prompt without the part
    )


class EarlyStop:
    """Free-running groups of one round, of which unfinished ones are cut off once `judge` has enough of them.

    Only groups at the positions `cuttable` are cut off; all others are waited for. If the server of a group dies and there are
    others, its attempts are made again on one of those.
    """

    def __init__(
        self,
        sampling: Sampling,
        engine: RolloutEngine,
        agent: OpenAgent,
        judge: Judge,
        cuttable: Collection[int],
        parts: Mapping[int, Parts] | None = None,
    ) -> None:
        """Set up a round. `parts`, by position, are continued; groups without an entry, which may be {}, leave none."""
        assert sampling.batch_size is None, "all are in flight at once"
        given = parts or {}
        self._sampling = sampling
        self._engine = engine
        self._agent = agent
        self._judge = judge
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="judging")
        self._cuttable = {*cuttable}  # of those that still run
        self._abortable = bool(cuttable)
        self._cut: set[int] = set()
        self._token_counts: Counter[int] = Counter()  # tokens that the engine has given to each group
        # By position and seed: as far as they were sampled.
        self._completions = {at: {each.seed: each.completion for each in own.values()} for at, own in given.items()}
        self._given = Counter({at: _tokens(own.values()) for at, own in self._completions.items()})
        self._retried = 0

    async def run(self, groups: Sequence[Group]) -> CutOff:
        """Run until the last group is judged or cut off."""
        tasks = {asyncio.ensure_future(self._make_and_judge(group)): group[0].position for group in groups}
        running = {*tasks}
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                own = {task: tasks[task] for task in running if tasks[task] in self._cuttable}
                if cut := {task: position for task, position in own.items() if self._judge.has_enough(position)}:
                    running -= cut.keys()
                    await self._cut_off(cut)
        finally:
            for task in running:
                task.cancel()
            await _wait_for_end(tasks)
            self._executor.shutdown(wait=False, cancel_futures=True)  # it works only where this was broken off
        report_retries(self._retried)
        found = {group[0].position: self._parts_of(group) for group in groups if group[0].position in self._cut}
        parts = {position: own for position, own in found.items() if own}
        saved = sum(_tokens(part.completion for part in own.values()) for own in parts.values())
        written = sum(self._token_counts[position] + self._given[position] for position in self._cut)
        return CutOff(positions=tuple(sorted(self._cut)), tokens=written - saved, parts=parts)

    def _parts_of(self, group: Group) -> Parts:
        """Return the parts of a group that was cut off. A greedy attempt leaves none: as a baseline it is of one policy."""
        own = self._completions.get(group[0].position, {})
        return {
            one.sample_index: Part(seed=one.seed, completion=own[one.seed])
            for one in group
            if one.seed in own and one.sample_index != GREEDY
        }

    async def _make_and_judge(self, group: Group) -> None:
        position = group[0].position

        async def send(request: SamplingRequest) -> Completion:
            if position in self._cut:  # an agent that takes its time to end
                raise ServerError("The attempt was cut off, as there are enough others.")
            part = self._completions.get(position, {}).get(request.seed)
            if part is not None and part.finish_reason != ABORTED:
                return part
            rest = request if part is None else continued(request, part)
            completion = await self._engine.complete(rest, session=str(position), abortable=self._abortable)
            return self._taken(position, request.seed, completion)

        trajectories, retried = await attempts_of(group, self._sampling, self._agent, send)
        self._retried += retried
        self._cuttable.discard(position)
        if position not in self._cut:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._judge.judge, position, trajectories)

    def _taken(self, position: int, seed: int, completion: Completion) -> Completion:
        """Count a completion; return it as a whole, and remember it in case that its group is cut off."""
        self._token_counts[position] += len(completion.token_ids)
        own, whole = self._completions.get(position), kept(completion)
        if own is None or not whole.token_ids:
            return completion
        own[seed] = followed(own[seed], whole) if seed in own else whole
        return own[seed]

    async def _cut_off(self, groups: dict["asyncio.Task[None]", int]) -> None:
        """Cancel these groups, here and at the engine.

        Errors of an agent while it is cut off are ignored.
        """
        # Marked before anything is awaited: an agent that catches the cancellation, or a tool that ends just now, must not send
        # another request (`send` looks here), and a group that ends just now must not be judged as well.
        self._cut |= {*groups.values()}
        self._cuttable -= self._cut
        # Cancelled before the engine aborts: in the other order an aborted request would come back to its agent as an answer,
        # and the agent would go on with the next turn.
        for task in groups:
            task.cancel()
        # The engine hands over what it had sampled, since the cancelled tasks no longer take their answers.
        for each in await self._engine.abort([str(position) for position in groups.values()]):
            self._taken(int(each.session), each.request.seed, each.completion)
        await _wait_for_end(groups)


def _tokens(completions: Iterable[Completion]) -> int:
    return sum(len(completion.token_ids) for completion in completions)


async def _wait_for_end(tasks: Collection["asyncio.Task[None]"]) -> None:
    """Wait until all have ended, whatever they raise. They are cancelled only once, so that agents can close their resources."""
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # asyncio complains about an exception that is never retrieved
