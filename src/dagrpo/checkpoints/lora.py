"""LoRA adapters in PEFT's format: merged into base weights, or copied.

Merging is W + s B A with s = alpha / r (https://arxiv.org/abs/2106.09685), or alpha / sqrt(r) for rank-stabilised
adapters (https://arxiv.org/abs/2312.03732). It is computed in float32 and rounded once, to the type of W. DoRA,
biases, whole modules that an adapter replaces, and adapters that began by changing their base (PiSSA) are refused.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dagrpo.checkpoints.folder import ADAPTER
from dagrpo.checkpoints.lora_layers import BASE_DIGEST, CONFIG, PREFIX, WEIGHTS, low_rank_update
from dagrpo.checkpoints.manifest import TensorSummary, summary_of, tensor_digest_of
from dagrpo.checkpoints.safetensors_file import SafetensorsFile
from dagrpo.checkpoints.source import Source
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.checkpoints.weight_map import require_own
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.utils.files import read_object
from dagrpo.utils.manifest import MANIFEST

# With these PEFT computes more than s B A, or changes more than the weights of linear layers.
_UNSUPPORTED = (
    "alora_invocation_tokens",
    "arrow_config",
    "bias",
    "fan_in_fan_out",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
)
_ABSENT: tuple[Any, ...] = (None, False, "none", [], {})
_LARGEST_NUMBER = 1_000_000  # of a rank or an alpha
_PATTERN_SECONDS = 1.0
# Other initialisations (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA) subtract something from the base, to which the adapter adds.
_PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The update of some weights: `scales` by the name of the weight that changes."""

    folder: Path
    scales: Mapping[str, float]
    modules: Mapping[str, str]  # by the same names: that of the layer in the file
    file: SafetensorsFile

    def update(self, name: str) -> Tensor:
        """Return s B A in float32."""
        up, down = (self.file.read(f"{self.modules[name]}.lora_{which}.weight") for which in "BA")
        return low_rank_update(up, down, self.scales[name])


