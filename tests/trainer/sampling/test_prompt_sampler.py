"""The prompts that a run draws: those of shuffled epochs, without the retired ones, also when it goes on from a state."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rollout.problems import problem
from tests.trainer import attempts

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import GradedTrajectory, Prompt
from dagrpo.core.types import Completion
from dagrpo.rollout.early_stop import Part
from dagrpo.rollout.prompts import prompt_indices
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler, SampledPrompt

COMPLETION = Completion(token_ids=(7,), logprobs=(-1.0,), finish_reason="abort", weight_version="step_0")


def training(**values: Any) -> Training:
    return Training.model_validate({"prompts_per_step": 2, "samples_per_prompt": 2} | values)


def problems(total: int) -> list[Prompt]:
    return [problem(index) for index in range(total)]


def rows(drawn: list[SampledPrompt]) -> list[int]:
    return [each.prompt.index for each in drawn]


def group(index: int, *right: bool) -> list[GradedTrajectory]:
    return [attempts.graded(index, sample, reward=float(each), correct=each) for sample, each in enumerate(right)]


def test_the_problems_of_a_step_follow_the_order_that_training_names() -> None:
    rated = [problem(index, pass_rate=rate) for index, rate in enumerate((0.0, 1.0, 0.25, 0.5))]
    easy = PromptSampler(rated, training(order="easy_first"), 3)
    assert [rows(easy.draw({"arithmetic": 2}, step)) for step in range(3)] == [[1, 3], [2, 0], [1, 3]]
    of_tasks = [*rated, *(replace(each, index=4 + each.index, row=replace(each.row, task="b")) for each in rated)]
    mixed = PromptSampler(of_tasks, training(order="easy_first"), 3)
    assert [rows(mixed.draw(mixed.due(step), step)) for step in range(2)] == [[1, 5], [3, 7]]
    shuffled = PromptSampler(rated, training(), 3)
    assert [rows(shuffled.draw({"arithmetic": 2}, step)) for step in range(2)] == [
        prompt_indices(3, 2 * step, 2, 4) for step in range(2)
    ]


@given(st.integers(1, 7), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_each_epoch_has_every_problem_once_however_large_steps_are(total: int, counts: list[int]) -> None:
    sampler = PromptSampler(problems(total), training(), 3)
    drawn = [row for step, count in enumerate(counts) for row in rows(sampler.draw({"arithmetic": count}, step))]
    epochs = [drawn[start : start + total] for start in range(0, len(drawn), total)]
    assert all(sorted(epoch) == [*range(total)] for epoch in epochs if len(epoch) == total)
    assert drawn == [prompt_indices(3, place, 1, total)[0] for place in range(len(drawn))]


def test_a_state_that_says_nothing_is_of_steps_that_each_drew_their_batch() -> None:
    drawing = PromptSampler(problems(7), training(), 3, finished=5)
    assert rows(drawing.draw({"arithmetic": 2}, 5)) == prompt_indices(3, 10, 2, 7)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sets(st.integers(0, 5), max_size=1)), min_size=1, max_size=8), st.data()
)
def test_a_run_that_goes_on_anywhere_draws_what_a_whole_one_draws(
    steps: list[tuple[int, set[int]]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(steps) - 1))
    all_right = {
        step: [each for index in retired for each in group(index, True, True)]
        for step, (_, retired) in enumerate(steps)
    }
    once, again = (PromptSampler(problems(9), training(retire_at=1.0), 1) for _ in range(2))
    whole, resumed = [], []
    for step, (count, _) in enumerate(steps):
        whole += rows(once.draw({"arithmetic": count}, step))
        once.retire(all_right[step])
        if step == cut:
            saved = json.loads(json.dumps(again.saved))
            again = PromptSampler(problems(9), training(retire_at=1.0), 1, finished=step, saved=saved)
        resumed += rows(again.draw({"arithmetic": count}, step))
        again.retire(all_right[step])
    assert resumed == whole


@pytest.mark.parametrize(("right", "retired"), [((True, True), 1), ((True, False), 1), ((False, False), 0)])
def test_a_prompt_is_retired_at_its_pass_rate(right: tuple[bool, ...], retired: int) -> None:
    drawing = PromptSampler(problems(3), training(retire_at=0.5), 0)
    drawing.retire([*group(2, *right), *group(1, False, False)])
    assert drawing.saved["retired"] == [2] * retired
    assert (2 not in rows(drawing.draw({"arithmetic": 12}, 1))) == bool(retired)


def test_what_was_excluded_says_nothing_of_a_pass_rate() -> None:
    def excluded(each: GradedTrajectory) -> GradedTrajectory:
        return replace(each, trajectory=replace(each.trajectory, stop_reason="excluded"))

    right, wrong = group(0, True, False)
    drawing = PromptSampler(problems(2), training(retire_at=1.0), 0)
    drawing.retire([right, excluded(wrong)])
    assert drawing.retired == 1
    drawing.retire([*map(excluded, group(1, True, True))])
    assert drawing.retired == 1


def test_a_run_whose_problems_are_all_retired_ends_in_a_sentence_that_says_what_to_do() -> None:
    drawing = PromptSampler(problems(2), training(retire_at=0.9), 0)
    drawing.retire([*group(0, True, True), *group(1, True, True)])
    with pytest.raises(UserError, match=r"step 8: all 2 problems of task arithmetic have reached training.retire_at"):
        drawing.draw({"arithmetic": 1}, 7)


def of_tasks(**sizes: int) -> list[Prompt]:
    """Problems of each task, whose indices go on from one task to the next."""
    tasks = [task for task, size in sizes.items() for _ in range(size)]
    return [problem(index, task=task) for index, task in enumerate(tasks)]


def test_a_mixture_takes_turns_and_each_task_keeps_its_own_order() -> None:
    sampler = PromptSampler(of_tasks(a=7, b=4), training(prompts_per_step=3), 3, shares={"a": 0.5, "b": 0.5})
    assert [sampler.due(step) for step in range(2)] == [{"a": 2, "b": 1}, {"a": 1, "b": 2}]
    drawn = [row for step in range(4) for row in rows(sampler.draw(sampler.due(step), step))]
    a, b = (prompt_indices(3, 0, 6, size, task=task) for task, size in (("a", 7), ("b", 4)))
    b = [7 + row for row in b]
    assert drawn == [a[0], a[1], b[0], b[1], a[2], b[2], a[3], a[4], b[3], b[4], a[5], b[5]]
    assert sampler.epochs == {"a": 6 / 7, "b": 6 / 4}
    state: dict[str, list[int]] = {"retired": [], "cut_off": []}
    assert sampler.saved == {"tasks": {"a": {"position": 6, **state}, "b": {"position": 6, **state}}}
    later = PromptSampler(of_tasks(a=7, b=4), training(prompts_per_step=3), 3, shares={"a": 1, "b": 1}, finished=4)
    assert later.saved == sampler.saved, "of steps that each drew their batch"


@pytest.mark.parametrize("order", ["shuffled", "easy_first"])
def test_tasks_of_one_size_go_through_their_rows_in_orders_of_their_own(order: str) -> None:
    """A task and its variant with tools have the same problems in the same rows: a batch would have each twice."""
    rated = [replace(each, row=replace(each.row, pass_rate=0.5)) for each in of_tasks(a=40, b=40)]
    sampler = PromptSampler(rated, training(order=order), 3)
    for step in range(2):
        drawn = rows(sampler.draw({"a": 40, "b": 40}, step))
        a, b = ([row % 40 for row in drawn if row // 40 == task] for task in range(2))
        assert sorted(a) == sorted(b) == [*range(40)]
        assert sum(one == other for one, other in zip(a, b, strict=True)) < 5
    alone = PromptSampler(of_tasks(a=40), training(), 3)
    assert rows(alone.draw({"a": 40}, 0)) == prompt_indices(3, 0, 40, 40), "the name of a single task does not count"


@given(
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2**16)), min_size=1, max_size=6),
    data=st.data(),
)
def test_a_mixture_that_goes_on_anywhere_draws_what_a_whole_run_draws(
    sizes: tuple[int, int], steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Any groups are cut off, with a part that they go on from; no position of a task is lost or used twice."""
    prompts, settings = of_tasks(a=sizes[0], b=sizes[1]), training()
    cut, whole = data.draw(st.integers(0, len(steps) - 1)), PromptSampler(prompts, settings, 5)
    done: list[int] = []
    resumed = PromptSampler(prompts, settings, 5)
    for step, (of_a, of_b, dice) in enumerate(steps):
        if step == cut:
            saved = json.loads(json.dumps(resumed.saved))
            resumed = PromptSampler(prompts, settings, 5, saved=saved, parts=resumed.parts)
        drawn, again = (each.draw({"a": of_a, "b": of_b}, step) for each in (whole, resumed))
        assert drawn == again
        finished = [row for place, row in enumerate(rows(drawn)) if dice >> place & 1]
        parts = {row: {0: Part(seed=row, completion=COMPLETION)} for row in rows(drawn)}
        for each in (whole, resumed):
            each.put_back(drawn, finished, parts)
        done += finished
    waiting = [row for own in whole.saved["tasks"].values() for row, _ in own["cut_off"]]
    for task, first, size in (("a", 0, sizes[0]), ("b", sizes[0], sizes[1])):
        position = whole.saved["tasks"][task]["position"]
        own = [row - first for row in (*done, *waiting) if first <= row < first + size]
        assert sorted(own) == sorted(prompt_indices(5, 0, position, size, task=task))


def test_a_task_whose_problems_are_all_retired_is_named() -> None:
    sampler = PromptSampler(of_tasks(a=2, b=2), training(retire_at=0.9), 0)
    for prompt in of_tasks(a=2, b=2)[2:]:
        sampler.retire_prompt(prompt)
    assert sampler.retired == 2
    assert len(sampler.draw({"a": 3, "b": 0}, 7)) == 3
    with pytest.raises(UserError, match=r"step 8: all 2 problems of task b have reached training.retire_at"):
        sampler.draw({"a": 1, "b": 1}, 7)
