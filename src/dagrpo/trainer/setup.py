"""Setup of one rank of a training run: data, policy and optimizer."""

from collections.abc import Mapping
from typing import Any

from dagrpo.checkpoints.manifest import tensor_digest_of
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.trajectory import Prompt
from dagrpo.models.pictures import processor_of
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.trainer.checks.memory import require_room
from dagrpo.trainer.checks.sharing import resolved
from dagrpo.trainer.checks.suite import CheckSuite
from dagrpo.trainer.metrics.clock import Clock
from dagrpo.trainer.model.fsdp import load_reference, trained_policy
from dagrpo.trainer.model.optimizer import policy_optimizer
from dagrpo.trainer.run import Report, TrainingRun, no_report
from dagrpo.trainer.sampling.held_out import HeldOutEvaluations
from dagrpo.trainer.sampling.prompt_sampler import training_prompts
from dagrpo.trainer.shutdown import Shutdown
from dagrpo.trainer.state.records import Record
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.distributed import World


class Setup:
    """Data, policy and optimizer of one rank of a run."""

    def __init__(self, run: TrainingRun, world: World, report_held_out: Report = no_report) -> None:
        """Read the data, then load the policy, so that a bad row fails at once."""
        self.run = run
        self.world = world
        self.tokenizer = load_tokenizer(run.initial)
        self.prompts = self._read_prompts() if world.is_rank_zero else []
        self.held_out = HeldOutEvaluations(run, self.tokenizer, report_held_out) if world.is_rank_zero else None
        require_room(run.initial, "training", run.training, world)
        checkpointing = run.runtime.training.activation_checkpointing
        self.policy = trained_policy(
            run.initial, world, run.training, run.rollout, run.seed, activation_checkpointing=checkpointing
        )
        self.budget = resolved(run.runtime.training, self.policy, world)
        self.optimizer = policy_optimizer(self.policy, run.training)
        self.base = tensor_digest_of(run.initial)
        self.record = Record(run.state)
        self.clock = Clock()
        self.shutdown = Shutdown(run.runtime.grace_seconds, world)
        self.checks = CheckSuite(
            run,
            self.prompts,
            self.record,
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

    def _read_prompts(self) -> list[Prompt]:
        renderer = PromptRenderer(self.tokenizer, self.run.rollout, processor_of(self.run.initial))
        return training_prompts(self.run.train_split, renderer, self.run.training)

    def _pad_token_id(self) -> int:
        tokenizer = self.tokenizer
        return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)
