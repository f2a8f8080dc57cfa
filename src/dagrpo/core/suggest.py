"""Suggestions for unknown names ("did you mean ...?")."""

import difflib
from collections.abc import Collection, Iterable

CUTOFF = 0.4  # of difflib's ratio: half of a short name may be wrong


def nearest_of(name: str, known: Iterable[str], cutoff: float = CUTOFF) -> str | None:
    """Return the nearest known name; None if none reaches `cutoff`, between 0 (any name) and 1 (the name itself)."""
    near = difflib.get_close_matches(name, [*known], n=1, cutoff=cutoff)
    return near[0] if near else None


def nearest(name: str, known: Collection[str]) -> str:
    """Return the second half, without full stop, of a message about an unknown name: the nearest known one, or else all."""
    near = nearest_of(name, known)
    if near is not None:
        return f"the nearest one is `{near}`"
    if not known:
        return "there is none yet"
    return f"there {'is only' if len(known) == 1 else 'are'} {', '.join(sorted(known))}"
