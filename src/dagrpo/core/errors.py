"""Errors that are reported by their message.

A stage that ends with a UserError is not started again. All other exceptions are bugs, and shown with their traceback.
"""

import difflib
from collections.abc import Collection, Iterable

from dagrpo_answers.errors import UserError, place_of_code, require_arguments

__all__ = ["Terminated", "TransientError", "UserError", "place_of_code", "require_arguments"]


class Terminated(SystemExit):
    """A request to stop the stage (SIGTERM). Not an error, and never raised by other people's code."""


class TransientError(Exception):
    """A failure outside this process, such as of a server: the same work may succeed when it is started again."""


def nearest_of(name: str, known: Iterable[str], cutoff: float = 0.4) -> str | None:
    """Return the nearest known name; None if none reaches `cutoff`, difflib's ratio: 0 any name, 1 the name itself."""
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
