"""Opening of rank 0's engine, teacher, agent, grader and buffer.

driver.py uses them.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from transformers import PreTrainedTokenizerBase

from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.engine.interface import EngineOpener, RolloutEngine
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.open_agent import AgentEnv, OpenAgent, open_agent
from dagrpo.rollout.prompts import tools_of
from dagrpo.rollout.sampling import context_tokens
from dagrpo.rollout.trajectory import Problem
from dagrpo.trainer import state
from dagrpo.trainer.batches import prefetch_state
from dagrpo.trainer.batches.buffer import Buffer
from dagrpo.trainer.batches.prefetch import version_of
from dagrpo.trainer.batches.prompt_sampler import Drawing
from dagrpo.trainer.checks.suite import Watch
from dagrpo.trainer.driver import BatchMaker, RankZero
from dagrpo.trainer.held_out import HeldOutEvaluations
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.sync.weight_sync import EngineWeights
from dagrpo.trainer.teacher import open_teacher
from dagrpo.utils.console import progress

AGENT = "agent"  # the folder in a run's state that an agent's program writes to


@contextmanager
def open_rank_zero(
    run: TrainingRun,
    opener: EngineOpener,
    weights: EngineWeights,
    finished: int,
    *,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    drawing: Drawing,
    held_out: HeldOutEvaluations,
    watch: Watch,
) -> Iterator[RankZero]:
    """Open rank 0's part of a run with `finished` steps, while the other ranks give their parts of the weights."""
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
                version=version_of(finished),
                keep_pictures=run.training.vision == "frozen",
                adapter=opening.adapter,
            )
            engine = stack.enter_context(opened)
            watch.handed_over(engine, opening.held, finished)
        teacher = stack.enter_context(open_teacher(run, tokenizer, opener, problems))
        agent = stack.enter_context(_agent(run, tokenizer, problems))
        grader = stack.enter_context(Grader(run.reward.verify_seconds))
        bar = stack.enter_context(progress(f"train (seed {run.seed})", run.training.steps))
        bar.advance(finished)
        buffer = _buffer(run, engine, agent, grader, problems, drawing)
        untrained = prefetch_state.read(state.at(run.state, finished).folder, problems)
        maker = BatchMaker(engine=engine, teacher=teacher, agent=agent, buffer=buffer)
        ahead = maker.ahead(run.training, finished, untrained)
        ahead.remember(finished, opening.handed)
        stack.callback(ahead.end)
        yield RankZero(engine=engine, buffer=buffer, ahead=ahead, grader=grader, held_out=held_out, bar=bar)


def _agent(
    run: TrainingRun, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem]
) -> AbstractContextManager[OpenAgent]:
    around = AgentEnv(
        folder=run.state / AGENT,
        passages=run.passages,
        max_new_tokens=run.rollout.max_new_tokens,
        context_tokens=context_tokens(run.initial, run.runtime.engine),
        wants_report=bool(run.reward.reported_keys),
    )
    return open_agent(run.rollout, tokenizer, tools_of(problems), around)


def _buffer(
    run: TrainingRun,
    engine: RolloutEngine,
    agent: OpenAgent,
    grader: Grader,
    problems: Sequence[Problem],
    drawing: Drawing,
) -> Buffer:
    return Buffer(
        engine=engine,
        agent=agent,
        grader=grader,
        problems=problems,
        drawing=drawing,
        rollout=run.rollout,
        reward=run.reward,
        training=run.training,
        seed=run.seed,
        state=run.state,
        greedy=ADVANTAGES.get(run.algorithm.advantage.name).needs_greedy,
    )
