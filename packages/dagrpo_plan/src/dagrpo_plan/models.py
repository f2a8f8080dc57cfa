"""Shapes of an experiment's models, from their configs alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

import torch

from dagrpo.algorithms.teacher_config import TEACHER
from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.checkpoints.modelling import PreTrainedConfig, PreTrainedModel
from dagrpo.checkpoints.modules import model_class_of
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.models.published import CONFIGS
from dagrpo.rewards.components.reward_model import Config as RewardModel
from dagrpo.trainer.config.lora import Lora, TrainedLora
from dagrpo.trainer.metrics.throughput import Arithmetic
from dagrpo.trainer.model.lora import adapted_layers
from dagrpo.trainer.model.vision_tower import tower_module
from dagrpo.utils.files import read_object

Vision = Literal["frozen", "trained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Number of weights, and of trained ones."""

    weights: int  # of the model itself, tied ones counted once, without an adapter
    adapter: int  # of a LoRA adapter; all of them are trained
    trained: int  # those that have a gradient, an adapter's included
    whole: int  # of `weights`, those that are not shared: every process has the whole of a frozen tower


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of a model for a plan: of any family, experts and vision towers included."""

    model: PreTrainedModel  # on the meta device, so without values
    text: Any  # config of the language model
    vision: Any  # config of the vision tower; None: the model takes no pictures
    arithmetic: Arithmetic
    weights: int
    block: int  # weights of the largest block, which FSDP gathers as one
    outside: int  # weights outside the blocks: embeddings, head, norms
    positions: int  # tokens of the longest context
    key_value_heads: int  # with a key and a value, in each layer
    keys: int  # numbers of a token's keys in a layer; it has as many values
    queries: int  # numbers of a token's queries in a layer
    cached_per_token: (
        int  # elements of the key-value cache: a key and a value per layer; too many if some layers have no cache
    )
    norms_queries: bool  # whether queries and keys are normalised, as in Qwen3
    mlp_width: int  # of a layer's MLP; with experts, of all that a token is sent to, added up

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Self:
        """Return the shape of the model that a config describes. Raises UserError if transformers does not know it."""
        with torch.device("meta"):
            model: PreTrainedModel = model_class_of(config)._from_config(config, dtype=torch.float32)
        model.tie_weights()
        weights, text = sum(weight.numel() for weight in model.parameters()), model.config.get_text_config()
        names = model._no_split_modules or ()  # as trainer/model/fsdp.py finds the blocks
        found = (module for module in model.modules() if type(module).__name__ in names)
        blocks = [sum(weight.numel() for weight in module.parameters()) for module in found]
        heads = int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)
        size = int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
        of_experts = is_mixture_of_experts(text)
        mlp = (of_experts and getattr(text, "moe_intermediate_size", None)) or text.intermediate_size
        return cls(
            model=model,
            text=text,
            vision=None if tower_module(model) is None else model.config.vision_config,
            arithmetic=Arithmetic.of(model),
            weights=weights,
            block=max(blocks, default=0),
            outside=weights - sum(blocks),
            positions=int(getattr(text, "max_position_embeddings", None) or 1 << 30),
            key_value_heads=heads,
            keys=heads * size,
            queries=size * int(text.num_attention_heads),
            cached_per_token=2 * int(text.num_hidden_layers) * heads * size,
            norms_queries=any(name.endswith("q_norm.weight") for name, _ in model.named_parameters()),
            mlp_width=int(mlp * (text.num_experts_per_tok if of_experts else 1)),
        )

    def trained(self, lora: Lora, vision: Vision) -> Trained:
        """Return the numbers of weights, all and trained. Raises UserError if the adapter names no layer."""
        tower = tower_module(self.model)
        frozen = sum(weight.numel() for weight in tower.parameters()) if tower is not None and vision == "frozen" else 0
        if not lora.is_on:
            return Trained(weights=self.weights, adapter=0, trained=self.weights - frozen, whole=frozen)
        layers = [self.model.get_submodule(name).weight for name in adapted_layers(self.model, lora)]
        adapter = lora.rank * sum(sum(weight.shape) for weight in layers)
        return Trained(weights=self.weights, adapter=adapter, trained=adapter, whole=frozen)

    def synced_numbers(self, lora: TrainedLora, vision: Vision) -> int:
        """Return the numbers of a weight sync. Raises UserError if the adapter names no layer."""
        return self.weights if lora.serving == "merged" else self.trained(lora, vision).adapter


CONFIG, ORIGIN = "config.json", "origin.json"
MODELS = Path("models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Shapes of an experiment's models; they do not change with a smaller batch."""

    policy: Shape
    teacher: Shape | None = None  # None without one
    reward_model: Shape | None = None  # None without one, or if its folder is not there yet
    pixels: int | None = None  # of a picture, at most; None: none are shown, or it is not known how large they are

    @classmethod
    def of(cls, params: Params, *, online: bool = False) -> Self:
        """Return the models of an experiment. Raises UserError if a config is not on this machine.

        online: whether a config that is not on this machine may be fetched from the hub, a few kilobytes.
        """
        policy = policy_shape(params, online=online)
        pixels = picture_pixels(params) if policy.vision is not None else None
        config, reward_model = params.reward.components.get("reward_model"), None
        if isinstance(config, RewardModel) and config.counts and Path(config.folder, CONFIG).is_file():
            reward_model = _shape_in(Path(config.folder))
        teacher = _teacher_shape(params, policy, online=online)
        return cls(policy=policy, teacher=teacher, reward_model=reward_model, pixels=pixels)


