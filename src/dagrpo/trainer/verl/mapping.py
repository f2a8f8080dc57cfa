"""Parameters as keys of verl's configuration, and those that have none."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagrpo.core.errors import UserError
from dagrpo.trainer.foreign import parameters
from dagrpo.trainer.foreign.parameters import (
    Sections,
    refusal,
    refuse_settings,
    require_one_of,
    require_only,
    value_of,
)
from dagrpo.trainer.verl import reward_manager
from dagrpo.trainer.verl.objective import ACTOR, ARR, Keys, objective

if TYPE_CHECKING:
    from dagrpo.config.schema import Params

LEAST_BATCH_TOKENS = 16_384  # of a pass, where runtime.training.micro_batch_tokens is null
ENDLESS = 1_000_000  # epochs: training.steps ends the run
ENGINE = "sglang"
TEXT_LOOP, TEMPLATE = "tool_agent", "template"


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files and folders that verl reads and writes, as absolute paths."""

    model: Path  # a checkpoint in the Hugging Face layout
    rows: Path  # parquet
    grading: tuple[str, ...]  # command of the process that grades
    checkpoints: Path


SAME: Mapping[str, tuple[str, ...]] = {
    "training.steps": ("trainer.total_training_steps",),
    "training.prompts_per_step": ("data.train_batch_size",),
    "training.samples_per_prompt": (f"{ARR}.rollout.n",),
    "training.learning_rate": (f"{ACTOR}.optim.lr",),
    "training.weight_decay": (f"{ACTOR}.optim.weight_decay",),
    "training.max_grad_norm": (f"{ACTOR}.optim.clip_grad", f"{ACTOR}.grad_clip"),
    "training.dtype": (f"{ACTOR}.fsdp_config.dtype", f"{ARR}.ref.fsdp_config.dtype"),
    "training.max_prompt_tokens": ("data.max_prompt_length",),
    "rollout.max_new_tokens": ("data.max_response_length",),
    "rollout.temperature": (f"{ARR}.rollout.temperature",),
    "rollout.dtype": (f"{ARR}.rollout.dtype",),
    "runtime.engine.tensor_parallel": (f"{ARR}.rollout.tensor_model_parallel_size",),
    "runtime.engine.max_running_requests": (f"{ARR}.rollout.max_num_seqs",),
    "runtime.training.processes": ("trainer.n_gpus_per_node",),
    "runtime.training.activation_checkpointing": (f"{ARR}.model.enable_gradient_checkpointing",),
    "runtime.training.save_every": ("trainer.save_freq",),
}
# The one value that verl has, and what to do, if that is not to set it.
ONLY: Mapping[str, tuple[Any, str]] = {
    **parameters.ONLY,
    "rollout.top_p": (1.0, ""),
    "rollout.top_k": (-1, ""),
    "rollout.agent.name": (TEXT_LOOP, ""),
    "rollout.agent.max_tokens": (None, "set it to null, and the limit as rollout.max_new_tokens"),
    "rollout.chat.name": (TEMPLATE, ""),
    "training.staleness": (0, ""),
    "training.order": ("shuffled", ""),
    "training.dynamic_sampling.max_rounds": (
        1,
        "set it to 1; verl's algorithm.filter_groups, which refills without limit, is a key for training.backend.settings",
    ),
    "training.dynamic_sampling.oversampling": (1.0, ""),
    "runtime.engine.name": (ENGINE, ""),
}
HALVES = ("bfloat16", "float16")


def configuration(sections: Sections, settings: Mapping[str, Any], seed: int, files: Files) -> Keys:
    """Return every key of verl's configuration that is not left at verl's default: dotted name -> value.

    `settings` are the user's own, and may set none of the others. Raises UserError for a parameter that cannot be mapped.
    """
    require_only(sections, ONLY)
    for key in ("training.dtype", "rollout.dtype"):
        require_one_of(sections, key, HALVES)
    keys = {
        **{theirs: value_of(sections, ours) for ours, several in SAME.items() for theirs in several},
        **objective(sections.algorithm, sections.rollout.max_new_tokens),
        **_batches(sections),
        **_seeds(seed),
        **_fixed(files),
    }
    refuse_settings(settings, keys)
    if "trust_remote_code" in json.dumps(dict(settings)):
        raise UserError(
            "training.backend.settings has trust_remote_code, which runs code of a checkpoint: leave it out"
        )
    return {**keys, **settings}


def refuse(params: "Params", settings: Mapping[str, Any]) -> None:
    """Raise UserError for the first parameter that verl cannot honour."""
    from dagrpo.data.task import get_task

    task = get_task(params.experiment.train)
    for name, what in (("tools", task.tools), ("a simulated user", task.interaction), ("pictures", task.images)):
        if what:
            raise refusal(f"the task {task.name} has {name}", "set experiment.train to a task of one turn of text")
    nowhere = Path("/")
    files = Files(model=nowhere, rows=nowhere, grading=(), checkpoints=nowhere)
    configuration(params, settings, params.experiment.seeds[0], files)


def _batches(sections: Sections) -> Keys:
    training, runtime = sections.training, sections.runtime.training
    longest = training.max_prompt_tokens + sections.rollout.max_new_tokens
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
    return {
        f"{ACTOR}.ppo_mini_batch_size": training.prompts_per_step // updates,
        f"{ACTOR}.optim.lr_warmup_steps": warm_up // updates,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": tokens,
        f"{ARR}.rollout.log_prob_max_token_len_per_gpu": tokens,
        f"{ARR}.ref.log_prob_max_token_len_per_gpu": tokens,
    }


def _seeds(seed: int) -> Keys:
    return {
        "data.seed": seed,
        f"{ACTOR}.data_loader_seed": seed,
        f"{ACTOR}.fsdp_config.seed": seed,
        f"{ARR}.rollout.seed": seed,
    }


def _fixed(files: Files) -> Keys:
    return {
        f"{ARR}.model.path": str(files.model),
        f"{ARR}.rollout.name": ENGINE,
        f"{ACTOR}.strategy": "fsdp2",
        f"{ARR}.ref.strategy": "fsdp2",
        f"{ACTOR}.fsdp_config.strategy": "fsdp2",
        f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{ACTOR}.checkpoint.load_contents": ["model", "optimizer", "extra"],
        "data.train_files": str(files.rows),
        "data.val_files": str(files.rows),
        "data.val_max_samples": 1,
        "data.filter_overlong_prompts": False,  # they are refused before, by name
        "data.truncation": "error",
        "data.shuffle": True,
        "reward.num_workers": 2,
        "reward.reward_manager.source": "importlib",
        "reward.reward_manager.name": reward_manager.DagrpoRewardManager.__name__,
        "reward.reward_manager.module.path": reward_manager.__file__,
        f"reward.reward_kwargs.{reward_manager.COMMAND}": list(files.grading),
        "trainer.nnodes": 1,
        "trainer.total_epochs": ENDLESS,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.logger": ["console", "file"],
        "trainer.project_name": "dagrpo",
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": str(files.checkpoints),
        "trainer.max_actor_ckpt_to_keep": 1,  # verl removes the one before after the next is whole
    }
