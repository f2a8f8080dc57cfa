"""Checks of the engines of `runtime` against all other parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dagrpo.core.errors import UserError
from dagrpo.core.urls import mistake_in_server
from dagrpo.engine import capabilities_of, engine_of
from dagrpo.engine.config import POLICY, REWARD_MODEL, TEACHER, EngineConfig

if TYPE_CHECKING:
    from dagrpo.algorithms.config import Algorithm
    from dagrpo.models.config import Model
    from dagrpo.rewards.config import Reward
    from dagrpo.rollout.config import Rollout
    from dagrpo.trainer.config.runtime import Runtime
    from dagrpo.trainer.config.training import Training


def check_engines(
    runtime: Runtime, *, model: Model, rollout: Rollout, reward: Reward, algorithm: Algorithm, training: Training
) -> None:
    """Raise UserError if the engine of the policy, the teacher or the reward model cannot work with the other sections."""
    scored = reward.components.get("reward_model")
    has_teacher, has_reward_model = algorithm.teacher.is_there, scored is not None and scored.counts
    for section, config in (
        (POLICY, runtime.engine),
        (TEACHER, runtime.teacher),
        (REWARD_MODEL, runtime.reward_model),
    ):
        _check_addresses(section, config)
        _check_elsewhere(section, config)
        for missing in _missing(section, config):
            raise UserError(
                f"{missing}, which the engine {config.name} does not support: leave it at its default, or choose another {section}.name"
            )
    for missing in _missing_for_training(runtime.engine, model, rollout, training):
        raise UserError(f"{missing}, or choose another runtime.engine.name than {runtime.engine.name}")
    _check_beside(runtime.engine, TEACHER, runtime.teacher, "teacher")
    _check_beside(runtime.engine, REWARD_MODEL, runtime.reward_model, "reward model")
    _check_teacher(runtime.teacher, rollout, is_there=has_teacher)
    _check_reward_model(runtime, training.staleness, is_there=has_reward_model, beside_teacher=has_teacher)
    _check_policy(runtime, model, rollout, training)
    _check_caches(
        runtime, deterministic=rollout.deterministic, has_teacher=has_teacher, has_reward_model=has_reward_model
    )
    for section, config in ((POLICY, runtime.engine), (TEACHER, runtime.teacher)):
        if (check := engine_of(config).check) is not None:
            check(config, section, model, rollout.deterministic)


def _missing(section: str, config: EngineConfig) -> Iterator[str]:
    """Yield the keys of an engine's own section that need a capability that it lacks."""
    able = capabilities_of(config)
    if config.servers and not able.elsewhere:
        yield f"{section}.servers names servers that run elsewhere"
    if config.release_memory and not able.release_memory:
        yield f"{section}.release_memory is true"
    if config.weight_sync == "tensors" and engine_of(config).memory is None:
        yield f"{section}.weight_sync is tensors"
    if config.nodes and engine_of(config).start is None:
        yield f"{section}.nodes is {config.nodes}"
    if config.nodes_per_server > 1 and not able.spans_nodes:
        yield f"{section}.nodes_per_server is {config.nodes_per_server}"
    if config.tensor_parallel > 1 and not able.tensor_parallel:
        yield f"{section}.tensor_parallel is {config.tensor_parallel}"


def _missing_for_training(engine: EngineConfig, model: Model, rollout: Rollout, training: Training) -> Iterator[str]:
    """Yield what other sections need of the policy's engine, and how to do without it."""
    able = capabilities_of(engine)
    if rollout.deterministic and not able.bit_exact:
        yield "rollout.deterministic is true, but the engine does not sample the same bits twice: set it to false"
    if rollout.cuts and rollout.top_k > able.sampling_mask:
        yield (
            f"rollout.top_k is {rollout.top_k}, but the engine reports sampling masks of at most {able.sampling_mask} tokens: set "
            "rollout.top_p to 1.0 and rollout.top_k to -1"
        )
    if rollout.head_dtype == "float32" and not able.float32_head:
        yield "rollout.head_dtype is float32, but the engine computes logits in the model's type: set it to null"
    if training.lora.serving == "adapter" and able.lora is None:
        yield "training.lora.serving is adapter, but the engine serves no adapter: set it to merged"
    if training.dynamic_sampling.max_aborts and not able.aborts:
        yield "training.dynamic_sampling.max_aborts is above 0, but the engine aborts no requests: set it to 0"
    if training.dynamic_sampling.partial_rollouts and not able.aborted_tokens:
        yield (
            "training.dynamic_sampling.partial_rollouts is true, but the engine does not return what it had sampled for aborted requests: "
            "set it to false"
        )
    if training.gates.digest_mebibytes and not able.weight_digest:
        yield (
            "training.gates.digest_mebibytes is above 0, but the engine reports no digests of its weights: set it to 0, so that only "
            "the probe checks them"
        )
    if model.source == "fresh" and model.fresh.takes_pictures and not able.pictures:
        yield "model.fresh.vision.family makes a model of pictures, but the engine takes text alone: set it to none"


