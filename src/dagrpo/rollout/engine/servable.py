"""Whether a model folder has what SGLang needs, asked before a slow start."""

from pathlib import Path

from dagrpo.checkpoints.weight_map import INDEX, files_of_weights
from dagrpo.files import read_object
from dagrpo.rollout.engine.errors import ServerError

PREPROCESSOR = "preprocessor_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def require_servable(model: Path) -> None:
    """Refuse, before a slow start, a folder that SGLang could not serve; UserError says what is missing, or wrong with its index."""
    missing = _missing_from(model)
    if missing is not None:
        raise ServerError(f"{model} cannot be served, it has no {missing}: run the stage that makes this model again.")
    if (model / INDEX).is_file():  # SGLang opens what it names
        files_of_weights(model)


def takes_pictures(model: Path) -> bool:
    """Whether the model of a folder has a vision tower."""
    return "vision_config" in read_object(model / "config.json")


def _missing_from(model: Path) -> str | None:
    if not (model / "config.json").is_file():
        return "config.json"
    if not any((model / name).is_file() for name in TOKENIZER_FILES):
        return "tokenizer (tokenizer.json)"
    if not (model / INDEX).is_file() and not any(model.glob("*.safetensors")):
        return "weights (*.safetensors)"
    if takes_pictures(model) and not (model / PREPROCESSOR).is_file():
        return f"{PREPROCESSOR}, which says how its pictures are prepared"
    return None
