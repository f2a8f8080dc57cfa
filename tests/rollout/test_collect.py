"""From problems to trajectories in both orders of work, with an engine that follows a script."""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.rollout.problems import problem
from tests.rollout.scripted_engine import ScriptedEngine
from transformers import PreTrainedTokenizerBase

from dagrpo.errors import UserError
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.params.reward import Reward
from dagrpo.params.rollout import Rollout
from dagrpo.records import Completion, SamplingRequest
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.agent import Complete, SingleTurn
from dagrpo.rollout.collect import collect, grade
from dagrpo.rollout.sampling import Sampling, training_sampling
from dagrpo.rollout.seeds import sampling_seed
from dagrpo.rollout.trajectory import GREEDY, Problem, TokenSample, Trajectory

PROBLEMS = [problem(0), problem(1), problem(1)]  # a step that spans two epochs may draw a problem twice
SAMPLING = Sampling(samples=2, greedy=True, temperature=0.7, top_p=0.9, top_k=8, max_new_tokens=4, lockstep=True)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return character_tokenizer(256)


def seed_of(position: int, sample_index: int) -> int:
    return 100 * position + sample_index + 1


@pytest.mark.parametrize("lockstep", [True, False])
def test_the_attempts_at_a_problem_are_side_by_side_each_with_its_seed(
    tokenizer: PreTrainedTokenizerBase, lockstep: bool
) -> None:
    engine = ScriptedEngine()
    sampling = replace(SAMPLING, lockstep=lockstep)
    trajectories = collect(PROBLEMS, sampling, seed_of, engine=engine, agent=SingleTurn(tokenizer))
    assert [(t.problem.index, t.sample_index) for t in trajectories] == [(p, s) for p in (0, 1, 1) for s in (-1, 0, 1)]
    assert [t.sampling_seed for t in trajectories] == [0, 1, 2, 100, 101, 102, 200, 201, 202]
    for trajectory in trajectories:
        (sample,) = trajectory.samples
        prompt = trajectory.problem.token_ids
        assert sample.token_ids == (*prompt, trajectory.sampling_seed % 10, prompt[-1])
        assert sample.loss_mask == (False, False, True, True)
        assert sample.logprobs == (0.0, 0.0, -0.5, -0.25)
        assert sample.weight_version == "v"
        assert trajectory.text == tokenizer.decode(list(sample.completion_ids), skip_special_tokens=True)
        assert trajectory.tokens == 2


