"""Parameters as keys of verl's configuration, and those that have none."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.core.errors import UserError
from dagrpo.models.published import CONFIGS
from dagrpo.rollout.agents import OWN_LOOP
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.config.dynamic_sampling import MOST_ROUNDS, DynamicSampling
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.config.training import Training
from dagrpo_foreign import parameters
from dagrpo_foreign.parameters import Sections, refusal, refuse_settings, require_only, value_of
from dagrpo_verl import agent_loop
from dagrpo_verl.objective import ACTOR, ARR, TABLE, Keys, objective

if TYPE_CHECKING:
    from dagrpo.trainer.backends import Planned

LEAST_BATCH_TOKENS = 16_384  # of a pass, where runtime.training.micro_batch_tokens is null


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files and folders that verl reads and writes, as absolute paths."""

    model: Path  # a checkpoint in the Hugging Face layout
    rows: Path  # parquet
    attempts: tuple[str, ...]  # command of the process that makes and grades attempts
    checkpoints: Path


ONLY: Mapping[str, tuple[Any, str]] = {
    **{key: value for key, value in parameters.ONLY.items() if key not in ("training.lora.rank", "training.vision")},
    **TABLE["only"],
}
HALVES = ("bfloat16", "float16")
# Sections that change nothing, since an attempt comes with its reward; verl's main_ppo ignores the last three.
NO_REWARDS = ("reward", "reward_model", "custom_reward_function", "sandbox_fusion")


def configuration(
    sections: Sections,
    settings: Mapping[str, Any],
    seed: int,
    files: Files,
    *,
    several_turns: bool = False,
    in_our_order: bool = False,
) -> Keys:
    """Return every key of verl's configuration that is not left at verl's default: dotted name -> value.

    `settings` are the user's own, and may set none of the others; `several_turns`: whether an attempt may have them;
    `in_our_order`: whether the rows are those of all steps, one after the other. Raises UserError for a parameter that cannot be mapped.
    """
    require_only(sections, ONLY)
    if sections.rollout.dtype not in HALVES:
        raise refusal(f"rollout.dtype is {sections.rollout.dtype}", f"set it to {' or '.join(HALVES)}")
    longest = _longest_sequence(sections, several_turns=several_turns)
    keys = {
        **{theirs: value_of(sections, ours) for ours, several in TABLE["same"].items() for theirs in several},
        **objective(sections.algorithm, sections.rollout.max_new_tokens),
        "data.max_response_length": longest - 1 if several_turns else sections.rollout.max_new_tokens,
        **_batches(sections, longest),
        **_sampling(sections.training.dynamic_sampling),
        **dict.fromkeys(TABLE["seeds"], seed),
        **_adapter(sections.training),
        **TABLE["fixed"],
        "data.shuffle": not in_our_order,
        f"{ARR}.rollout.multi_turn.function_tool_path": agent_loop.__file__,
        f"{ARR}.rollout.agent.default_agent_loop": agent_loop.NAME,
        f"{ARR}.model.path": str(files.model),
        f"{ARR}.rollout.custom.{agent_loop.COMMAND}": list(files.attempts),
        "data.train_files": str(files.rows),
        "data.val_files": str(files.rows),
        "trainer.default_local_dir": str(files.checkpoints),
    }
    refuse_settings(settings, keys)
    if idle := next((name for name in settings if name.split(".")[0] in NO_REWARDS), None):
        raise UserError(
            f"training.backend.settings has {idle}, which changes nothing, since our grading makes the rewards: leave it out, and "
            "say in the section reward what counts"
        )
    if "trust_remote_code" in json.dumps(dict(settings)):
        raise UserError(
            "training.backend.settings has trust_remote_code, which runs code of a checkpoint: leave it out"
        )
    return {**keys, **settings}


def planned(params: "Planned", settings: Mapping[str, Any]) -> Keys:
    """Return verl's keys before any file is there. Raises UserError for the first parameter that verl cannot honour."""
    from dagrpo.data.task import get_task

    require_no_adapted_experts(params.training.lora, SimpleNamespace(**CONFIGS.get(params.model.repository or "", {})))
    tasks = [get_task(name) for name in params.experiment.shares or params.experiment.train_tasks]
    nowhere = Path("/")
    files = Files(model=nowhere, rows=nowhere, attempts=(), checkpoints=nowhere)
    several_turns = has_several_turns(params.rollout, offered=any(task.tools or task.interaction for task in tasks))
    in_our_order = has_our_order(params.experiment.shares, params.training)
    seed = params.experiment.seeds[0]
    return configuration(params, settings, seed, files, several_turns=several_turns, in_our_order=in_our_order)


