"""The errors that are told in a sentence. Whatever else is raised is a bug, and shown with its traceback."""


class UserError(ValueError):
    """A mistake that the user can mend: a sentence that names what is wrong, where, and what to do about it.

    A stage that ends with one is not started again. It is a ValueError, so that a parameter's own check may raise it
    inside pydantic. Not for invariants of our own code: those are asserted.
    """


class Terminated(SystemExit):
    """The stage was asked to stop (SIGTERM). Not an error, and never what other people's code has raised."""


class TransientError(Exception):
    """Something outside this process broke, such as a server: the same work may succeed when it is started again."""
