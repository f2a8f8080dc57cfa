"""Parts of one rank of a training run.

Each is given what it works with, and nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from transformers import PreTrainedTokenizerBase

from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.checkpoints.manifest import tensor_digest_of
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.trajectory import Prompt
from dagrpo.engine.interface import EngineOpener, RolloutEngine
from dagrpo.models.pictures import processor_of
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.open_agent import AgentEnv, only_passages, open_agent
from dagrpo.rollout.prompts import PromptRenderer, tools_of
from dagrpo.rollout.sampling import context_tokens
from dagrpo.trainer.batches.rollouts import version_of
from dagrpo.trainer.checks.suite import CheckSuite
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.history import History
from dagrpo.trainer.keeper import Keeper
from dagrpo.trainer.metrics.throughput import Throughput
from dagrpo.trainer.model.fsdp import load_reference, load_trained_policy
from dagrpo.trainer.model.memory import require_room
from dagrpo.trainer.model.optimizer import make_optimizer
from dagrpo.trainer.model.prepare import resolve_budget
from dagrpo.trainer.run import AGENT, Report, TrainingRun, no_report
from dagrpo.trainer.sampling import prefetch_state
from dagrpo.trainer.sampling.held_out import HeldOutEvaluations
from dagrpo.trainer.sampling.prefetch import Prefetch
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler
from dagrpo.trainer.sampling.reward_model import open_reward_model
from dagrpo.trainer.sampling.source import RolloutSource, SamplingSource
from dagrpo.trainer.sampling.step_sampler import StepSampler
from dagrpo.trainer.sampling.teacher import open_teacher
from dagrpo.trainer.sampling.training_prompts import read_training_prompts
from dagrpo.trainer.saver import PROMPTS, Saver
from dagrpo.trainer.shutdown import Shutdown
from dagrpo.trainer.state import states
from dagrpo.trainer.state.records import Record
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.trainer.weight_sync import PolicyWeights, WeightSync
from dagrpo.utils.distributed import World


class Setup:
    """Data, policy and optimizer of one rank of a run, and the parts of the loop that work with them."""

    def __init__(self, run: TrainingRun, world: World, report_held_out: Report = no_report) -> None:
        """Read the data, then load the policy, so that a bad row fails at once."""
        self.run = run
        self.world = world
        self.tokenizer = load_tokenizer(run.initial)
        self.prompts = read_prompts(run, self.tokenizer) if world.is_rank_zero else []
        self.held_out = HeldOutEvaluations(run, self.tokenizer, report_held_out) if world.is_rank_zero else None
        require_room(run.initial, "training", run.training, world)
        checkpointing = run.runtime.training.activation_checkpointing
        self.policy = load_trained_policy(
            run.initial, world, run.training, run.rollout, run.seed, activation_checkpointing=checkpointing
        )
        self.budget = resolve_budget(run.runtime.training, self.policy, world)
        self.optimizer = make_optimizer(self.policy, run.training)
        self.base = tensor_digest_of(run.initial)
        self.keeper = Keeper(run, self.policy.model, world)
        self.record = Record(run.state)
        self.clock = Clock()
        self.shutdown = Shutdown(run.runtime.grace_seconds, world)
        self.checks = CheckSuite(
            run,
            self.prompts,
            policy=self.policy,
            budget=self.budget,
            pad_token_id=self._pad_token_id(),
            world=world,
        )

    def policy_update(self, notes: Mapping[str, Any]) -> PolicyUpdate:
        """Return the update of the policy. `notes`: of the state that the run resumes from; {} for a new run."""
        run, reference = self.run, None
        if run.algorithm.kl.coefficient > 0:
            reference = load_reference(run.initial, self.world, self.policy)
        return PolicyUpdate(
            policy=self.policy,
            reference=reference,
            optimizer=self.optimizer,
            algorithm=run.algorithm,
            training=run.training,
            budget=self.budget,
            temperature=run.rollout.temperature,
            max_new_tokens=run.rollout.max_new_tokens,
            pad_token_id=self._pad_token_id(),
            world=self.world,
            seed=run.seed,
            saved=notes,
            clock=self.clock,
        )

    def history(self, report: Report) -> History:
        """Return the history of the run's steps."""
        return History(
            run=self.run,
            record=self.record,
            held_out=self.held_out,
            checks=self.checks,
            throughput=Throughput.of(self.policy.model, self.world, self.run.runtime.engine),
            clock=self.clock,
            report=report,
        )

    def saver(self, first: int, update: PolicyUpdate, source: RolloutSource) -> Saver:
        """Return the saver of states after step `first`. Every rank calls this."""
        return Saver(
            run=self.run,
            saved=first,
            model=self.policy.model,
            optimizer=self.optimizer,
            base=self.base,
            update=update,
            checks=self.checks,
            source=source,
            keeper=self.keeper,
            clock=self.clock,
            world=self.world,
        )

    @contextmanager
    def open_source(
        self, opener: EngineOpener, first: int, notes: Mapping[str, Any]
    ) -> Iterator[tuple[RolloutSource, WeightSync]]:
        """Open an engine with the policy after `first` steps; yield the source of rollouts, and the sync of later weights.

        Every rank calls this: all of them give their parts of the weights. `notes`: of the state that the run resumes from.
        """
        run, weights = self.run, PolicyWeights(self.policy.model, self.run, self.world)
        source: RolloutSource
        with ExitStack() as stack:
            if self.world.is_rank_zero:
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
                    self.checks.after_sync(engine, opening.engine_tensors, first)
                source = self._open_sampling_source(opener, engine, first, notes, stack)
                source.prefetch.remember(first, opening.synced_each_step)
            else:
                weights.give_all_parts()
                source = RolloutSource(
                    probe=self.checks.before_rollouts, shutdown=self.shutdown, training=run.training, world=self.world
                )
            yield source, WeightSync(weights, source, self.checks, self.clock, run.training)

    def _open_sampling_source(
        self, opener: EngineOpener, engine: RolloutEngine, first: int, notes: Mapping[str, Any], stack: ExitStack
    ) -> SamplingSource:
        """Open a sampler on `stack`; return the source that uses it."""
        assert self.held_out is not None
        run = self.run
        pending = prefetch_state.read(states.at(run.state, first).folder, self.prompts)
        prompt_sampler = PromptSampler(
            self.prompts,
            run.training,
            run.seed,
            shares=run.shares,
            finished=first,
            saved=notes.get(PROMPTS),
            parts=pending.parts,
        )
        following = max((step for step in pending.batches if step >= first), default=first - 1) + 1
        sampler = stack.enter_context(
            open_sampler(run, self.tokenizer, self.prompts, engine, opener, prompt_sampler, first=following)
        )
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
            grader=sampler.grader,
            held_out=self.held_out,
            probe=self.checks.before_rollouts,
            clock=self.clock,
            shutdown=self.shutdown,
            training=run.training,
            world=self.world,
        )

    def _pad_token_id(self) -> int:
        tokenizer = self.tokenizer
        return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)


