"""Limit of a conversation's tokens."""

from pathlib import Path
from typing import Any

from dagrpo.engine.config import EngineConfig
from dagrpo.utils.files import read_object


def context_tokens(model: Path, engine: EngineConfig) -> int:
    """Return the tokens that both the checkpoint in this folder and the engine's cache can hold."""
    config: dict[str, Any] = read_object(model / "config.json")
    longest = int(config.get("text_config", config).get("max_position_embeddings", 1 << 30))
    return min(longest, engine.max_total_tokens)
