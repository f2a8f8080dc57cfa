"""The program's side: runs a script with an input, or answers calls.

Its text follows that of plain.py. What it knows the program may know: inputs and arguments, and never what is expected.
"""

import atexit
import builtins
import json
import os
import sys
from typing import Any

from dagrpo_answers.unit_tests.plain import NotPlain, decoded, encoded, limit, own_output, silence

MUTABLE = (list, dict, set, bytearray)


def run_with_input(language: str, program: str, text: str, seconds: int, memory_mb: int) -> None:
    """Run a program as a script, with a text on stdin; nothing of stderr is kept."""
    give_input(text.encode("utf-8", "replace"))
    silence(2)
    if language == "bash":
        os.closerange(3, 256)
        limit(seconds, memory_mb)
        os.execvp("bash", ["bash", "-c", program])
    code = compile(program, "<program>", "exec")
    limit(seconds, memory_mb)
    try:
        exec(code, new_module("__main__"))
    except Exception:  # noqa: BLE001 its traceback, which is not read, may have 600,000 lines
        raise SystemExit(1) from None
    finally:
        atexit._run_exitfuncs()


def new_module(name: str) -> dict[str, Any]:
    """Return the scope of a new module, under whose name pickle, dataclasses and typing find the program's classes."""
    for end in ("exit", "quit"):
        setattr(builtins, end, sys.exit)  # of `site`, which the sandbox does not import
    sys.argv[:] = ["program.py"]
    sys.modules[name] = type(sys)(name)
    return sys.modules[name].__dict__


def give_input(data: bytes) -> None:
    """Put data on stdin: in a pipe where it fits, else in a file."""
    # No one writes beside the program: the process has no second thread, and one more process would count against its limits. So
    # all data has to be there before it starts. A pipe takes 64 KiB without a reader, and opens no file in the common case.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # a full pipe says so, where a blocking write would wait forever
    try:
        written = os.write(writing, data) if data else 0
    except BlockingIOError:
        written = 0
    os.close(writing)
    if written < len(data):
        import tempfile

        os.close(reading)
        file = tempfile.TemporaryFile(dir="/tmp")  # noqa: SIM115 the program reads it
        file.write(data)
        file.seek(0)
        reading = os.dup(file.fileno())  # the file has no name any more: it lives as long as a descriptor is open
    os.dup2(reading, 0)
    os.close(reading)
    # closefd: the program may drop or replace sys.stdin, and descriptor 0 must not become free for what it opens next.
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def answer_calls(imports: str, program: str, calls: list[Any], seconds: int, memory_mb: int) -> None:
    """Load imports and a program as a module, and answer each call on a line.

    A line is ["returned", value, arguments if changed] or ["raised", class].
    """
    answers = own_output()
    limit(seconds, memory_mb)
    scope = new_module("program")
    results: list[Any] = []
    try:
        exec(imports, scope)
        exec(compile(program, "<program>", "exec"), scope)
    except BaseException:  # noqa: BLE001 no call has an answer
        return
    for call in calls:
        try:
            answer, result = answer_to(call, scope, results)
            line = json.dumps(answer)
        except BaseException as error:  # noqa: BLE001 a program may raise anything
            line, result = json.dumps(["raised", name_of(type(error))]), None
        results.append(result)
        answers.write(line + "\n")
        answers.flush()


def name_of(kind: type[BaseException]) -> str:
    """Return the name of an exception's class; of one that is not Python's own, that of the nearest above it."""
    return next(each.__name__ for each in type.mro(kind) if each.__module__ == "builtins")


def answer_to(call: list[Any], scope: dict[str, Any], results: list[Any]) -> tuple[Any, Any]:
    """Return the answer to one call, and its result as the program has it."""
    action, target, *rest = call
    place = results[target] if isinstance(target, int) else found(scope, target)

    def value_of(value: Any) -> Any:
        return decoded(value, lambda kind, parts: results[parts[0]])

    if action == "get":
        result = getattr(place, rest[0])
    elif action == "set":
        setattr(place, rest[0], value_of(rest[1]))
        result = None
    else:
        arguments, named = [value_of(each) for each in rest[0]], {k: value_of(v) for k, v in rest[1].items()}
        result = place(*arguments, **named)
        after = [
            encoded(each) if isinstance(each, MUTABLE) else given
            for each, given in zip(arguments, rest[0], strict=True)
        ]
        if after != rest[0]:
            return ["returned", encoded_or_kept(result, len(results)), after], result
    return ["returned", encoded_or_kept(result, len(results)), None], result


def encoded_or_kept(result: Any, number: int) -> Any:
    """Return a result as JSON; one without a plain form stays here, under the number of its call."""
    try:
        return encoded(result)
    except NotPlain:
        return ["kept", number]


def found(scope: dict[str, Any], name: str) -> Any:
    """Return what the program calls by a name, or the method of that name of its class Solution."""
    if name not in scope and "Solution" in scope:
        return getattr(scope["Solution"](), name)
    return scope[name]