def policy_shape(params: Params, *, online: bool) -> Shape:
    """Return the policy's shape. Raises UserError if its config is missing."""
    model = params.model
    match model.source:
        case "fresh":
            from dagrpo.models.fresh import config_of

            return Shape.of(config_of(model.fresh))
        case "gguf":
            from dagrpo.models.gguf import gguf_config, gguf_path

            return Shape.of(gguf_config(gguf_path(str(model.gguf))))  # without reading weights
        case "hub":
            return _shape_of_hub(model.repository, model.revision, params.experiment.name, model.name, online=online)


def _teacher_shape(params: Params, policy: Shape, *, online: bool) -> Shape | None:
    """Return the teacher's shape; None without a teacher. Raises UserError like `policy_shape`."""
    teacher = params.algorithm.teacher
    match teacher.source:
        case "none":
            return None
        case "initial":
            return policy
        case "folder":
            return _shape_in(Path(str(teacher.folder)))
        case "hub":
            return _shape_of_hub(teacher.repository, teacher.revision, params.experiment.name, TEACHER, online=online)


def picture_pixels(params: Params) -> int | None:
    """Return the most pixels that the model sees of a picture; None if unknown."""
    model, limit = params.model, params.model.max_pixels
    if limit is not None:
        return limit
    if model.source == "fresh":
        tokens = model.full_picture_tokens
        return None if tokens is None else tokens * (2 * model.fresh.vision.patch_size) ** 2
    if model.source != "hub":
        return None
    for folder in _folders_of(str(model.repository), str(model.revision), params.experiment.name, model.name):
        if (folder / "preprocessor_config.json").is_file():
            limits = read_object(folder / "preprocessor_config.json")
            return int(limits.get("max_pixels") or limits.get("size", {}).get("longest_edge") or 0) or None
    return None


def _folders_of(repository: str, revision: str, experiment: str, name: str) -> Iterator[Path]:
    """Yield folders of this project that hold a model of the hub at that commit, the experiment's own first."""
    for folder in (MODELS / experiment / name, *sorted(MODELS.glob("*/*/"))):
        origin = read_object(folder / ORIGIN) if (folder / ORIGIN).is_file() else {}
        if (origin.get("repository"), origin.get("revision")) == (repository, revision):
            yield folder


def _shape_in(folder: Path) -> Shape:
    from transformers import AutoConfig

    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} has no {CONFIG}: name the folder of a checkpoint.")
    try:
        return Shape.of(AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / CONFIG} is of no model that transformers has ({error}): choose another model."
        ) from None


def _shape_of_hub(repository: str | None, revision: str | None, experiment: str, name: str, *, online: bool) -> Shape:
    assert repository is not None, "the schema asks for it"
    assert revision is not None, "the schema asks for it"
    for folder in _folders_of(repository, revision, experiment, name):
        return _shape_in(folder)
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(repository, CONFIG, revision=revision)
    if isinstance(cached, str):
        return _shape_in(Path(cached).parent)
    if repository in CONFIGS:
        from transformers import AutoConfig

        return Shape.of(AutoConfig.for_model(**CONFIGS[repository]))
    if not online:
        raise UserError(
            f"The {CONFIG} of {repository} at commit {revision[:12]} is not on this machine, neither in {MODELS}/ nor in the hub's "
            "cache: add --online, which fetches that file alone."
        )
    from huggingface_hub import hf_hub_download

    from dagrpo.utils.hub import Wanted, readable_hub_errors, require_answer

    request = Wanted(
        repository=repository,
        revision=revision,
        kind="model",
        correct="correct its repository and revision",
        instead="plan it where the model is in the hub's cache",
    )
    require_answer(request)
    with TemporaryDirectory() as temporary:
        with readable_hub_errors(request):
            hf_hub_download(repository, CONFIG, revision=revision, local_dir=temporary)
        return _shape_in(Path(temporary))