class MergedTensors:
    """The weights of a base model with an adapter added. Raises UserError if the adapter is of another model."""

    def __init__(self, base: Tensors, adapter: Adapter) -> None:
        self._base = base
        self._adapter = adapter
        self.specs = base.specs
        for name in adapter.scales:
            _require_fitting(base, adapter, name)

    def read(self, name: str) -> Tensor:
        weight = self._base.read(name)
        if name not in self._adapter.scales:
            return weight
        return (weight.to(torch.float32) + self._adapter.update(name)).to(weight.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MergedSource(Source):
    """The base with the adapter in it; its files are checked too, but its tensors differ from its manifest's."""

    base: Source

    def summary(self) -> TensorSummary:
        Source.summary(self.base)
        return summary_of(self.tensors)


def merged(source: Source, folder: Path) -> Source:
    """Return the source with an adapter merged into its weights."""
    tensors = MergedTensors(source.tensors, _adapter_of(source, folder))
    return _MergedSource(
        folder=source.folder,
        format=source.format,
        home=source.home,
        auxiliary=tuple(name for name in source.auxiliary if not name.startswith(f"{ADAPTER}/")),
        tensors=tensors,
        base=source,
    )


def with_adapter_beside(source: Source, folder: Path) -> Source:
    """Return the source with the adapter's own two files beside its unchanged weights, byte for byte."""
    MergedTensors(source.tensors, _adapter_of(source, folder))  # it belongs to this model
    return replace(source, beside={f"{ADAPTER}/{name}": folder / name for name in (CONFIG, WEIGHTS)})


def _adapter_of(source: Source, folder: Path) -> Adapter:
    """Read the adapter, with its weights renamed as in the source. Raises UserError if it is of other weights."""
    adapter = read_adapter(folder)
    _require_base(source, adapter)
    if adapter.scales.keys() <= source.tensors.specs.keys():
        return adapter
    from dagrpo.checkpoints.modules import (
        names_in_checkpoint,  # transformers is imported where it names weights otherwise
    )

    names = names_in_checkpoint(source.home, [*adapter.scales])
    return replace(
        adapter,
        scales={names[name]: scale for name, scale in adapter.scales.items()},
        modules={names[name]: module for name, module in adapter.modules.items()},
    )


def _require_base(source: Source, adapter: Adapter) -> None:
    """Raise UserError for a dagrpo adapter trained on other weights, such as those into which it is already merged."""
    expected = adapter.file.metadata.get(BASE_DIGEST)
    if expected is None or not (source.folder / MANIFEST).is_file():
        return
    if tensor_digest_of(source.folder) != expected:
        raise UserError(
            f"{adapter.folder} was trained on other weights than those in {source.folder} (their tensor digest begins with "
            f"{brief(expected[:16])}): give the checkpoint that its training began with."
        )


def read_adapter(folder: Path) -> Adapter:
    """Open an adapter. Raises UserError if it is not LoRA, or does more than adding s B A to weights."""
    for name in (CONFIG, WEIGHTS):
        require_own(folder, name)
    config = _read_config(folder)
    file = SafetensorsFile(folder / WEIGHTS)
    modules = {name.rpartition(".lora_")[0] for name in file.names if ".lora_A." in name or ".lora_B." in name}
    expected = {f"{module}.lora_{which}.weight" for module in modules for which in "AB"}
    for name in sorted(expected ^ file.names):
        problem = "lacks" if name in expected else "holds the unknown tensor"
        raise UserError(f"{folder / WEIGHTS} {problem} {brief(name)}: save the adapter again with PEFT.")
    scales = {f"{module.removeprefix(PREFIX)}.weight": _scale(config, module, file) for module in sorted(modules)}
    names = {f"{module.removeprefix(PREFIX)}.weight": module for module in modules}
    return Adapter(folder=folder, scales=scales, modules=names, file=file)


def _read_config(folder: Path) -> dict[str, Any]:
    config = read_object(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        raise UserError(
            f"{folder / CONFIG} has the peft_type {brief(config.get('peft_type'))}: only LORA can be merged."
        )
    refused = [key for key in _UNSUPPORTED if config.get(key) not in _ABSENT]
    refused += ["init_lora_weights"] if config.get("init_lora_weights") not in _PLAIN_STARTS else []
    if refused:
        key = refused[0]
        raise UserError(
            f"{folder / CONFIG} sets {key} to {brief(config[key])}, which is not merged: merge it with PEFT."
        )
    _require_numbers(folder / CONFIG, config)
    return config


def _require_numbers(path: Path, config: Mapping[str, Any]) -> None:
    """Raise UserError for ranks and alphas other than numbers of a sensible size, given for all modules or by name patterns."""
    for key, patterns_key in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")):
        patterns = config.get(patterns_key) or {}
        if not isinstance(patterns, dict):
            raise UserError(
                f"{path} sets {patterns_key} to {brief(patterns)}, which is not an object of names and numbers: save it again with PEFT."
            )
        for name, value in [(key, config.get(key)), *((f"{patterns_key} {brief(p)}", v) for p, v in patterns.items())]:
            if type(value) not in (int, float) or not 0 < value < _LARGEST_NUMBER:
                raise UserError(
                    f"{path} sets {name} to {brief(value)}, which is not a number between 0 and {_LARGEST_NUMBER:,}: "
                    "save it again with PEFT."
                )


def _scale(config: Mapping[str, Any], module: str, file: SafetensorsFile) -> float:
    """Return alpha / r of a module; both may be given by patterns of its name."""
    name = module.removeprefix(PREFIX)
    where = file.path.with_name(CONFIG)
    rank = _by_pattern(where, config.get("rank_pattern"), name, config["r"])
    alpha = _by_pattern(where, config.get("alpha_pattern"), name, config["lora_alpha"])
    stored = (file.spec(f"{module}.lora_A.weight").shape or (0,))[0]
    if stored != rank:
        raise UserError(
            f"{file.path}: {brief(name)} has rank {stored}, but {CONFIG} says {rank}: they do not belong together."
        )
    return float(alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank)


def _by_pattern(where: Path, patterns: Mapping[str, float] | None, name: str, default: float) -> float:
    """Return the value whose pattern matches as in PEFT: the pattern is the whole name, or follows a dot in it."""
    import regex  # type: ignore[import-untyped]  # re has no limit of time: a pattern of 20 characters can take years

    for pattern, value in (patterns or {}).items():
        try:
            if regex.fullmatch(rf"(.*\.)?({pattern})", name, timeout=_PATTERN_SECONDS):
                return value
        except (regex.error, TimeoutError, RecursionError, OverflowError):
            raise UserError(
                f"{where} has the pattern {brief(pattern)}, which cannot be matched: write out the names of the modules."
            ) from None
    return default


def _require_fitting(base: Tensors, adapter: Adapter, name: str) -> None:
    spec = base.specs.get(name)
    if spec is None:
        raise UserError(
            f"{adapter.folder} changes {brief(name)}, which the model does not have: give the adapter's own base."
        )
    up, down = (adapter.file.spec(f"{adapter.modules[name]}.lora_{which}.weight").shape for which in "BA")
    if len(up) != 2 or len(down) != 2 or up[1] != down[0] or (up[0], down[1]) != spec.shape:
        raise UserError(
            f"{adapter.folder} changes {brief(name)} as {_times(up)} by {_times(down)}, but the model has it as "
            f"{_times(spec.shape)}: give the adapter's own base."
        )


def _times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
