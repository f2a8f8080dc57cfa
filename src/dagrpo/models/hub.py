"""Hub models at a pinned commit: safetensors, config and tokenizer only.

Downloads into a folder beside the destination, not into a cache in the home folder. That folder is named by the commit
and remains when a download breaks off, so that the next attempt resumes it.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import CONFIG_MAPPING

from dagrpo.checkpoints.folder import AUXILIARY, CONFIG, new_checkpoint, require_config
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.manifest import Manifest
from dagrpo.checkpoints.tensors import CastTensors, SomeTensors, total_bytes
from dagrpo.core.errors import UserError
from dagrpo.models.chat_template import replace_chat_template
from dagrpo.models.config import OWN_TEMPLATE, POLICY_SECTION, wanted_model
from dagrpo.models.folder import finish
from dagrpo.models.pictures import limit_pixels, takes_pictures
from dagrpo.utils.files import read_object, require_space
from dagrpo.utils.hub import readable_hub_errors, require_answer

WANTED = ("*.safetensors", *AUXILIARY)
UNWANTED = ("*/*",)  # folders hold other formats of the same weights


def make_hub(
    destination: Path,
    repository: str,
    revision: str,
    dtype: torch.dtype,
    section: str = POLICY_SECTION,
    max_pixels: int | None = None,
    chat_template: str = OWN_TEMPLATE,
) -> Manifest:
    """Write a hub model with its weights in `dtype`. `section` of params.yaml names the repository.

    max_pixels: limit of its pictures; None: that of its preprocessor_config.json. Raises UserError if a policy with a limit
    takes text alone; a teacher may, and is refused where a problem shows pictures. chat_template: OWN_TEMPLATE, or one of ours.
    """
    download = destination.parent / f".{destination.name}.{revision[:12]}.download"
    _download(repository, revision, download, section)
    _require_trainable(download, repository)
    stored, tied = HuggingFaceTensors(download), read_object(download / CONFIG).get("tie_word_embeddings", False)
    # Without an output layer that is a copy of the embedding: tied weights are stored once.
    own = [name for name in stored.specs if not (tied and name == "lm_head.weight")]
    tensors = CastTensors(SomeTensors(stored, own), dtype)
    with new_checkpoint(destination, total_bytes(tensors)) as folder:
        for path in sorted(download.iterdir()):
            if path.is_file() and not path.name.endswith((".safetensors", ".safetensors.index.json")):
                shutil.copyfile(path, folder / path.name)
        origin: dict[str, Any] = {"source": "hub", "repository": repository, "revision": revision}
        if max_pixels is not None and (section == POLICY_SECTION or takes_pictures(folder)):
            limit_pixels(folder, max_pixels)
            origin |= {"max_pixels": max_pixels}
        if chat_template != OWN_TEMPLATE:
            replace_chat_template(folder, chat_template)
            origin |= {"chat_template": chat_template}
        manifest = finish(folder, tensors, dtype, origin)
    shutil.rmtree(download)
    return manifest


def _download(repository: str, revision: str, folder: Path, section: str) -> None:
    request: dict[str, Any] = {
        "repo_id": repository,
        "revision": revision,
        "allow_patterns": list(WANTED),
        "ignore_patterns": list(UNWANTED),
        "local_dir": folder,
        "cache_dir": folder / ".cache",
    }
    wanted = wanted_model(repository, revision, section)
    require_answer(wanted)
    with readable_hub_errors(wanted):
        files = snapshot_download(**request, dry_run=True)
        require_space(folder, sum(file.file_size for file in files if file.will_download))
        snapshot_download(**request)


def _require_trainable(folder: Path, repository: str) -> None:
    """Raise UserError for a model that needs its own code, or has no weights to train."""
    require_config(folder)
    config = read_object(folder / CONFIG)
    if "auto_map" in config and config.get("model_type") not in CONFIG_MAPPING:
        raise UserError(f"{repository} needs its own Python code, which is never run: choose another model.")
    if "quantization_config" in config:
        raise UserError(f"{repository} is quantized and cannot be trained: choose the model it was made from.")
