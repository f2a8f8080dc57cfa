"""Groups are judged while others still run; once there are enough, the others are cut off, here and at the engine."""

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rollout.paced_engine import NEVER, TOKENS_OF_ABORTED, PacedEngine
from tests.rollout.scripted_chat import END
from tests.rollout.talking import SAMPLING, Echo, agent_with, tool_problem

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt, Trajectory
from dagrpo.core.types import ABORTED, Completion, SamplingRequest
from dagrpo.engine.errors import ServerError, ServerGone
from dagrpo.engine.interface import Aborted, RolloutEngine
from dagrpo.rollout.early_stop import CutOff, EarlyStop, Judge, Parts
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.rollout.schedule import attempts_at, groups_of

WAIT = 20.0  # seconds, for what comes at once


@dataclass
class Counting(Judge):
    """Has enough after so many groups; does `also` to each."""

    enough: int
    also: Callable[[int], None] = lambda position: None
    judged: dict[int, list[Trajectory]] = field(default_factory=dict)

    def judge(self, position: int, group: Sequence[Trajectory]) -> None:
        self.also(position)
        self.judged[position] = list(group)

    def has_enough(self, position: int) -> bool:
        return len(self.judged) >= self.enough


def collected(
    engine: RolloutEngine,
    judge: Judge,
    problems: int = 4,
    *,
    cuttable: Collection[int] | None = None,
    parts: Mapping[int, Parts] | None = None,
    tool: Echo | None = None,
    see: Callable[[OpenAgent], None] = lambda agent: None,
    first: int = 0,
    **changes: Any,
) -> CutOff:
    """Two attempts at each problem, whose seeds are ten times its position, and one more; `see` is shown the agent."""
    sampling = replace(SAMPLING, **{"lockstep": False, "samples": 2, **changes})
    prompts = [tool_problem(index=index, question=str(index)) for index in range(problems)]
    attempts = attempts_at(prompts, sampling, lambda position, sample: first + 10 * position + sample)
    with agent_with({"echo": tool or Echo()}) as agent:
        see(agent)
        groups = EarlyStop(sampling, engine, agent, judge, range(problems) if cuttable is None else cuttable, parts)
        return agent.run(groups.run(groups_of(attempts, sampling)))


def never_at(*positions: int) -> Callable[[SamplingRequest], int]:
    """The second attempt at these problems does not end; all others do at once."""
    return lambda request: NEVER if request.seed // 10 in positions and request.seed % 10 == 1 else 0


def test_what_still_runs_when_there_is_enough_is_cut_off_here_and_at_the_engine() -> None:
    engine, judge = PacedEngine(never_at(1, 3)), Counting(enough=2)
    cut_off = collected(engine, judge)
    done = len("done") + 1  # of the first attempt at each
    assert cut_off == CutOff(positions=(1, 3), tokens=2 * (done + TOKENS_OF_ABORTED))
    assert engine.aborted == ["1", "3"]
    assert sorted(judge.judged) == [0, 2]
    assert [each.sample_index for each in judge.judged[2]] == [0, 1]
    assert not any(engine.at_work.values())
    assert engine.abortable == {True}


def test_a_group_that_may_not_be_cut_off_is_waited_for_when_the_others_are_gone() -> None:
    class Patient(PacedEngine):
        async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
            while session == "2" and not self.aborted:
                await asyncio.sleep(0)
            return await super().complete(request, session, abortable=abortable)

    engine, judge = Patient(never_at(1, 3)), Counting(enough=1)
    assert collected(engine, judge, cuttable=(0, 1, 3)).positions == (1, 3)
    assert sorted(judge.judged) == [0, 2]


def test_a_group_that_has_finished_is_judged_even_when_there_is_enough() -> None:
    """All are finished before the first of them is judged."""
    asked = threading.Semaphore(0)

    def slowly(position: int) -> None:
        if not judge.judged:
            assert all(asked.acquire(timeout=WAIT) for _ in range(8))

    def pace(request: SamplingRequest) -> int:
        asked.release()
        return 0

    judge = Counting(enough=1, also=slowly)
    assert collected(PacedEngine(pace), judge) == CutOff()
    assert sorted(judge.judged) == [0, 1, 2, 3]


def test_judging_and_sampling_do_not_wait_for_each_other() -> None:
    """The second group is answered while the first is judged, and the third when the first was judged."""
    judging, answered = threading.Event(), threading.Event()

    class Meeting(PacedEngine):
        async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
            while session == "1" and not judging.is_set():
                await asyncio.sleep(0)
            if session == "1":
                answered.set()
            while session == "2" and 0 not in judge.judged:
                await asyncio.sleep(0)
            return await super().complete(request, session, abortable=abortable)

    def meet(position: int) -> None:
        if position == 0:
            judging.set()
            assert answered.wait(WAIT)

    judge = Counting(enough=99, also=meet)
    assert collected(Meeting(lambda request: 0), judge, problems=3) == CutOff()
    assert next(iter(judge.judged)) == 0
    assert len(judge.judged) == 3


