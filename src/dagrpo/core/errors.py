"""Errors that are reported by their message.

All other exceptions are bugs, and shown with their traceback.
"""


class UserError(ValueError):
    """An error that the user can fix. The message says what is wrong, where, and how to fix it.

    A stage that ends with one is not started again. It is a ValueError so that pydantic's validators may raise it. Invariants
    of dagrpo's own code are asserted instead.
    """


class Terminated(SystemExit):
    """A request to stop the stage (SIGTERM). Not an error, and never raised by other people's code."""


class TransientError(Exception):
    """A failure outside this process, such as of a server: the same work may succeed when it is started again."""
