"""Steps whose rounds end when their batch is full: no prompt is lost or comes twice, however long anything takes."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rollout.paced_engine import NEVER, PacedEngine
from tests.rollout.talking import agent_with, tool_problem

from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import SamplingRequest
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.config import Rollout
from dagrpo.rollout.prompts import prompt_indices
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler
from dagrpo.trainer.sampling.step_sampler import StepSampler

SEED, PROMPTS, SAMPLES = 3, 2, 2
RIGHT, WRONG = "#### 3", "#### 4"
STEPS = 12
FIRST_SAMPLES = {sampling_seed(SEED, "rollout", step, place, 0) for step in range(STEPS) for place in range(40)}
PROBLEMS = [tool_problem(index=index, question=f"{index}") for index in range(7)]


def settings_of(**dynamic: Any) -> Training:
    """Of a step that wants two groups of two; a script may say the same thing in all attempts."""
    values = {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES, "gates": {"coincidence": 0}}
    return Training.model_validate(values | {"dynamic_sampling": {"oversampling": 2.0, "max_aborts": 2} | dynamic})


@dataclass(frozen=True, slots=True)
class Steps:
    """What makes steps, and remembers nothing but what a state does."""

    engine: PacedEngine
    sampler: StepSampler

    def next(self, step: int) -> Rollouts:
        rollouts = self.sampler.sample(step, Clock())
        assert not any(self.engine.at_work.values()), "something still runs"
        return rollouts


@contextmanager
def steps_with(
    engine: PacedEngine,
    training: Training,
    saved: Mapping[str, Any] | None = None,
    *,
    greedy: bool = False,
    problems: Sequence[Prompt] = PROBLEMS,
) -> Iterator[Steps]:
    with Grader(1.0) as grader, agent_with({}) as agent:
        sampler = StepSampler(
            engine=engine,
            agent=agent,
            grader=grader,
            prompts=problems,
            prompt_sampler=PromptSampler(problems, training, SEED, saved=saved),
            rollout=Rollout(deterministic=False),
            reward=Reward(),
            training=training,
            seed=SEED,
            state=Path("nothing is refused"),
            greedy=greedy,
        )
        yield Steps(engine, sampler)


def finished(rollouts: Rollouts) -> list[int]:
    """The rows whose groups have finished, in the order of drawing."""
    used, thrown = iter(rollouts.graded[::SAMPLES]), iter(rollouts.discarded[::SAMPLES])
    return [next(used if is_used else thrown).trajectory.prompt.index for is_used in rollouts.used]


def row_of_prompts(count: int) -> list[int]:
    """The first so many places of the endless row of shuffled epochs."""
    return [prompt_indices(SEED, place, 1, len(PROBLEMS))[0] for place in range(count)]


def chance(luck: int) -> PacedEngine:
    """Says and takes what the luck and a request's seed decide: a tenth of all completions take long.

    The first problem never has spread, all others always: a step without any would end the run.
    """

    def dice(request: SamplingRequest) -> random.Random:
        return random.Random(f"{luck} {request.seed}")

    def says(request: SamplingRequest) -> str:
        return RIGHT if request.seed in FIRST_SAMPLES or request.input_ids == PROBLEMS[0].token_ids else WRONG

    return PacedEngine(
        lambda request: 500 if dice(request).random() < 0.1 else dice(request).randrange(20),
        says,
    )


@settings(max_examples=15)
@given(
    luck=st.integers(0, 1 << 20),
    dynamic=st.fixed_dictionaries(
        {
            "oversampling": st.sampled_from([1.5, 2.0, 4.0]),
            "max_aborts": st.integers(1, 3),
            "max_rounds": st.integers(1, 3),
            "spread_of": st.sampled_from([None, "reward"]),
        }
    ),
    killed=st.integers(0, STEPS - 1),
)
def test_no_prompt_is_lost_or_comes_twice_in_an_epoch(luck: int, dynamic: dict[str, Any], killed: int) -> None:
    """What has finished and what is put back are the places of the row that were drawn, each once; also after a kill."""
    training = settings_of(**dynamic)
    done: list[int] = []
    saved: Mapping[str, Any] = {"position": 0, "retired": []}
    for first, last in ((0, killed), (killed, STEPS)):
        with steps_with(chance(luck), training, saved) as steps:
            for step in range(first, last):
                rollouts = steps.next(step)
                saved = json.loads(json.dumps(steps.sampler.prompt_sampler.saved))
                waiting = saved["cut_off"]
                done += finished(rollouts)
                assert len(rollouts.graded) == PROMPTS * SAMPLES
                assert sorted(done + [row for row, _ in waiting]) == sorted(row_of_prompts(saved["position"]))
                assert all(1 <= aborts <= dynamic["max_aborts"] for _, aborts in waiting)
                assert rollouts.sampling_metrics["rollout/cut_off_groups"] == len(waiting), (
                    "all of them are drawn again"
                )


def test_a_prompt_that_was_cut_off_comes_first_in_the_next_step_also_after_a_kill() -> None:
    first, second, third, fourth, fifth, sixth = row_of_prompts(6)
    training = settings_of(spread_of=None)
    with steps_with(_never(first, third), training) as steps:
        rollouts = steps.next(0)
        saved = json.loads(json.dumps(steps.sampler.prompt_sampler.saved))
    assert finished(rollouts) == [second, fourth]
    assert saved == {"position": 4, "retired": [], "cut_off": [[first, 1], [third, 1]]}
    with steps_with(_never(fifth, sixth), training, saved) as steps:
        assert finished(steps.next(1)) == [first, third]
        assert steps.sampler.prompt_sampler.saved["cut_off"] == [[fifth, 1], [sixth, 1]]


def test_a_round_of_a_mixture_ends_when_each_task_has_its_groups() -> None:
    """A group of each is due and two are drawn; what is cut off comes first among its own task's, also after a kill."""
    mixed = [replace(each, row=replace(each.row, task="a" if each.index < 3 else "b")) for each in PROBLEMS[:6]]
    a, b = (prompt_indices(SEED, 0, 3, 3, task=task) for task in "ab")
    b = [3 + row for row in b]
    training = settings_of(spread_of=None)
    with steps_with(_never(a[0], b[1]), training, problems=mixed) as steps:
        rollouts = steps.next(0)
        saved = json.loads(json.dumps(steps.sampler.prompt_sampler.saved))
    assert [each.trajectory.prompt.index for each in rollouts.graded[::SAMPLES]] == [a[1], b[0]]
    assert {task: own["cut_off"] for task, own in saved["tasks"].items()} == {"a": [[a[0], 1]], "b": [[b[1], 1]]}
    with steps_with(_never(a[2], b[2]), training, saved, problems=mixed) as steps:
        rollouts = steps.next(1)
    assert [each.trajectory.prompt.index for each in rollouts.graded[::SAMPLES]] == [a[0], b[1]]


