"""Limit of rotary positions that depend on no other sequence."""

from typing import Any

DYNAMIC, LONGROPE = "dynamic", "longrope"


def longest_of_one_rope(config: Any) -> int | None:
    """Return the length in tokens up to which the frequencies of rotary positions are fixed; None: they always are.

    Beyond that, transformers chooses the frequencies of a whole batch by its longest sequence (rope types dynamic and longrope), so that
    the logprobs of a short one depend on its neighbours. config: of the text, not of the whole model.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    of_layers = [rope, *(each for each in rope.values() if isinstance(each, dict))]
    limits = [_limit(config, each) for each in of_layers if each.get("rope_type") in (DYNAMIC, LONGROPE)]
    return min(limits, default=None)


def _limit(config: Any, parameters: dict[str, Any]) -> int:
    original = parameters.get("original_max_position_embeddings")
    if parameters["rope_type"] == DYNAMIC or original is None:
        return int(config.max_position_embeddings)
    return int(original)
