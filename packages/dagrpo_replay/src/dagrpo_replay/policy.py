"""Policy updated from existing rollouts by the trainer's update, without an engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagrpo.checkpoints.manifest import tensor_digest_of
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import Batch
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.config.runtime import TrainingRuntime
from dagrpo.trainer.model.fsdp import load_reference, load_trained_policy
from dagrpo.trainer.model.optimizer import make_optimizer
from dagrpo.trainer.model.prepare import prepare, resolve_budget
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.state import states, tensors
from dagrpo.trainer.state.digest_table import Hash
from dagrpo.trainer.update.policy_update import NOT_SAVED, PolicyUpdate
from dagrpo.trainer.update.stats import UpdateStats
from dagrpo.utils.distributed import World
from dagrpo_replay.recorded_run import RecordedRun


class UpdatedPolicy:
    """Policy with its optimizer and the coefficients of its terms, updated step by step. Every rank has one."""

    def __init__(self, run: TrainingRun | RecordedRun, world: World, *, activation_checkpointing: bool = False) -> None:
        tokenizer = load_tokenizer(run.initial)
        policy = load_trained_policy(
            run.initial, world, run.training, run.rollout, run.seed, activation_checkpointing=activation_checkpointing
        )
        self.model = policy.model
        self._run = run
        self._world = world
        self._policy = policy
        self._optimizer = make_optimizer(policy, run.training)
        self._base = tensor_digest_of(run.initial)
        self._reference = None
        if run.algorithm.kl.coefficient > 0:
            self._reference = load_reference(run.initial, world, policy)
        self._pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self._saved: Mapping[str, Any] = NOT_SAVED
        self._prepared = set[Budget]()  # that the policy is known to support

    def load(self, saved: states.SavedState) -> None:
        """Resume from a saved state."""
        tensors.load(saved, self.model, self._optimizer, self._base)
        self._saved = saved.notes

    def save(self, root: Path, finished: int) -> None:
        """Write the state after `finished` steps, without the state of the prompt sampler."""
        tensors.save(root, finished, self.model, self._optimizer, self._world, dict(self._saved), base=self._base)

    def budget(self, runtime: TrainingRuntime) -> Budget:
        """Return the budget of runtime.training for this policy. Raises UserError if the policy does not support it."""
        budget = resolve_budget(runtime, self._policy, self._world)
        self._prepared.add(budget)
        return budget

    def update(self, step: int, batch: Batch, budget: Budget, hashed_by: Hash | None = None) -> UpdateStats:
        """Run the update of `step` (1-based) on its rollouts, which have advantages. `hashed_by`: as in PolicyUpdate.

        Raises UserError if they lack the teacher's logprobs, from which the run learns, or have tokens outside the policy's vocabulary,
        or if the policy does not support the budget.
        """
        run = self._run
        self._require_known_tokens(step, batch)
        if run.algorithm.distils and batch.teacher_logprobs is None:
            raise UserError(
                f"The rollouts of step {step} have no teacher_logprobs, which {run.algorithm.distils[0]} learns from: name those "
                "of a run with algorithm.teacher."
            )
        update = self.policy_update(budget, hashed_by)
        stats = update.run(step - 1, batch)
        self._saved = update.saved
        return stats

    def policy_update(self, budget: Budget, hashed_by: Hash | None = None) -> PolicyUpdate:
        """Return the next update. `hashed_by`: as in PolicyUpdate. Raises UserError if the policy does not support the budget."""
        if budget not in self._prepared:
            prepare(self._policy, budget, self._world)
            self._prepared.add(budget)
        return PolicyUpdate(
            policy=self._policy,
            reference=self._reference,
            optimizer=self._optimizer,
            algorithm=self._run.algorithm,
            training=self._run.training,
            budget=budget,
            temperature=self._run.rollout.temperature,
            max_new_tokens=self._run.rollout.max_new_tokens,
            pad_token_id=self._pad_token_id,
            world=self._world,
            seed=self._run.seed,
            saved=self._saved,
            hashed_by=hashed_by,
        )

    def _require_known_tokens(self, step: int, batch: Batch) -> None:
        vocabulary = int(self.model.config.get_text_config().vocab_size)
        lowest, highest = (int(each) for each in batch.sequences.token_ids.aminmax())
        if lowest < 0 or highest >= vocabulary:
            raise UserError(
                f"The rollouts of step {step} have the token {lowest if lowest < 0 else highest}, and the policy knows 0 to "
                f"{vocabulary - 1}: name rollouts of this policy."
            )
