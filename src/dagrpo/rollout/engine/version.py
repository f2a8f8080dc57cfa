"""Which weights a server holds, named so that no other run's weights can be taken for them."""

import secrets
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """A name for weights, and the same name made unique for the server."""

    name: str  # such as step_3; the same in every run, so it may stand in an output
    sent: str  # what the server calls them


def new_version(name: str) -> WeightVersion:
    """Base and trained policy, or two seeds, may load weights of one name into one server: the rest tells them apart."""
    return WeightVersion(name=name, sent=f"{name}-{secrets.token_hex(4)}")