def test_groups_of_a_task_that_has_enough_are_cut_off_while_another_task_still_runs() -> None:
    """A group of each is due and two are drawn; the second of a would finish long before the first of b."""
    mixed = [replace(each, row=replace(each.row, task="a" if each.index < 3 else "b")) for each in PROBLEMS[:6]]
    drawn = PromptSampler(mixed, settings_of(), SEED).draw({"a": 2, "b": 2}, 0)
    a, b = ([each.prompt for each in drawn if each.prompt.row.task == task] for task in "ab")
    pace = {a[0].token_ids: 0, a[1].token_ids: 500, b[0].token_ids: 2000, b[1].token_ids: NEVER}
    engine = PacedEngine(lambda request: pace[request.input_ids], lambda request: RIGHT)
    with steps_with(engine, settings_of(spread_of=None), problems=mixed) as steps:
        rollouts = steps.next(0)
        saved = steps.sampler.prompt_sampler.saved["tasks"]
    assert finished(rollouts) == [a[0].index, b[0].index]
    assert {task: own["cut_off"] for task, own in saved.items()} == {
        "a": [[a[1].index, 1]],
        "b": [[b[1].index, 1]],
    }


def test_a_task_is_sampled_again_with_other_seeds_after_groups_of_another_one_were_cut_off() -> None:
    """One of a has spread, one is cut off; both of b are always right, so that a second round draws two more of b."""
    mixed = [replace(each, row=replace(each.row, task="a" if each.index < 3 else "b")) for each in PROBLEMS]
    training = settings_of(max_rounds=2)
    drawn = PromptSampler(mixed, training, SEED).draw({"a": 2, "b": 2}, 0)
    a, b = ([each.prompt.token_ids for each in drawn if each.prompt.row.task == task] for task in "ab")
    sent: list[SamplingRequest] = []

    def says(request: SamplingRequest) -> str:
        sent.append(request)
        return RIGHT if request.seed in FIRST_SAMPLES or request.input_ids in b else WRONG

    engine = PacedEngine(lambda request: {a[1]: NEVER, b[0]: 500, b[1]: 500}.get(request.input_ids, 0), says)
    with steps_with(engine, training, problems=mixed) as steps:
        metrics = steps.next(0).sampling_metrics
    assert (metrics["rollout/rounds"], metrics["rollout/cut_off_groups"]) == (2, 1)
    seeds = [request.seed for request in (*sent, *engine.was_at_work)]
    assert len(seeds) == len({*seeds}) == 12