def test_what_judging_breaks_with_ends_the_round_and_all_of_its_attempts() -> None:
    def refuse(position: int) -> None:
        raise UserError("row 3: no ground truth")

    engine, tool = PacedEngine(never_at(1, 2, 3)), Echo()
    with pytest.raises(UserError, match=r"^row 3: no ground truth$"):
        collected(engine, Counting(enough=9, also=refuse), tool=tool)
    assert not any(engine.at_work.values())
    assert len(tool.forgotten) == 8


def test_an_attempt_is_cut_off_within_a_tool_which_hears_of_its_end_once() -> None:
    asked = asyncio.Event()

    async def endless() -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    class Calling(PacedEngine):
        async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
            if session == "0":
                await asked.wait()
            return await super().complete(request, session, abortable=abortable)

    tool = Echo(lambda arguments, context: endless())
    engine = Calling(lambda request: 0, lambda request: "done" if request.seed < 10 else "@echo{}")
    judge = Counting(enough=1)
    cut_off = collected(engine, judge, problems=2, tool=tool)
    assert cut_off == CutOff(positions=(1,), tokens=2 * (len("@echo{}") + 1)), "of the turns before the call"
    assert sorted(judge.judged) == [0]
    assert sorted(tool.forgotten) == ["0-0-0", "0-1-1", "1-0-10", "1-1-11"]


def test_an_agent_that_goes_on_although_it_was_cut_off_is_told_so_and_its_group_is_not_judged() -> None:
    told: list[str] = []
    engine, judge = PacedEngine(never_at(1)), Counting(enough=1)

    def be_stubborn(agent: OpenAgent) -> None:
        make_attempt = agent.make_attempt

        async def stubborn(prompt: Prompt, sample_index: int, session: Any) -> Trajectory:
            try:
                return await make_attempt(prompt, sample_index, session)
            except asyncio.CancelledError:
                with pytest.raises(ServerError) as refused:
                    await session.ask(prompt.row.prompt)
                told.append(str(refused.value))
                return judge.judged[0][0]

        agent.make_attempt = stubborn

    assert collected(engine, judge, problems=2, see=be_stubborn).positions == (1,)
    assert told == ["The attempt was cut off, as there are enough others."]
    assert sorted(judge.judged) == [0]


class _Dying(PacedEngine):
    """The server of the session "1" dies at its first request, and does so again when it is asked while others are aborted."""

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        if session == "1" and "1" not in self.sessions:
            self.sessions.append("1")
            raise ServerGone("http://b cannot be reached")
        return await super().complete(request, session, abortable=abortable)


def test_a_group_whose_server_died_is_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    judge = Counting(enough=9)
    assert collected(_Dying(lambda request: 0), judge) == CutOff()
    assert [len(group) for group in judge.judged.values()] == [2] * 4
    assert "2 trajectories were sampled again, as their server had died." in capsys.readouterr().err


def test_a_group_that_is_cut_off_when_its_server_dies_is_not_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    class DyingLate(PacedEngine):
        async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
            try:
                return await super().complete(request, session, abortable=abortable)
            except asyncio.CancelledError:
                raise ServerGone("http://b cannot be reached") from None

    engine, judge = DyingLate(never_at(1)), Counting(enough=1)
    assert collected(engine, judge, problems=2).positions == (1,)
    assert sorted(judge.judged) == [0]
    assert not any(engine.at_work.values())


def test_a_round_that_is_interrupted_while_it_is_cut_off_leaves_nothing_behind() -> None:
    class Hanging(PacedEngine):
        async def abort(self, sessions: Collection[str]) -> list[Aborted]:
            threading.Thread(target=agents[0].interrupt).start()
            await asyncio.Event().wait()
            return []

    engine, tool, agents = Hanging(never_at(1)), Echo(), list[OpenAgent]()
    with pytest.raises((asyncio.CancelledError, CancelledError)):
        collected(engine, Counting(enough=1), problems=2, tool=tool, see=agents.append)
    assert not any(engine.at_work.values())
    assert len(tool.forgotten) == 4


