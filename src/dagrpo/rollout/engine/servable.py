"""Whether a model folder has what SGLang needs, asked before a slow start."""

from pathlib import Path

from dagrpo.files import read_json
from dagrpo.rollout.engine.errors import ServerError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def require_servable(model: Path) -> None:
    """Refuse, before a slow start, a folder that SGLang could not serve; ServerError names what is missing."""
    missing = _missing_from(model)
    if missing is not None:
        raise ServerError(f"{model} cannot be served, it has no {missing}: run the stage that makes this model again.")


def _missing_from(model: Path) -> str | None:
    if not (model / "config.json").is_file():
        return "config.json"
    if not any((model / name).is_file() for name in TOKENIZER_FILES):
        return "tokenizer (tokenizer.json)"
    index = model / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(read_json(index)["weight_map"].values()))
        return next((shard for shard in shards if not (model / shard).is_file()), None)
    return None if any(model.glob("*.safetensors")) else "weights (*.safetensors)"
