"""From problems to trajectories, and from trajectories to graded ones: the one road of training, difficulty and evaluation.

Two orders of work give the same records. In lockstep the same seeds give the same tokens, to the bit. Free-running is
faster, and repeatable up to the rounding of matrix products.
"""

from collections.abc import Callable, Collection, Sequence

from dagrpo.params.reward import Reward
from dagrpo.records import Attempt
from dagrpo.rewards.grading import Grader
from dagrpo.rewards.score import grade_all
from dagrpo.rollout.engine.interface import RolloutEngine
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.rollout.sampling import Sampling
from dagrpo.rollout.schedule import OnBatch, PlannedAttempt, free_running, in_lockstep
from dagrpo.rollout.trajectory import GradedTrajectory, Problem, Trajectory
from dagrpo.rollout.until_full import CutOff, Judge, until_full

SeedOf = Callable[[int, int], int]


def collect(
    problems: Sequence[Problem],
    sampling: Sampling,
    seed_of: SeedOf,
    *,
    engine: RolloutEngine,
    agent: OpenAgent,
    on_batch: OnBatch | None = None,
) -> list[Trajectory]:
    """Every attempt at every problem; those at one problem side by side: the greedy one if asked for, then sample 0, 1, ...

    `seed_of(position, sample_index)` seeds the first completion of an attempt; `position` is the problem's place in
    `problems`, where it may stand twice. `on_batch` is told of attempts as they finish. ServerError when the engine fails.
    """
    order_of_work = in_lockstep if sampling.lockstep else free_running
    planned = _planned(problems, sampling, seed_of)
    return agent.run(order_of_work(planned, sampling, engine, agent, on_batch or _ignore))


def collect_until_full(
    problems: Sequence[Problem],
    sampling: Sampling,
    seed_of: SeedOf,
    *,
    engine: RolloutEngine,
    agent: OpenAgent,
    judge: Judge,
    cuttable: Collection[int] = (),
) -> CutOff:
    """The same attempts, free-running; `judge` gets those at one problem as they finish, while others still run.

    Once it is full, the attempts at problems with these positions are cut off where they are not finished.
    """
    planned = _planned(problems, sampling, seed_of)
    return agent.run(until_full(planned, sampling, engine, agent, judge, cuttable))


def _planned(problems: Sequence[Problem], sampling: Sampling, seed_of: SeedOf) -> list[PlannedAttempt]:
    return [
        PlannedAttempt(position=position, problem=problem, sample_index=sample, seed=seed_of(position, sample))
        for position, problem in enumerate(problems)
        for sample in sampling.sample_indices
    ]


def grade(
    trajectories: Sequence[Trajectory], reward: Reward, max_new_tokens: int, grader: Grader
) -> list[GradedTrajectory]:
    """Each trajectory with its score, in order. UserError when a ground truth is none for its verifier."""
    scores = grade_all([_attempt(trajectory) for trajectory in trajectories], reward, max_new_tokens, grader)
    return [GradedTrajectory(trajectory=t, score=score) for t, score in zip(trajectories, scores, strict=True)]


def _attempt(trajectory: Trajectory) -> Attempt:
    """What a reward may see of a trajectory."""
    example = trajectory.problem.example
    return Attempt(
        text=trajectory.text,
        ground_truth=example.ground_truth,
        verifier=example.verifier,
        tokens=trajectory.tokens,
        turns=trajectory.turns,
        most_tokens_of_a_turn=trajectory.longest_turn,
        calls=trajectory.calls,
        stop_reason=trajectory.stop_reason,
        reported=trajectory.reported,
    )


def _ignore(trajectories: Sequence[Trajectory]) -> None:
    """Nobody asked to be told."""
