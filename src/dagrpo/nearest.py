"""What is said of an unknown name: the known one that is nearest to it, or else all known ones."""

import difflib
from collections.abc import Collection

CUTOFF = 0.4  # of difflib's ratio: half of a short name may be wrong


def nearest(name: str, known: Collection[str]) -> str:
    """The second half of a sentence whose first half says that there is no `name`; without its full stop."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=CUTOFF)
    if near:
        return f"the nearest one is `{near[0]}`"
    if not known:
        return "there is none yet"
    return f"there {'is only' if len(known) == 1 else 'are'} {', '.join(sorted(known))}"
