"""The error of a mistake that the user can mend. Whatever else is raised is a bug, and keeps its traceback."""


class UserError(ValueError):
    """A sentence that names what is wrong, where, and what to do about it.

    Shown alone on the screen; the log has the traceback. It is a ValueError, so that a parameter's own check may raise
    it inside pydantic. Not for invariants of our own code: those are asserted.
    """
