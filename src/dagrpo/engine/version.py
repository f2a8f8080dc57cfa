"""Names of weights that no other run's weights share."""

import secrets
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """Name of weights, and the name made unique for the server."""

    name: str  # such as step_3; the same in every run, so it may stand in an output
    sent: str  # what the server calls them


def new_version(name: str) -> WeightVersion:
    """Return the name with a random suffix: base and trained policy, or two seeds, may load weights of one name into one server."""
    return WeightVersion(name=name, sent=f"{name}-{secrets.token_hex(4)}")
