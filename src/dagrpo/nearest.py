"""What is said of an unknown name: the known one that is nearest to it, or else all known ones."""

import difflib
from collections.abc import Collection, Iterable

CUTOFF = 0.4  # of difflib's ratio: half of a short name may be wrong


def nearest_of(name: str, known: Iterable[str], cutoff: float = CUTOFF) -> str | None:
    """The known name that is nearest; None where none reaches `cutoff`, between 0 (any name) and 1 (the name itself)."""
    near = difflib.get_close_matches(name, [*known], n=1, cutoff=cutoff)
    return near[0] if near else None


def nearest(name: str, known: Collection[str]) -> str:
    """The second half of a sentence whose first half says that there is no `name`; without its full stop."""
    near = nearest_of(name, known)
    if near is not None:
        return f"the nearest one is `{near}`"
    if not known:
        return "there is none yet"
    return f"there {'is only' if len(known) == 1 else 'are'} {', '.join(sorted(known))}"
