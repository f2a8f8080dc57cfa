"""Attempts of several turns in both orders of work, with an engine that follows a script."""

import asyncio
import hashlib
import random

import pytest
from tests.rollout.scripted_chat import text_of
from tests.rollout.talking import Echo, TalkingEngine, agent_with, attempts, tool_problem

from dagrpo.core.trajectory import Prompt, Trajectory
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine.errors import ServerError, ServerGone
from dagrpo.rollout.sampling import sampling_seed


def calling(times: int) -> Prompt:
    """A problem at which the policy below calls so many times before it answers."""
    return tool_problem(index=times, question=str(times))


def counting(said: str) -> str:
    wanted = int(said.split(">")[1][0])
    return "@echo{}" if said.count("<tool>") < wanted else "done"


def essence(trajectories: list[Trajectory]) -> list[object]:
    return [(each.samples, each.stop_reason, [(c.status, c.result) for c in each.calls]) for each in trajectories]


def test_the_turns_of_a_batch_go_in_waves_over_a_cache_that_is_emptied_once() -> None:
    engine = TalkingEngine(counting)
    with agent_with({"echo": Echo()}) as agent:
        attempts(engine, agent, [calling(2), calling(0), calling(1)])
        assert engine.places == [[0, 1, 2], [0, 2], [0]]
        assert engine.emptied_caches == 1
        attempts(engine, agent, [calling(1)])
    assert engine.emptied_caches == 2


def test_each_turn_has_a_seed_of_its_own_that_follows_from_the_attempts() -> None:
    engine = TalkingEngine(counting)
    with agent_with({"echo": Echo()}) as agent:
        attempts(engine, agent, [calling(2)])
    seeds = [batch[0].seed for batch in engine.batches]
    assert seeds == [1, sampling_seed(1, "turn", 1), sampling_seed(1, "turn", 2)]


def test_how_long_tools_take_changes_nothing_that_the_engine_is_asked() -> None:
    def run(dice: random.Random) -> tuple[list[list[SamplingRequest]], list[object]]:
        async def slow() -> str:
            await asyncio.sleep(dice.random() / 50)
            return "x"

        engine = TalkingEngine(counting)
        with agent_with({"echo": Echo(lambda arguments, context: slow())}) as agent:
            made = attempts(engine, agent, [calling(times) for times in (3, 1, 2, 3, 0, 2)])
        return engine.batches, essence(made)

    assert run(random.Random(1)) == run(random.Random(2))


def test_both_orders_of_work_make_the_same_trajectories() -> None:
    problems = [calling(times) for times in (2, 0, 3)]
    with agent_with({"echo": Echo()}) as agent:
        waves = attempts(TalkingEngine(counting), agent, problems)
        free = attempts(TalkingEngine(counting), agent, problems, lockstep=False)
    assert essence(waves) == essence(free)


def test_an_attempt_that_ran_out_of_time_no_longer_holds_up_the_others() -> None:
    async def slow_for_the_first(trajectory: str) -> str:
        if trajectory.startswith("0-"):
            await asyncio.sleep(60)
        return "x"

    tool = Echo(lambda arguments, context: slow_for_the_first(context.trajectory))
    with agent_with({"echo": tool}, seconds=0.2) as agent:
        first, second = attempts(TalkingEngine(counting), agent, [calling(1), calling(2)])
    assert (first.stop_reason, second.stop_reason) == ("seconds", "answered")


class _Dying(TalkingEngine):
    """One of its servers dies at its third request."""

    def __init__(self) -> None:
        super().__init__(counting)
        self.asked = 0

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        self.asked += 1
        if self.asked == 3:
            raise ServerGone("http://b cannot be reached: Connection refused.")
        return await super().complete(request, session, abortable=abortable)


def test_trajectories_whose_server_died_are_made_again_and_the_run_says_how_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tool = Echo()
    with agent_with({"echo": tool}) as agent:
        again = attempts(_Dying(), agent, [calling(2), calling(1)], lockstep=False)
        assert essence(again) == essence(attempts(TalkingEngine(counting), agent, [calling(2), calling(1)]))
    assert "1 trajectories were sampled again, as their server had died." in capsys.readouterr().err
    assert len(tool.forgotten) == 5


def test_a_failure_of_the_last_server_ends_the_run() -> None:
    class Broken(TalkingEngine):
        async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
            raise ServerError("the server died.")

    with agent_with({"echo": Echo()}) as agent, pytest.raises(ServerError, match=r"^the server died\.$"):
        attempts(Broken(counting), agent, [calling(1)], lockstep=False)


def test_trajectories_are_made_again_when_those_before_them_have_ended() -> None:
    """Both have the same name: what a tool kept for the first would else be forgotten under the second."""
    seen: list[str] = []

    class Dying(TalkingEngine):
        async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
            if "<tool>" in text_of(request.input_ids) and "gone" not in seen:
                seen.append("gone")
                raise ServerGone("the server has died")
            seen.append("asked")
            return await super().complete(request, session, abortable=abortable)

    class Slow(Echo):
        async def forget(self, trajectory: str) -> None:
            await asyncio.sleep(0.01)
            seen.append("forgotten")

    with agent_with({"echo": Slow()}) as agent:
        attempts(Dying(lambda said: "done" if "<tool>" in said else "@echo{}"), agent, [tool_problem()], lockstep=False)
    assert seen == ["asked", "gone", "forgotten", "asked", "asked", "forgotten"]


# ---- seeds ----


def test_the_seed_is_sha256_of_the_parts_as_json() -> None:
    digest = hashlib.sha256(b'[0,"rollout",1,2,3]').hexdigest()
    assert sampling_seed(0, "rollout", 1, 2, 3) == int(digest[:16], 16) % 2**31
    assert sampling_seed(0, "rollout", 1, 2, 3) == 1781029776


def test_neighbours_and_swapped_parts_have_other_seeds() -> None:
    seeds = {sampling_seed(seed, step, sample) for seed in range(3) for step in range(30) for sample in range(30)}
    assert len(seeds) == 3 * 30 * 30
    assert sampling_seed(0, 1, 12) != sampling_seed(0, 11, 2)
    assert sampling_seed(0, 1) != sampling_seed(0, "1")
