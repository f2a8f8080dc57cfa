"""Errors that are reported by their message.

All other exceptions are bugs, and shown with their traceback.
"""

import inspect


class UserError(ValueError):
    """An error that the user can fix. The message says what is wrong, where, and how to fix it.

    A stage that ends with one is not started again. It is a ValueError so that pydantic's validators may raise it. Invariants
    of dagrpo's own code are asserted instead.
    """


def require_arguments(field: str, function: object, *arguments: str) -> None:
    """Raise UserError, with its file and line, for a plug-in's function that cannot be called with these arguments by position."""
    takes = f"a function of ({', '.join(arguments)})"
    if not callable(function):
        raise UserError(f"`{field}` is {function!r}, not {takes}.")
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:  # one of C, without a signature
        return
    except TypeError as error:
        raise UserError(f"`{field}` ({place_of_code(function)}) is not {takes}: {error}.") from None


def place_of_code(function: object) -> str:
    """Return the file and line of a function, such as "my_lab/rewards.py, line 3"; its text, where Python does not know them."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else repr(function)


class Terminated(SystemExit):
    """A request to stop the stage (SIGTERM). Not an error, and never raised by other people's code."""


class TransientError(Exception):
    """A failure outside this process, such as of a server: the same work may succeed when it is started again."""
