"""Plain Python values as JSON, between a program and its tests.

Scalars are themselves, a container is a list that begins with its kind. A value of any other class has no plain form, so that nothing of a
program but data reaches its tests. It is also the beginning of both programs in the sandbox, and imports nothing of the package.
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

DEEPEST = 200  # levels of a value that one side sends to the other
LARGEST = 1 << 53  # an integer beyond it, in size, is written in hexadecimal digits, which no limit of Python bounds
KINDS: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    "bytes": bytes,
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
    "int": lambda parts: int(parts[0], 16),
}


class NotPlain(Exception):
    """Error of a value that has no plain form."""


def encoded(value: Any) -> Any:
    """Return a value as JSON has it. Raises NotPlain for one of another class."""
    if value is None or type(value) in (bool, float, str):
        return value
    if isinstance(value, int):
        return int(value) if -LARGEST < value < LARGEST else ["int", hex(value)]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, range):
        return ["range", value.start, value.stop, value.step]
    if isinstance(value, bytes | bytearray):
        return ["bytes", *value]
    if isinstance(value, dict):
        return ["dict", *(encoded(part) for pair in dict.items(value) for part in pair)]
    kind: Any  # its own __iter__ is called, not that of a class of the program
    for kind in (list, tuple):
        if isinstance(value, kind):
            return [kind.__name__, *map(encoded, kind.__iter__(value))]
    for kind in (set, frozenset):
        if isinstance(value, kind):  # in an order that does not depend on the seed of hashes
            return [kind.__name__, *sorted(map(encoded, kind.__iter__(value)), key=json.dumps)]
    raise NotPlain(type(value).__name__)


def decoded(value: Any, other: Callable[[str, list[Any]], Any] | None = None) -> Any:
    """Return the value that was encoded. Raises NotPlain for what is not an encoding, but of a kind that `other` decodes."""
    if not isinstance(value, list):
        if isinstance(value, dict):
            raise NotPlain("an object")
        return value
    kind, *parts = value or [0]
    if not isinstance(kind, str):
        raise NotPlain("a list without a kind")
    if kind not in KINDS and other is not None:
        return other(kind, parts)
    try:
        if kind in ("bytes", "complex", "range", "int"):
            return KINDS[kind](parts)
        return KINDS[kind]([decoded(part, other) for part in parts])
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise NotPlain(str(kind)[:20]) from error


def read_lines(text: str) -> list[Any]:
    """Return the JSON values of the lines of a text, up to the first line that holds another text."""
    values = []
    for line in text.split("\n"):
        try:
            value = json.loads(line)
            if levels_of(value) > DEEPEST:
                break
            values.append(value)
        except (ValueError, RecursionError):
            break
    return values


def levels_of(value: Any) -> int:
    """Return the levels of lists and objects, counted to just beyond DEEPEST."""
    levels, parts = 0, [value]
    while parts and levels <= DEEPEST:
        parts = [
            part
            for each in parts
            if isinstance(each, list | dict)
            for part in (each.values() if isinstance(each, dict) else each)
            if isinstance(part, list | dict)
        ]
        levels += 1
    return levels


def limit(seconds: int, memory_mb: int) -> None:
    """Lower this process's limits of processor time and memory, for good. Limits that are lower stay.

    Those of recursion and digits are lifted as verl's prime_code and LiveCodeBench do. The stack that recursion takes is memory.
    """
    import resource

    sys.setrecursionlimit(6 * 10**5)
    sys.set_int_max_str_digits(0)
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (most, most))

    for name, value, hard in (("CPU", seconds, seconds + 1), ("AS", memory_mb << 20, memory_mb << 20)):
        number = getattr(resource, f"RLIMIT_{name}")
        _, most = resource.getrlimit(number)
        most = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(number, (min(value, most), most))


def own_output() -> Any:
    """Return a file on stdout's place, where nothing that is printed goes from now on."""
    import os

    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence(1, 2)
    return answers


def silence(*descriptors: int) -> None:
    """Send what is written to the descriptors nowhere."""
    import os

    nowhere = os.open("/dev/null", os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