def has_our_order(shares: Mapping[str, float], training: Training) -> bool:
    """Return True if verl takes the rows as they come, which are then those that our own trainer draws: verl itself knows no shares.

    Raises UserError for shares with dynamic sampling, which draws further rows.
    """
    if len(shares) > 1 and training.dynamic_sampling.is_on:
        raise refusal(
            "experiment.train has shares with training.dynamic_sampling, by which verl fills a batch with whatever differs",
            "set max_rounds to 1, or name the tasks as a list, which count by their sizes",
        )
    return len(shares) > 1


def require_no_adapted_experts(lora: Lora, config: Any) -> None:
    """Raise UserError for an adapter in a mixture of experts: PEFT adapts its experts and routers in verl, and saves them fused."""
    if lora.is_on and is_mixture_of_experts(config):
        raise refusal(
            "training.lora.rank is above 0 and the model is a mixture of experts", "set training.lora.rank to 0"
        )


def has_several_turns(rollout: Rollout, *, offered: bool) -> bool:
    """Return True if an attempt may have several turns. `offered`: whether a problem has tools or a simulated user."""
    return offered or rollout.agent.name != OWN_LOOP


def _longest_sequence(sections: Sections, *, several_turns: bool) -> int:
    """Return the largest number of tokens of a trajectory. Raises UserError if nothing but the model limits it."""
    if not several_turns:
        return sections.training.max_prompt_tokens + sections.rollout.max_new_tokens
    if (most := sections.rollout.agent.max_tokens) is None:
        raise refusal(
            "rollout.agent.max_tokens is null and an attempt has several turns",
            "set it to the longest trajectory, with its prompt and all results",
        )
    return most


def _batches(sections: Sections, longest: int) -> Keys:
    training, runtime = sections.training, sections.runtime.training
    tokens = runtime.micro_batch_tokens or max(LEAST_BATCH_TOKENS, 2 * longest)
    if tokens < longest:
        raise refusal(
            f"runtime.training.micro_batch_tokens is {tokens}, less than the longest sequence ({longest})",
            "raise it, or set it to null",
        )
    updates, warm_up = training.mini_batches, training.learning_rate_warmup_steps
    if warm_up % updates:
        raise refusal(
            f"training.learning_rate_warmup_steps is {warm_up}, no multiple of training.mini_batches",
            "make it one: its learning rate changes once a step",
        )
    sequences = training.prompts_per_step // updates * training.samples_per_prompt
    if sequences % runtime.processes:
        raise refusal(
            f"an update has {sequences} sequences, no multiple of runtime.training.processes ({runtime.processes})",
            "change training.prompts_per_step, samples_per_prompt or mini_batches",
        )
    return {
        f"{ACTOR}.ppo_mini_batch_size": training.prompts_per_step // updates,
        f"{ACTOR}.optim.lr_warmup_steps": warm_up // updates,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": tokens,
        f"{ARR}.rollout.log_prob_max_token_len_per_gpu": tokens,
        f"{ARR}.ref.log_prob_max_token_len_per_gpu": tokens,
    }


def _sampling(sampling: DynamicSampling) -> Keys:
    """Return the keys of dynamic sampling, which verl repeats until the batch is full."""
    if sampling.is_on and sampling.max_rounds < MOST_ROUNDS:
        raise refusal(
            f"training.dynamic_sampling.max_rounds is {sampling.max_rounds}, and verl samples until the batch is full",
            f"set it to {MOST_ROUNDS}, the most, or to 1",
        )
    metric = "acc" if sampling.spread_of == "accuracy" else "reward"
    return {"algorithm.filter_groups.enable": sampling.is_on, "algorithm.filter_groups.metric": metric}


def _adapter(training: Training) -> Keys:
    """Return the keys of an adapter in the language model. Raises UserError for a frozen tower without one: verl reads no key of it."""
    lora = training.lora
    if not lora.is_on:
        if training.vision == "frozen":
            raise refusal("training.vision is frozen", "set it to trained, or train an adapter (training.lora.rank)")
        return {}
    return {
        f"{ARR}.model.lora_rank": lora.rank,
        f"{ARR}.model.lora_alpha": lora.alpha,
        f"{ARR}.model.target_modules": lora.target_modules or "all-linear",
        f"{ARR}.model.exclude_modules": ".*visual.*",
        f"{ARR}.model.lora.merge": lora.serving == "merged",
        # Beside an adapter SGLang reads the weights from the folder; else the trainer sends them.
        f"{ARR}.rollout.load_format": "dummy" if lora.serving == "merged" else "safetensors",
    }
