"""Section `training`: steps, batches and the optimizer of GRPO."""

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, Tag, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.experiment import Experiment
from dagrpo.core.plugin_sections import Choice, Chosen
from dagrpo.core.section import LARGEST_BATCH, LIST_OR_EVERY, MOST_STEPS, MOST_TOKENS, Every, Section, Share, Step
from dagrpo.rollout.agents import OWN_LOOP
from dagrpo.trainer.config.backends import BACKENDS, Planned, check_backend
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.config.dynamic_sampling import DynamicSampling
from dagrpo.trainer.config.lora import TrainedLora, check_vision, require_tower_agrees
from dagrpo.trainer.config.objective import require_groups_fit, require_rewards_fit, require_updates_fit
from dagrpo.trainer.config.sft import MOMENTS, MomentsDtype, Sft

if TYPE_CHECKING:
    from dagrpo.algorithms.config import Algorithm
    from dagrpo.data.config import Data
    from dagrpo.evaluation.config import Evaluation
    from dagrpo.models.config import Model
    from dagrpo.rewards.config import Reward
    from dagrpo.rollout.config import Rollout
    from dagrpo.trainer.config.runtime import Runtime


class Training(Section):
    backend: Annotated[Choice, Chosen(BACKENDS)] = Field(
        Choice(name="fsdp"),
        description="Program that trains the policy. fsdp: the trainer of this package. Or an installed backend, or an "
        "import path.",
    )
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(120, description="GRPO steps: sample, grade, update.")
    prompts_per_step: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = Field(
        32, description="Distinct prompts per step."
    )
    samples_per_prompt: Annotated[int, Field(ge=1, le=65_536)] = Field(
        8, description="Completions per prompt, the group of GRPO. Use 1 only for objectives that compare no samples."
    )
    mini_batches: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = Field(
        1, description="Optimizer updates per step. Must divide prompts_per_step."
    )
    staleness: Annotated[int, Field(ge=0, le=8)] = Field(
        0,
        description="Steps that the policy is ahead of the weights that sampled its batch. Above 0, the engine samples "
        "during the update: 1 makes a run faster; more only shows what staleness costs.",
    )
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(1e-4, description="Peak learning rate of AdamW.")
    learning_rate_warmup_steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = Field(
        10, description="Updates of linear warm-up. The rate is constant after them."
    )
    weight_decay: Annotated[float, Field(ge=0, le=10)] = Field(0.0, description="AdamW weight decay.")
    max_grad_norm: Annotated[float, Field(gt=0, le=1e9)] = Field(1.0, description="Clip gradients to this norm.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Type in which the policy and its reference compute the update. Weights, gradients, the "
        "optimizer's update, softmax and loss are always float32. With float16 the loss is scaled to keep gradients in range.",
    )
    moments_dtype: MomentsDtype = Field("float32", description=MOMENTS)
    vision: Literal["frozen", "trained"] = Field(
        "trained",
        description="Train the vision tower of a model that has one, with its projector, or freeze both, which is faster.",
    )
    vision_learning_rate: Annotated[float, Field(gt=0, le=10)] | None = Field(
        None, description="Peak learning rate of a trained vision tower. null: learning_rate."
    )
    lora: TrainedLora = Field(TrainedLora(), description="Low-rank adapter to train instead of the weights.")
    max_prompt_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = Field(
        64, description="Refuse longer prompts with an error that names the row."
    )
    order: Literal["shuffled", "easy_first"] = Field(
        "shuffled",
        description="Order of the problems in each epoch. easy_first: by falling pass rate, equal ones shuffled (a curriculum).",
    )
    min_pass_rate: Share = Field(0.0, description="Leave out problems with a known pass rate below this.")
    max_pass_rate: Share = Field(1.0, description="Leave out problems with a known pass rate above this.")
    dynamic_sampling: DynamicSampling = Field(
        DynamicSampling(), description="Sample more prompts until enough groups have samples that differ."
    )
    zero_variance_filter: bool = Field(
        False,
        description="Leave groups with equal rewards out of the update: they count in no mean of the loss or its terms "
        "(ScaleRL).",
    )
    retire_at: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="Stop sampling a prompt after a step in which this share of its samples was right (ScaleRL: 0.9). "
        "null: never.",
    )
    digests_every: Annotated[int, Field(ge=0, le=MOST_STEPS)] | None = Field(
        None,
        description="Record digests of gradients and weights every n steps, for `dagrpo replay`. A recorded step hashes what is trained "
        "once per update and once more. 0: never. null: 1 up to 100 million trained parameters, else 20.",
    )
    evaluate_every: Annotated[int, Field(ge=0, le=MOST_STEPS)] = Field(
        0,
        description="Answer held-out problems of each task of experiment.evaluate every n steps, before the first step "
        "and after the last. 0: never.",
    )
    patience: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None = Field(
        None,
        description="End a run whose held-out accuracy, the mean over tasks, has not risen above its best for n evaluations in a row. "
        "The last policy is the result. Test problems decide for a task without a validation split. null: never.",
    )
    keep_policies: (
        Annotated[Every | Annotated[list[Step], Field(min_length=1, max_length=100_000), Tag("[list]")], LIST_OR_EVERY]
        | None
    ) = Field(
        None,
        description="Keep the policies after these steps, beside the trained one: {every: 20}, or a list of steps. Each is kept in "
        "rollout.dtype, an adapter merged, as its difference to the one before. null: none.",
    )
    evaluation_problems: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = Field(
        64,
        description="Held-out problems of each task, the same each time, from its validation split, or from its test "
        "split if it has none.",
    )
    gates: Gates = Field(Gates(), description="Runtime checks that stop a broken run with an error.")

    @property
    def off_policy(self) -> tuple[str, str] | None:
        """Return why a batch has tokens of earlier steps' weights, and the value without them; None: it has none."""
        if self.staleness:
            return f"training.staleness is {self.staleness}", "training.staleness to 0"
        key = "training.dynamic_sampling.partial_rollouts"
        return (f"{key} is true", f"{key} to false") if self.dynamic_sampling.partial_rollouts else None

    @property
    def kept_steps(self) -> list[int]:
        """Return the steps whose policies are kept, in their order; those after the step that training.patience ends are not reached."""
        if isinstance(self.keep_policies, dict):
            return [*range(self.keep_policies["every"], self.steps + 1, self.keep_policies["every"])]
        return sorted(self.keep_policies or [])

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.prompts_per_step % self.mini_batches:
            raise UserError(
                f"training.mini_batches ({self.mini_batches}) does not divide prompts_per_step "
                f"({self.prompts_per_step}): change one of them"
            )
        if self.patience is not None and not self.evaluate_every:
            raise UserError(
                f"training.patience is {self.patience}, but training.evaluate_every is 0, so that there are no evaluations to count: "
                "set the first to null, or the second to a number of steps"
            )
        if self.patience is not None and self.patience * self.evaluate_every >= self.steps:
            raise UserError(
                f"training.patience is {self.patience}, and as many evaluations, every {self.evaluate_every} steps, take all of the "
                f"{self.steps} training.steps: lower training.patience or training.evaluate_every"
            )
        self._check_kept_steps()
        if self.vision == "frozen" and self.vision_learning_rate is not None:
            raise UserError(
                f"training.vision_learning_rate is {self.vision_learning_rate}, but training.vision is frozen: set the first to "
                "null, or the second to trained"
            )
        require_tower_agrees("training", self.vision, self.lora)
        if self.min_pass_rate > self.max_pass_rate:
            raise UserError(
                f"training.min_pass_rate ({self.min_pass_rate}) is above training.max_pass_rate "
                f"({self.max_pass_rate}): swap them"
            )
        return self

    def _check_kept_steps(self) -> None:
        asked, kept = self.keep_policies, self.kept_steps
        latest = asked["every"] if isinstance(asked, dict) else max(kept, default=0)
        if latest > self.steps:
            raise UserError(
                f"training.keep_policies asks for the policy after step {latest}, but training.steps is {self.steps}: lower the "
                "former or raise the latter"
            )
        twice = next((one for one, other in pairwise(kept) if one == other), None)
        if twice is not None:
            raise UserError(f"training.keep_policies names step {twice} twice: leave one out")

    def check(
        self,
        experiment: Experiment,
        data: "Data",
        model: "Model",
        sft: Sft,
        rollout: "Rollout",
        reward: "Reward",
        algorithm: "Algorithm",
        evaluation: "Evaluation",
        runtime: "Runtime",
    ) -> None:
        """Raise UserError if section `training` does not fit the other sections."""
        check_vision(model, sft, self, runtime)
        check_backend(Planned(experiment, model, rollout, reward, algorithm, self, runtime))
        require_rewards_fit(algorithm, reward)
        require_groups_fit(
            algorithm,
            self.samples_per_prompt,
            zero_variance_filter=self.zero_variance_filter,
            dynamic_sampling=self.dynamic_sampling,
        )
        require_updates_fit(algorithm, self.mini_batches, self.off_policy)
        self._check_spread()
        self._check_lengths(data, model, max(rollout.max_new_tokens, evaluation.sampling.max_new_tokens))
        self._check_dynamic_sampling(rollout)
        self._check_processes(runtime.training.processes, runtime.nodes)

    def _check_lengths(self, data: "Data", model: "Model", max_new_tokens: int) -> None:
        if data.max_prompt_tokens is not None and data.max_prompt_tokens > self.max_prompt_tokens:
            raise UserError(
                f"data.max_prompt_tokens ({data.max_prompt_tokens}) keeps prompts that training.max_prompt_tokens "
                f"({self.max_prompt_tokens}) refuses: lower the former or raise the latter"
            )
        longest, positions = self.max_prompt_tokens + max_new_tokens, model.fresh.max_position_embeddings
        if model.source == "fresh" and longest > positions:
            raise UserError(
                f"training.max_prompt_tokens plus max_new_tokens is {longest}, but model.fresh.max_position_embeddings is "
                f"{positions}: raise the latter or shorten one of the former"
            )

    def _check_spread(self) -> None:
        filters = self.zero_variance_filter or self.dynamic_sampling.wants_spread
        if self.samples_per_prompt == 1 and filters:
            raise UserError(
                "training.samples_per_prompt is 1, and a single sample differs from no other, so that training.zero_variance_filter "
                "and dynamic_sampling would leave out everything: set zero_variance_filter to false, and max_rounds and oversampling "
                "to 1 (or spread_of to null where max_aborts is above 0), or training.samples_per_prompt to 2 or more"
            )

    def _check_dynamic_sampling(self, rollout: "Rollout") -> None:
        aborts = self.dynamic_sampling.max_aborts
        if aborts and rollout.deterministic:
            raise UserError(
                f"training.dynamic_sampling.max_aborts is {aborts}, but rollout.deterministic is true, so that which prompts a batch "
                "has may not depend on how long anything takes: set rollout.deterministic to false, or max_aborts to 0"
            )
        agent = rollout.agent.name
        if self.dynamic_sampling.partial_rollouts and agent != OWN_LOOP:
            raise UserError(
                f"training.dynamic_sampling.partial_rollouts is true, but an attempt of rollout.agent {agent} cannot go on in a later "
                f"step: set partial_rollouts to false, or take rollout.agent: {{name: {OWN_LOOP}}}"
            )

    def _check_processes(self, processes: int, nodes: int) -> None:
        completions = self.prompts_per_step // self.mini_batches * self.samples_per_prompt
        if completions % (processes * nodes):
            times = f" times runtime.nodes ({nodes})" if nodes > 1 else ""
            raise UserError(
                f"runtime.training.processes ({processes}){times} does not divide the {completions} completions "
                "of a mini-batch (prompts_per_step / mini_batches * samples_per_prompt): change one of them"
            )
