"""The error for what a user can fix."""

import inspect


class UserError(ValueError):
    """An error that the user can fix. The message says what is wrong, where, and how to fix it.

    It is a ValueError so that pydantic's validators may raise it. Invariants of our own code are asserted instead.
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
