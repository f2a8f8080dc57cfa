"""Parameters as arguments of Megatron-LM's train_rl.py, and those that have none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.losses import aggregation_of
from dagrpo.core.errors import UserError
from dagrpo_foreign.parameters import ONLY, Sections, refusal, refuse_settings, require_only, value_of

if TYPE_CHECKING:
    from dagrpo.trainer.backends import Planned

FORMAT = "megatron"  # of checkpoints
Arguments = dict[str, Any]  # name without dashes -> value; True: a flag
TOKEN_MEAN, SEQUENCE_MEAN = "token-mean", "seq-mean-token-mean"
MULTIPLE = 8  # of a sequence's length: tensor parallelism divides it
TRUST = "trust-remote-code"
PACKING = "rl-use-sequence-packing"
TABLE: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("mapping.yaml").read_text(encoding="utf-8")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files and folders that Megatron-LM reads and writes, as absolute paths."""

    initial: Path  # torch_dist checkpoint
    tokenizer: Path
    environment: Path  # YAML of its agents
    checkpoints: Path
    begins_with_bos: bool = False  # each prompt


def arguments(sections: Sections, settings: Mapping[str, Any], seed: int, files: Files) -> Arguments:
    """Return all arguments but those that the model implies. `settings` are the user's, and may set none that follows from parameters.

    Raises UserError for a parameter that cannot be mapped.
    """
    require_only(sections, {**ONLY, **TABLE["only"]})
    following = {
        **{theirs: value_of(sections, ours) for ours, theirs in TABLE["same"].items()},
        **_objective(sections.algorithm),
        **_batches(sections),
        **_steps(sections),
        **TABLE["fixed"],
        "seed": seed,
        "pretrained-checkpoint": str(files.initial),
        "load": str(files.checkpoints),
        "save": str(files.checkpoints),
        "tokenizer-model": str(files.tokenizer),
        "langrl-env-config": str(files.environment),
        "rl-skip-bos-token": not files.begins_with_bos,
    }
    refuse_settings(settings, following)
    if any(TRUST in name for name in settings):
        raise UserError(f"training.backend.settings has {TRUST}, which runs code of a checkpoint: leave it out")
    for name, reason in TABLE["refused"].items():
        if name in settings:
            raise UserError(f"training.backend.settings has {name}, which {reason}: leave it out")
    if settings.get(PACKING):
        _require_packable(sections)
    layout = {"sequence-parallel": True} if following["tensor-model-parallel-size"] > 1 else {}
    recomputed = TABLE["recomputed"] if sections.runtime.training.activation_checkpointing else {}
    return {**TABLE["usual"], **layout, **recomputed, **following, **settings}


def command_line(named: Mapping[str, Any]) -> list[str]:
    """Return arguments as words. False and None leave one out; a list has several values."""
    words: list[str] = []
    for name, value in named.items():
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if isinstance(value, Sequence) and not isinstance(value, str):
            words += map(str, value)
        elif value is not True:
            words.append(str(value))
    return words


def refuse(params: "Planned", settings: Mapping[str, Any]) -> None:
    """Raise UserError for the first parameter that Megatron-LM cannot honour."""
    from dagrpo.checkpoints.formats import format_named
    from dagrpo.data.task import get_task

    format_named(FORMAT, "training.backend megatron_lm")  # its package may be missing
    if params.model.source == "fresh" and params.model.fresh.takes_pictures:
        raise refusal("model.fresh.vision.family is not none", "set it to none")
    for task in map(get_task, params.experiment.shares or params.experiment.train_tasks):
        for name, what in (("tools", task.tools), ("a simulated user", task.interaction), ("pictures", task.images)):
            if what:
                raise refusal(f"the task {task.name} has {name}", "set experiment.train to tasks of one turn of text")
    if not params.runtime.backend.source:
        raise UserError(
            "runtime.backend.source is null, but training.backend megatron_lm runs a checkout of Megatron-LM: set it to its folder"
        )
    nowhere = Path("/")
    files = Files(initial=nowhere, tokenizer=nowhere, environment=nowhere, checkpoints=nowhere)
    arguments(params, settings, params.experiment.seeds[0], files)


def _objective(algorithm: Algorithm) -> Arguments:
    aggregation, kl = aggregation_of(algorithm.aggregation, algorithm.loss), algorithm.kl
    correction = algorithm.correction.name
    if aggregation not in (TOKEN_MEAN, SEQUENCE_MEAN):
        raise refusal(f"algorithm.aggregation is {aggregation}", f"set it to {TOKEN_MEAN} or {SEQUENCE_MEAN}")
    if kl.coefficient and (kl.place, kl.estimator) != ("loss", "k3"):
        raise refusal(f"algorithm.kl has {kl.estimator} in the {kl.place}", "set estimator to k3, and place to loss")
    if weighed := sorted(name for name, term in algorithm.terms.items() if term.coefficient):
        raise refusal(f"algorithm.terms.{weighed[0]} has a coefficient", "set it to 0")
    if correction not in ("none", "token_truncated"):
        raise refusal(f"algorithm.correction is {correction}", "set it to token_truncated or none")
    maximum = getattr(algorithm.correction, "maximum", None)
    return {
        "calculate-per-token-loss": aggregation == TOKEN_MEAN,
        "rl-inference-logprobs-is-correction": correction != "none",
        **({} if maximum is None else {"rl-importance-sampling-truncation-coef": maximum}),
    }


def _batches(sections: Sections) -> Arguments:
    training = sections.training
    longest = training.max_prompt_tokens + sections.rollout.max_new_tokens
    longest += -longest % MULTIPLE
    tokens = sections.runtime.training.micro_batch_tokens or longest
    if tokens < longest:
        raise refusal(
            f"runtime.training.micro_batch_tokens is {tokens}, less than the longest sequence ({longest})",
            "raise it, or set it to null",
        )
    # Means over passes of one sequence each are seq-mean-token-mean, those over larger ones are not.
    one = aggregation_of(sections.algorithm.aggregation, sections.algorithm.loss) == SEQUENCE_MEAN
    return {
        "seq-length": longest,
        "inference-max-seq-length": longest,
        "micro-batch-size": 1 if one else tokens // longest,
        "global-batch-size": training.prompts_per_step * training.samples_per_prompt // training.mini_batches,
        "grpo-iterations": 1,
        "inference-max-requests": sections.runtime.engine.max_running_requests,
    }


def _require_packable(sections: Sections) -> None:
    """Raise UserError for what Megatron-LM counts in bins of sequences where it packs them."""
    remedy = f"leave {PACKING} out of training.backend.settings"
    if sections.training.learning_rate_warmup_steps:
        raise refusal(f"training.learning_rate_warmup_steps is above 0 with {PACKING}", f"set it to 0, {remedy}")
    if aggregation_of(sections.algorithm.aggregation, sections.algorithm.loss) == SEQUENCE_MEAN:
        raise refusal(f"algorithm.aggregation is {SEQUENCE_MEAN} with {PACKING}", f"set it to {TOKEN_MEAN}, {remedy}")


def _steps(sections: Sections) -> Arguments:
    training, each = sections.training, sections.training.mini_batches  # updates of a step: Megatron-LM's iterations
    last, save = training.steps * each, sections.runtime.training.save_every * each
    return {
        "train-iters": last,
        "lr-decay-style": "constant",
        "lr-decay-iters": last + training.learning_rate_warmup_steps + 1,  # it refuses a warm-up that is longer
        "override-opt-param-scheduler": True,  # for a resumed run with more steps
        "save-interval": save,
        "save-retain-interval": save * (last // save + 1),  # of the earlier ones it keeps the multiples
    }
