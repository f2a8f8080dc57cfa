"""Translation between a checkpoint's tensors and a transformers model.

Names and shapes in a checkpoint are those of the Hugging Face layout; transformers may hold them otherwise inside a
model (fused experts, tied embeddings), and its own rules translate both ways.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from dagrpo.checkpoints.folder import require_config
from dagrpo.checkpoints.lora_layers import low_rank_updates, without_adapter
from dagrpo.checkpoints.modelling import PreTrainedConfig, PreTrainedModel, no_init_weights, revert_weight_conversion
from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line


def build_model(folder: Path, state: Mapping[str, Tensor], dtype: torch.dtype) -> PreTrainedModel:
    """Build the causal language model of a folder's config.json with the given weights, in eval mode.

    The model shares the storage of `state` if the type is right already, so memory holds the weights once.
    Raises UserError if transformers has no such model, or tensors are missing, left over or of another shape.
    """
    config, model_class = _architecture_of(folder)
    with no_progress_bars():
        model, report = model_class.from_pretrained(
            None,
            config=config,
            state_dict=dict(state),
            dtype=dtype,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=False,
        )
    require_all_loaded(folder, model_class.__name__, report)
    return model


def _architecture_of(folder: Path) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    require_config(folder)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{folder}: transformers has no model for its config.json ({one_line(str(error), 200)}): choose another model."
        ) from None
    try:
        return config, model_class_of(config)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None


def model_class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the class of a causal or vision-language model. Raises UserError if transformers has neither for it."""
    for classes in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING):
        model_class: type[PreTrainedModel] | None = classes.get(type(config), None)
        if model_class is not None:
            return model_class
    raise UserError(f"{config.model_type} is not a causal language model: choose another model.")


def empty_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Build the model of a folder's config.json in eval mode, its weights allocated but neither set nor touched.

    Untouched memory takes none: the parts of the weights that are dropped before they are set cost nothing.
    """
    config, model_class = _architecture_of(folder)
    with no_init_weights():
        model = model_class._from_config(config, dtype=dtype)
    model.tie_weights()
    return model.eval()


def own_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return a model's tensors under the model's names for them; tied weights appear once, an adapter not at all."""
    tied, state = getattr(model, "all_tied_weights_keys", {}), without_adapter(model.state_dict(), model)
    return {name: tensor for name, tensor in state.items() if name not in tied}


def in_checkpoint_form(model: PreTrainedModel, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return some of `own_state` under their names in a checkpoint, where one tensor may become several."""
    reverted: dict[str, Tensor] = revert_weight_conversion(model, state)
    return reverted


def names_in_checkpoint(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Map weights of the model of a folder's config.json to their names in a checkpoint.

    A weight that a checkpoint holds in several parts keeps its name, which no checkpoint has.
    """
    model = empty_model(folder, torch.float32)
    stored = {}
    for name in names:
        reverted = in_checkpoint_form(model, {name: torch.empty(0, device="meta")})
        stored[name] = next(iter(reverted)) if len(reverted) == 1 else name
    return stored


def state_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the tensors of a model without an adapter, under their names in a checkpoint; tied weights appear once."""
    assert not low_rank_updates(model), "GatheredWeights merges them"
    return in_checkpoint_form(model, own_state(model))


def dtype_of_model(model: PreTrainedModel) -> torch.dtype:
    """Return the type of most of a model's weights."""
    dtype: torch.dtype = model.dtype
    return dtype


def require_all_loaded(folder: Path, model_class: str, report: Mapping[str, Any]) -> None:
    for key, complaint in (
        ("missing_keys", "lacks the tensor {} of"),
        ("unexpected_keys", "holds the tensor {}, which is unknown to"),
        ("mismatched_keys", "holds the tensor {} in another shape than"),
    ):
        if report[key]:
            first = sorted(report[key], key=str)[0]
            name = first[0] if isinstance(first, tuple) else first
            raise UserError(
                f"{folder} {complaint.format(name)} {model_class}: "
                "its config.json and its weights do not belong together, make the checkpoint again."
            )


class no_progress_bars:
    """Suppresses transformers' bar per loaded model, which would tear the stage's own."""

    def __enter__(self) -> None:
        self._shown = transformers.utils.logging.is_progress_bar_enabled()
        transformers.utils.logging.disable_progress_bar()

    def __exit__(self, *exception: object) -> None:
        if self._shown:
            transformers.utils.logging.enable_progress_bar()