class Drawing(PacedEngine):
    """Draws each token by seed and position, as a seeded server does; what runs without an end is aborted after `most` tokens."""

    def __init__(self, pace: Callable[[SamplingRequest], int], most: int = 0, version: str = "step_0") -> None:
        super().__init__(pace)
        self.most = most
        self.version = version
        self.lengths: list[int] = []  # of the prompts of its requests

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        self.lengths.append(len(request.input_ids))
        return await super().complete(request, session, abortable=abortable)

    def _said(self, request: SamplingRequest) -> Completion:
        tokens: list[int] = []
        while len(tokens) < request.max_new_tokens and tokens[-1:] != [ord(END)]:
            drawn = (request.seed * 31 + (len(request.input_ids) + len(tokens)) * 17) % 23
            tokens.append(ord("a") + drawn if drawn else ord(END))
        return Completion(
            token_ids=tuple(tokens),
            logprobs=tuple(-float(token) for token in tokens),
            finish_reason="stop" if tokens[-1] == ord(END) else "length",
            weight_version=self.version,
        )

    def part_of(self, request: SamplingRequest) -> Completion:
        whole = self._said(request)
        tokens = whole.token_ids[: self.most]
        return replace(whole, token_ids=tokens, logprobs=whole.logprobs[: self.most], finish_reason=ABORTED)


def _drawn(engine: Drawing, judge: Counting, parts: Mapping[int, Parts]) -> CutOff:
    return collected(engine, judge, problems=2, parts=parts)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_a_response_that_goes_on_under_the_same_policy_has_the_tokens_of_one_that_was_never_cut(
    cuts: list[int],
) -> None:
    """The group at the second problem is cut off again and again, each time after so many tokens."""
    whole, undisturbed = Counting(enough=2), Drawing(lambda request: 0)
    assert _drawn(undisturbed, whole, {}).positions == ()
    parts: Mapping[int, Parts] = {1: {}}
    written = thrown_away = 0
    for most in cuts:
        engine = Drawing(lambda request: NEVER if request.seed >= 10 else 0, most)
        cut_off = _drawn(engine, Counting(enough=1), parts)
        thrown_away += cut_off.tokens
        written += sum(len(engine.part_of(request).token_ids) for request in engine.was_at_work)
        parts = {1: cut_off.parts.get(1, {})}
    assert written - thrown_away == sum(len(part.completion.token_ids) for part in parts[1].values())
    judge = Counting(enough=2)
    assert _drawn(Drawing(lambda request: 0), judge, parts) == CutOff()
    assert judge.judged == whole.judged


def test_what_has_finished_in_a_group_that_was_cut_off_is_not_sampled_again() -> None:
    """The first attempt at the second problem ends; the second goes on with the tokens that it had, but for the last."""
    cut_off = _drawn(Drawing(never_at(1), most=4), Counting(enough=1), {0: {}, 1: {}})
    first, second = cut_off.parts[1][0], cut_off.parts[1][1]
    assert (first.seed, second.seed) == (10, 11)
    assert first.completion.finish_reason != ABORTED
    assert len(second.completion.token_ids) == 3
    assert cut_off.tokens == 1, "the last token is sampled again"
    engine, judge = Drawing(lambda request: 0, version="step_1"), Counting(enough=2)
    assert _drawn(engine, judge, {0: {}, **cut_off.parts}) == CutOff()
    (prompt,) = {len(sample.token_ids) - sample.trained for each in judge.judged[0] for sample in each.samples}
    assert sorted(engine.lengths) == [prompt, prompt, prompt + 3], "of the first problem, and of what goes on"
    old, mixed = (each.samples[0] for each in judge.judged[1])
    assert (old.weight_version, old.earlier) == ("step_0", ())
    assert (mixed.weight_version, mixed.earlier) == ("step_1", (("step_0", 3),))


def test_a_group_that_may_have_several_turns_and_a_greedy_attempt_leave_no_parts() -> None:
    assert _drawn(Drawing(never_at(1), most=4), Counting(enough=1), {0: {}}).parts == {}
    engine = Drawing(lambda request: NEVER if request.seed >= 10 else 0, most=4)
    how: dict[str, Any] = {"samples": 1, "greedy": True, "first": 1}
    cut_off = collected(engine, Counting(enough=1), problems=2, parts={0: {}, 1: {}}, **how)
    assert {position: [*own] for position, own in cut_off.parts.items()} == {1: [0]}


def test_what_a_group_went_on_from_is_kept_where_its_server_dies_while_it_is_aborted() -> None:
    class Dying(Drawing):
        async def abort(self, sessions: Collection[str]) -> list[Aborted]:
            await super().abort(sessions)
            return []

    parts = _drawn(Drawing(never_at(1), most=4), Counting(enough=1), {1: {}}).parts
    cut_off = _drawn(Dying(never_at(1), most=9), Counting(enough=1), parts)
    assert (cut_off.parts, cut_off.tokens) == (parts, 0)
