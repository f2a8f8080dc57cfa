"""Errors that are reported by their message.

A stage that ends with a UserError is not started again. All other exceptions are bugs, and shown with their traceback.
"""

from dagrpo_answers.errors import UserError, place_of_code, require_arguments

__all__ = ["Terminated", "TransientError", "UserError", "place_of_code", "require_arguments"]


class Terminated(SystemExit):
    """A request to stop the stage (SIGTERM). Not an error, and never raised by other people's code."""


class TransientError(Exception):
    """A failure outside this process, such as of a server: the same work may succeed when it is started again."""