def _never(*rows: int) -> PacedEngine:
    """No attempt at these rows ends."""
    slow = {PROBLEMS[row].token_ids for row in rows}
    return PacedEngine(lambda request: NEVER if request.input_ids in slow else 0, lambda request: RIGHT)


def test_a_prompt_that_was_cut_off_as_often_as_it_may_be_is_waited_for() -> None:
    first = row_of_prompts(1)[0]
    slow = PROBLEMS[first].token_ids
    engine = PacedEngine(lambda request: 2000 if request.input_ids == slow else 0, lambda request: RIGHT)
    saved = {"position": 1, "retired": [], "cut_off": [[first, 2]]}
    with steps_with(engine, settings_of(spread_of=None), saved) as steps:
        assert first in finished(steps.next(0)), "it was drawn with two aborts, of two"
    with steps_with(engine, settings_of(spread_of=None), saved | {"cut_off": [[first, 1]]}) as steps:
        assert first not in finished(steps.next(0))
        assert [first, 2] in steps.sampler.prompt_sampler.saved["cut_off"]


def test_groups_without_spread_do_not_fill_a_batch_that_asks_for_it() -> None:
    """All finish at once but the last, which is waited for, as only one of the others has spread."""
    rows = row_of_prompts(4)
    with_spread = {PROBLEMS[row].token_ids for row in (rows[1], rows[3])}
    last = PROBLEMS[rows[3]].token_ids

    def says(request: SamplingRequest) -> str:
        counts[request.input_ids] = counts.get(request.input_ids, 0) + 1
        return RIGHT if request.input_ids not in with_spread or counts[request.input_ids] == 1 else WRONG

    counts: dict[tuple[int, ...], int] = {}
    engine = PacedEngine(lambda request: 1000 if request.input_ids == last else 0, says)
    with steps_with(engine, settings_of()) as steps:
        rollouts = steps.next(0)
    assert finished(rollouts) == rows
    assert [each.trajectory.prompt.index for each in rollouts.graded[::2]] == [rows[1], rows[3]]
    assert engine.aborted == []


def test_greedy_attempts_go_with_their_groups() -> None:
    """The first group is cut off because its greedy attempt is not finished."""
    rows = row_of_prompts(4)
    slow = PROBLEMS[rows[0]].token_ids

    def pace(request: SamplingRequest) -> int:
        return NEVER if request.temperature == 0 and request.input_ids == slow else 0

    def says(request: SamplingRequest) -> str:
        return RIGHT if request.temperature == 0 and request.input_ids == PROBLEMS[rows[2]].token_ids else WRONG

    with steps_with(PacedEngine(pace, says), settings_of(spread_of=None), greedy=True) as steps:
        rollouts = steps.next(0)
    assert finished(rollouts)[:2] == rows[1:3]
    assert rollouts.greedy_rewards is not None
    assert rollouts.greedy_rewards.tolist() == [0.0, 1.0]


def test_without_aborts_a_free_running_step_waits_for_all_of_its_groups() -> None:
    rows = row_of_prompts(2)
    engine = PacedEngine(lambda request: 100 if request.input_ids == PROBLEMS[rows[0]].token_ids else 0)
    with steps_with(engine, settings_of(oversampling=1.0, max_aborts=0)) as steps:
        rollouts = steps.next(0)
    assert finished(rollouts) == rows
    assert (engine.aborted, engine.abortable) == ([], {False})


@pytest.mark.parametrize(
    ("drawn", "done", "left"),
    [
        ([1, 2, 3], [2], [1, 3]),
        ([1, 2, 3], [], [1, 2, 3]),
        ([1, 2, 3], [1, 2, 3], []),
        ([1, 2, 1], [1], [2, 1]),  # whichever of the two it was
        ([1, 2, 1], [2, 1], [1]),
    ],
)
def test_what_is_put_back_follows_from_the_rows_alone(drawn: list[int], done: list[int], left: list[int]) -> None:
    problems, saved = [tool_problem(index=row) for row in (1, 2, 3)], {"position": 0, "retired": []}
    sampler = PromptSampler(problems, settings_of(), SEED, saved=saved)
    before = saved | {"cut_off": [[row, 0] for row in drawn]}
    prompts = PromptSampler(problems, settings_of(), SEED, saved=before).draw({"arithmetic": len(drawn)}, 0)
    sampler.put_back(prompts, done)
    assert sampler.saved["cut_off"] == [[row, 1] for row in left]
