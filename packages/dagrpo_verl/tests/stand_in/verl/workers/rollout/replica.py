"""Stand-in for the record of what verl's servers write."""

from types import SimpleNamespace


class TokenOutput(SimpleNamespace):
    """Tokens of a turn."""
