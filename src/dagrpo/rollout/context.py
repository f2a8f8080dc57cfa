"""How many tokens a conversation can have at most."""

from pathlib import Path
from typing import Any

from dagrpo.files import read_object
from dagrpo.params.runtime import Engine


def context_tokens(model: Path, engine: Engine) -> int:
    """What the checkpoint in this folder and the engine's cache both hold, in tokens."""
    config: dict[str, Any] = read_object(model / "config.json")
    longest = int(config.get("text_config", config).get("max_position_embeddings", 1 << 30))
    return min(longest, engine.max_total_tokens)
