"""Digest and non-default parameters of an experiment, for its history."""

from typing import Any

from dagrpo.config.overlay import flat
from dagrpo.config.schema import Params
from dagrpo.utils.files import digest_of

DIGITS = 8
MISSING = object()
# Parameters that a history of runs names even at their defaults.
SHOWN = ("model.name", "experiment.train", "algorithm.loss.name", "training.steps", "training.learning_rate")


def configuration_digest(params: Params) -> str:
    """Return one digest for all runs with equal parameters, without section runtime, which changes no result."""
    return digest_of(params.model_dump(exclude={"runtime"}))[:DIGITS]


def configuration_of(params: Params) -> dict[str, Any]:
    """Return the digest of an experiment's parameters, its seeds, and the non-default parameters by dotted key."""
    own, defaults = (flat(each.model_dump(exclude={"runtime"})) for each in (params, Params()))
    changed = {key: value for key, value in own.items() if key in SHOWN or defaults.get(key, MISSING) != value}
    return {"digest": configuration_digest(params), "seeds": params.experiment.seeds, "changed": changed}