def _check_addresses(section: str, config: EngineConfig) -> None:
    """Raise UserError for an invalid address, without quoting it: it may hold a password."""
    for number, address in enumerate(config.servers, start=1):
        if wrong := mistake_in_server(address):
            key = engine_of(config).key_variable
            key = f", and give a key in the environment variable {key}" if key else ""
            raise UserError(
                f"address {number} of {section}.servers {wrong}: write it as http://127.0.0.1:30000, with a port below 65536{key}"
            )


def _require_defaults(section: str, config: EngineConfig, keys: tuple[str, ...], why: str) -> None:
    """Raise UserError for the first of these keys of an engine that is not at its default."""
    for key in keys:
        own, default = (
            "null" if each is None else str(each).lower()
            for each in (getattr(config, key), type(config).model_fields[key].default)
        )
        if own != default:
            raise UserError(f"{section}.{key} is {own}, {why} set {section}.{key} to {default}")


def _check_elsewhere(section: str, config: EngineConfig) -> None:
    """Raise UserError for keys of servers that the stage starts beside servers that run elsewhere."""
    if config.servers:
        keys = ("threads", "tensor_parallel", "replicas", "own_gpus", "nodes", "release_memory")
        why = f"and {section}.servers names servers that run elsewhere, beside which a stage starts none:"
        _require_defaults(section, config, keys, f"{why} start those as you need them, and")


def _check_policy(runtime: Runtime, model: Model, rollout: Rollout, training: Training) -> None:
    """Raise UserError if the policy's engine cannot serve this training."""
    engine = runtime.engine
    longest = training.max_prompt_tokens + rollout.max_new_tokens
    if engine.max_total_tokens is not None and longest > engine.max_total_tokens:
        raise UserError(
            f"one request may need {longest} tokens, but runtime.engine.max_total_tokens is {engine.max_total_tokens}: raise it"
        )
    if rollout.deterministic and engine.servers:
        raise UserError(
            "rollout.deterministic is true but runtime.engine.servers names servers that others may use: set one of them otherwise "
            "(false, or an empty list)"
        )
    if engine.nodes:
        why = f"but runtime.engine.nodes is {engine.nodes}, so that no server shares a machine with the policy:"
        _require_defaults(POLICY, engine, ("own_gpus", "release_memory"), why)
    _check_release(POLICY, engine, training.staleness)
    if engine.weight_sync == "tensors" and engine.gpus > 1:
        _check_tensors(engine, runtime.training.processes, training.staleness)
    if training.lora.serving == "adapter":
        _check_served_adapter(engine, model)


def _check_tensors(engine: EngineConfig, processes: int, staleness: int) -> None:
    """Raise UserError if not each GPU of the servers has a process of the trainer with the weights."""
    tensors = "runtime.engine.weight_sync is tensors"
    if engine.gpus > processes:
        raise UserError(
            f"{tensors}, with replicas x tensor_parallel {engine.gpus}, each of which opens the memory of one of "
            f"runtime.training.processes, but these are {processes}: set weight_sync to null, or processes to {engine.gpus}"
        )
    if staleness:
        raise UserError(
            f"{tensors}, but with training.staleness {staleness} only the first process has the weights that "
            f"{engine.gpus} GPUs would open: set weight_sync to null, or staleness to 0"
        )


def _check_caches(runtime: Runtime, *, deterministic: bool, has_teacher: bool, has_reward_model: bool) -> None:
    """Raise UserError if a server is to fill the free memory of a GPU on which others need some, or in which its size decides batches."""
    policy, teacher, reward_model = runtime.engine, runtime.teacher, runtime.reward_model
    shares = not (policy.own_gpus or policy.serves_elsewhere)
    beside = [
        *([TEACHER] if has_teacher and not teacher.servers else []),
        *([] if reward_model.servers or reward_model.own_gpus or not has_reward_model else [REWARD_MODEL]),
    ]
    reasons = {
        POLICY: "rollout.deterministic is true, and the size of the cache decides which requests are computed together"
        if deterministic
        else "the trainer keeps its GPU memory meanwhile: set runtime.engine.release_memory or own_gpus to true"
        if shares and not policy.release_memory
        else f"{beside[0]} has a server on the same GPU"
        if shares and beside
        else None,
        TEACHER: None if teacher.servers else "the policy uses the same GPU",
        REWARD_MODEL: None if reward_model.servers or reward_model.own_gpus else "the policy uses the same GPU",
    }
    for section, config in ((POLICY, policy), (TEACHER, teacher), (REWARD_MODEL, reward_model)):
        if config.max_total_tokens is None and (reason := reasons[section]) is not None:
            raise UserError(
                f"{section}.max_total_tokens is null, so that its server takes all free memory of its GPU, but {reason}; or give a number "
                "of tokens, such as 65536"
            )


