"""Opening of a run's source of rollouts."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.engine.interface import EngineOpener, RolloutEngine
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.open_agent import AgentEnv, OpenAgent, open_agent
from dagrpo.rollout.prompts import tools_of
from dagrpo.rollout.sampling import context_tokens
from dagrpo.trainer.run import AGENT
from dagrpo.trainer.sampling import prefetch_state
from dagrpo.trainer.sampling.prefetch import PendingBatches, Prefetch
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler
from dagrpo.trainer.sampling.reward_model import open_reward_model
from dagrpo.trainer.sampling.rollouts import version_of
from dagrpo.trainer.sampling.source import RolloutSource, SamplingSource
from dagrpo.trainer.sampling.step_sampler import StepSampler
from dagrpo.trainer.sampling.teacher import Teacher, open_teacher
from dagrpo.trainer.setup import Setup
from dagrpo.trainer.state import states
from dagrpo.trainer.state.saver import PROMPTS
from dagrpo.trainer.sync.weight_sync import PolicyWeights, WeightSync


@contextmanager
def open_rollout_source(
    setup: Setup, opener: EngineOpener, first: int, notes: Mapping[str, Any]
) -> Iterator[tuple[RolloutSource, WeightSync]]:
    """Open an engine with the policy after `first` steps; yield the source of rollouts, and the sync of later weights.

    Every rank calls this: all of them give their parts of the weights. `notes`: of the state that the run resumes from.
    """
    run, weights = setup.run, PolicyWeights(setup.policy.model, setup.run, setup.world)
    source: RolloutSource
    if not setup.world.is_rank_zero:
        weights.give_all_parts()
        source = RolloutSource(checks=setup.checks, shutdown=setup.shutdown, training=run.training, world=setup.world)
        yield source, WeightSync(weights, source, setup.checks, setup.clock, run.training)
        return
    with ExitStack() as stack:
        with weights.opening() as opening:
            opened = opener(
                run.initial,
                run.runtime.engine,
                run.server_log,
                dtype=run.rollout.dtype,
                head_dtype=run.rollout.head_dtype,
                deterministic=run.rollout.deterministic,
                weights=opening.weights,
                version=version_of(first),
                keep_pictures=run.training.vision == "frozen",
                adapter=opening.adapter,
            )
            engine = stack.enter_context(opened)
            setup.checks.after_sync(engine, opening.engine_tensors, first)
        source = _source(setup, opener, engine, first, notes, stack)
        source.prefetch.remember(first, opening.synced_each_step)
        yield source, WeightSync(weights, source, setup.checks, setup.clock, run.training)


def _source(
    setup: Setup, opener: EngineOpener, engine: RolloutEngine, first: int, notes: Mapping[str, Any], stack: ExitStack
) -> SamplingSource:
    """Open teacher, agent, reward model and grader on `stack`; return the source that uses them."""
    assert setup.held_out is not None
    run = setup.run
    teacher = stack.enter_context(open_teacher(run, setup.tokenizer, opener, setup.prompts))
    agent = stack.enter_context(_agent(setup))
    reward_model = stack.enter_context(open_reward_model(run))
    grader = stack.enter_context(
        Grader(run.reward.verify_seconds, unit_tests=run.reward.unit_tests, reward_model=reward_model)
    )
    pending = prefetch_state.read(states.at(run.state, first).folder, setup.prompts)
    sampler = _sampler(setup, engine, agent, grader, teacher, first=first, pending=pending, notes=notes)
    prefetch = Prefetch(
        sampler.sample,
        staleness=run.training.staleness,
        steps=run.training.steps,
        first=first,
        interrupt=sampler.interrupt,
        pending=pending,
    )
    stack.callback(prefetch.end)
    return SamplingSource(
        engine=engine,
        sampler=sampler,
        prefetch=prefetch,
        grader=grader,
        held_out=setup.held_out,
        checks=setup.checks,
        clock=setup.clock,
        shutdown=setup.shutdown,
        training=run.training,
        world=setup.world,
    )


def _agent(setup: Setup) -> AbstractContextManager[OpenAgent]:
    run = setup.run
    around = AgentEnv(
        folder=run.state / AGENT,
        passages=run.passages,
        max_new_tokens=run.rollout.max_new_tokens,
        context_tokens=context_tokens(run.initial, run.runtime.engine),
        wants_report=bool(run.reward.reported_keys),
    )
    return open_agent(run.rollout, setup.tokenizer, tools_of(setup.prompts), around)


def _sampler(
    setup: Setup,
    engine: RolloutEngine,
    agent: OpenAgent,
    grader: Grader,
    teacher: Teacher | None,
    *,
    first: int,
    pending: PendingBatches,
    notes: Mapping[str, Any],
) -> StepSampler:
    run = setup.run
    return StepSampler(
        engine=engine,
        agent=agent,
        grader=grader,
        teacher=teacher,
        prompts=setup.prompts,
        prompt_sampler=PromptSampler(
            setup.prompts, run.training, run.seed, finished=first, saved=notes.get(PROMPTS), parts=pending.parts
        ),
        first=max((step for step in pending.batches if step >= first), default=first - 1) + 1,
        rollout=run.rollout,
        reward=run.reward,
        training=run.training,
        seed=run.seed,
        state=run.state,
        greedy=ADVANTAGES.get(run.algorithm.advantage.name).needs_greedy,
    )