def read_prompts(run: TrainingRun, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """Return the prompts that a run learns from. Raises UserError as `read_training_prompts` does."""
    renderer = PromptRenderer(tokenizer, run.rollout, processor_of(run.initial))
    return read_training_prompts([*run.train_splits.values()], renderer, run.training, run.shares)


@contextmanager
def open_sampler(
    run: TrainingRun,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    engine: RolloutEngine,
    opener: EngineOpener,
    prompt_sampler: PromptSampler,
    *,
    first: int,
    replays: bool = False,
) -> Iterator[StepSampler]:
    """Open teacher, agent, reward model and grader; yield the sampler that uses them, whose next step is `first` (0-based).

    replays: tools that are not repeatable give their recorded results, and no other ones.
    """
    env = AgentEnv(
        folder=run.state / AGENT,
        passages=only_passages(run.passages),
        max_new_tokens=run.rollout.max_new_tokens,
        context_tokens=context_tokens(run.initial, run.runtime.engine),
        replays=replays,
        wants_report=bool(run.reward.reported_keys),
    )
    with (
        open_teacher(run, tokenizer, opener, prompts) as teacher,
        open_agent(run.rollout, tokenizer, tools_of(prompts), env) as agent,
        open_reward_model(run) as reward_model,
        Grader(run.reward.verify_seconds, unit_tests=run.reward.unit_tests, reward_model=reward_model) as grader,
    ):
        yield StepSampler(
            engine=engine,
            agent=agent,
            grader=grader,
            teacher=teacher,
            prompts=prompts,
            prompt_sampler=prompt_sampler,
            first=first,
            rollout=run.rollout,
            reward=run.reward,
            training=run.training,
            seed=run.seed,
            state=run.state,
            greedy=ADVANTAGES.get(run.algorithm.advantage.name).needs_greedy,
        )