def _check_release(section: str, engine: EngineConfig, staleness: int) -> None:
    """Raise UserError if an engine has to release a GPU that no other process needs, or that it needs itself meanwhile."""
    if engine.release_memory and engine.own_gpus:
        raise UserError(
            f"{section}.release_memory and own_gpus are both true, but a server with its own GPU makes room for no other process: "
            "set one of them to false"
        )
    if engine.release_memory and staleness:
        raise UserError(
            f"training.staleness is {staleness}, so that completions are sampled and scored while the policy is updated, but "
            f"{section}.release_memory releases the GPU meanwhile: set one of them to 0 or false"
        )


def _check_served_adapter(engine: EngineConfig, model: Model) -> None:
    if engine.weight_sync == "distributed":
        raise UserError(
            "training.lora.serving is adapter, whose weights travel in a folder, but runtime.engine.weight_sync is distributed: "
            "set weight_sync to null, or training.lora.serving to merged"
        )
    if engine.release_memory:
        raise UserError(
            "training.lora.serving is adapter, so that the engine keeps its weights, but runtime.engine.release_memory has it give "
            "them up for every update: set training.lora.serving to merged, or runtime.engine.release_memory to false"
        )
    if engine.ranks > 1:
        key = "tensor_parallel" if engine.tensor_parallel > 1 else "nodes_per_server"
        raise UserError(
            f"training.lora.serving is adapter and runtime.engine.{key} {getattr(engine, key)}, but what each GPU then "
            f"holds of an adapter cannot be verified: set training.lora.serving to merged, or runtime.engine.{key} to 1"
        )
    if model.source == "fresh" and model.fresh.takes_pictures:
        raise UserError(
            "training.lora.serving is adapter, which is not supported for models that take pictures: set it to merged"
        )


def _check_beside(policy: EngineConfig, key: str, engine: EngineConfig, model: str) -> None:
    """Raise UserError if the engine of a model whose weights are loaded once is set as for the policy."""
    _require_defaults(key, engine, ("weight_sync",), f"but a {model}'s weights are loaded once and never synced:")
    why = f"which is for the policy's engine: start servers of the {model} elsewhere and name them in {key}.servers, or"
    _require_defaults(key, engine, ("nodes",), why)
    shared = sorted({*engine.servers} & {*policy.servers})
    if shared:
        raise UserError(
            f"{key}.servers and runtime.engine.servers both name {shared[0]}, which holds one model: give the {model} "
            "another server"
        )


def _check_reward_model(runtime: Runtime, staleness: int, *, is_there: bool, beside_teacher: bool) -> None:
    """Raise UserError if the engine of a reward model serves no classifiers, or is set up for none."""
    engine = runtime.reward_model
    if not is_there:
        keys = ("replicas", "tensor_parallel", "own_gpus", "release_memory")
        _require_defaults(REWARD_MODEL, engine, keys, "but reward.components has no reward_model: add it, or")
        return
    if engine_of(engine).open_classifier is None:
        raise UserError(
            f"runtime.reward_model.name is {engine.name}, which serves no sequence classifiers: choose another engine, or leave "
            "reward_model out of reward.components"
        )
    _check_release(REWARD_MODEL, engine, staleness)
    shared = {*engine.servers} & {*runtime.teacher.servers}
    if beside_teacher and shared:
        raise UserError(
            f"runtime.reward_model.servers and runtime.teacher.servers both name {min(shared)}, which holds one model: give the "
            "reward model another server"
        )


def _check_teacher(teacher: EngineConfig, rollout: Rollout, *, is_there: bool) -> None:
    """Raise UserError if the teacher's engine cannot score the policy's tokens in full."""
    why = "but one server on the first GPU serves a teacher: start others elsewhere and name them in runtime.teacher.servers, or"
    _require_defaults(TEACHER, teacher, ("release_memory", "replicas", "own_gpus"), why)
    if not is_there:
        return
    if not capabilities_of(teacher).scores:
        raise UserError(
            f"runtime.teacher.name is {teacher.name}, which returns no logprobs of given tokens: choose another engine, or set "
            "algorithm.teacher.source to none"
        )
    if rollout.temperature != 1:
        raise UserError(
            f"rollout.temperature is {rollout.temperature}, but an engine returns the teacher's logprobs at temperature 1 alone: set "
            "rollout.temperature to 1.0, or algorithm.teacher.source to none"
        )
    if rollout.cuts:
        raise UserError(
            f"rollout.top_k is {rollout.top_k} and rollout.top_p {rollout.top_p}, but an engine returns the teacher's logprobs over "
            "the whole vocabulary alone: set rollout.top_p to 1.0 and rollout.top_k to -1, or algorithm.teacher.source to none"
        )
    if rollout.deterministic and teacher.servers:
        raise UserError(
            "rollout.deterministic is true but runtime.teacher.servers names servers that others may use: set one of them otherwise "
            "(false, or an empty list)"
        )
