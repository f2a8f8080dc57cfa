"""Memory as a list of items."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

GIBIBYTE, MEBIBYTE = 1 << 30, 1 << 20
FLOAT32 = 4  # bytes
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A use of memory, and one line of the table."""

    name: str
    bytes: int
    how: str  # where the bytes come from, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peak memory of one process, or one server."""

    what: str  # "training process", "rollout server"
    items: tuple[Item, ...]

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return sum(item.bytes for item in self.items)

    def of(self, name: str) -> int:
        """Return the bytes of the item with a name; 0 without one."""
        return sum(item.bytes for item in self.items if item.name == name)

    def only(self, names: Collection[str]) -> "Memory":
        """Return the memory of the items with these names."""
        return replace(self, items=tuple(item for item in self.items if item.name in names))


def memory(what: str, items: Iterable[Item]) -> Memory:
    """Return the memory of these items, without those of 0 bytes."""
    return Memory(what=what, items=tuple(item for item in items if item.bytes))


def size(count: float) -> str:
    """Format bytes, such as 1.5 GiB; less than 0.1 GiB in MiB, such as 12.0 MiB."""
    return f"{count / GIBIBYTE:,.1f} GiB" if count >= GIBIBYTE / 10 else f"{count / MEBIBYTE:,.1f} MiB"