def test_a_lockstep_batch_holds_all_attempts_or_as_many_as_it_may(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = ScriptedEngine()
    told: list[int] = []
    for size in (None, 4):
        sampling = replace(SAMPLING, batch_size=size)
        collect(
            PROBLEMS,
            sampling,
            seed_of,
            engine=engine,
            agent=SingleTurn(tokenizer),
            on_batch=lambda t: told.append(len(t)),
        )
    assert [len(batch) for batch in engine.batches] == [9, 4, 4, 1]
    assert told == [9, 4, 4, 1]
    assert [request.seed for request in engine.batches[0]] == [0, 1, 2, 100, 101, 102, 200, 201, 202]


def test_the_greedy_attempt_ignores_the_sampling_parameters(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = ScriptedEngine()
    collect(PROBLEMS[:1], SAMPLING, seed_of, engine=engine, agent=SingleTurn(tokenizer))
    greedy, sampled, _ = engine.batches[0]
    assert (greedy.temperature, greedy.top_p, greedy.top_k) == (0.0, 1.0, -1)
    assert (sampled.temperature, sampled.top_p, sampled.top_k, sampled.max_new_tokens) == (0.7, 0.9, 8, 4)


def test_free_running_keeps_a_problem_in_one_session_and_no_more_in_flight_than_it_may(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    engine = ScriptedEngine()
    sampling = replace(SAMPLING, lockstep=False, batch_size=3)
    collect(PROBLEMS, sampling, seed_of, engine=engine, agent=SingleTurn(tokenizer))
    assert engine.sessions == ["0"] * 3 + ["1"] * 3 + ["2"] * 3
    assert engine.most_in_flight == 3


def test_an_engine_that_fails_is_reported_as_it_failed(tokenizer: PreTrainedTokenizerBase) -> None:
    class Broken(ScriptedEngine):
        def generate(self, requests: Any, *, lockstep: bool) -> list[Completion]:
            raise UserError("the server died.")

        async def complete(self, request: SamplingRequest, session: str) -> Completion:
            raise UserError("the server died.")

    for lockstep in (True, False):
        sampling = replace(SAMPLING, lockstep=lockstep)
        with pytest.raises(UserError, match=r"^the server died\.$"):
            collect(PROBLEMS, sampling, seed_of, engine=Broken(), agent=SingleTurn(tokenizer))


class Talkative:
    """An agent of as many turns as the problem's index plus one, which waits in between as long as it likes."""

    async def __call__(self, problem: Problem, sample_index: int, seed: int, complete: Complete) -> Trajectory:
        samples = []
        for turn in range(problem.index + 1):
            await asyncio.sleep(0.002 * ((sample_index + problem.index) % 3))
            completion = await complete((7, turn + 20))
            samples.append(
                TokenSample(
                    token_ids=(7, turn + 20, *completion.token_ids),
                    loss_mask=(False, False, True, True),
                    logprobs=(0.0, 0.0, *completion.logprobs),
                    weight_version="v",
                )
            )
        return Trajectory(
            problem=problem, sample_index=sample_index, sampling_seed=seed, samples=tuple(samples), text="",
            finish_reason="stop", turns=len(samples),
        )  # fmt: skip


def test_in_lockstep_the_turns_of_all_unfinished_attempts_go_in_waves() -> None:
    engine = ScriptedEngine()
    sampling = replace(SAMPLING, greedy=False)
    trajectories = collect([problem(0), problem(2)], sampling, seed_of, engine=engine, agent=Talkative())
    assert [trajectory.turns for trajectory in trajectories] == [1, 1, 3, 3]
    assert [[request.input_ids[-1] for request in batch] for batch in engine.batches] == [[20] * 4, [21] * 2, [22] * 2]
    later = [sampling_seed(seed, "turn", turn) for turn in (1, 2) for seed in (101, 102)]
    assert [request.seed for batch in engine.batches for request in batch] == [1, 2, 101, 102, *later]


def test_training_samples_as_section_rollout_says() -> None:
    rollout = Rollout(temperature=0.6, top_p=0.8, top_k=5, max_new_tokens=9, deterministic=False)
    sampling = training_sampling(rollout, samples=3)
    assert sampling == Sampling(samples=3, temperature=0.6, top_p=0.8, top_k=5, max_new_tokens=9, lockstep=False)
    assert GREEDY not in sampling.sample_indices


def test_a_grade_is_of_what_the_policy_wrote_and_of_its_length(tokenizer: PreTrainedTokenizerBase) -> None:
    (right, *_) = collect(PROBLEMS[:1], SAMPLING, seed_of, engine=ScriptedEngine(), agent=SingleTurn(tokenizer))
    reward = Reward.model_validate({"components": {"accuracy": {}, "overlong": {"weight": 0.5, "buffer": 2}}})
    texts = ("#### 3", "#### 4", "no idea")
    with Grader(2.0) as grader:
        graded = grade([replace(right, text=text) for text in texts], reward, 3, grader)
    assert [each.score.verdict for each in graded] == ["right", "wrong", "missing"]
    # Two tokens of at most three, the last two of which are penalised: half of -1, weighted by 0.5.
    assert [each.score.reward for each in graded] == [1.0 - 0.25, -0.25, -0.25]
    assert [each.trajectory.text for each in graded] == list(texts)


class _InterruptedEngine(ScriptedEngine):
    """Ctrl-C is pressed while it samples."""

    def generate(self, requests: Sequence[SamplingRequest], *, lockstep: bool) -> list[Completion]:
        signal.raise_signal(signal.SIGINT)
        return super().generate(requests, lockstep=lockstep)


def test_ctrl_c_while_the_engine_samples_is_raised_as_what_it_is(tokenizer: PreTrainedTokenizerBase) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores Ctrl-C
    try:
        with pytest.raises(KeyboardInterrupt):
            collect(PROBLEMS, SAMPLING, seed_of, engine=_InterruptedEngine(), agent=SingleTurn(tokenizer))
    finally:
        signal.signal(signal.SIGINT, before)
