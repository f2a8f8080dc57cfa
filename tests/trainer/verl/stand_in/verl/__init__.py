"""Stand-in for verl 0.9.1 in tests: its files and interfaces, no training. Each step adds a number to every weight."""

from typing import Any

__version__ = "0.9.1"


class Item:
    """One response."""

    def __init__(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        self.batch, self.non_tensor_batch = tensors, values


class DataProto:
    """Batch of responses."""

    def __init__(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        self._tensors, self._values = tensors, values

    @classmethod
    def from_dict(cls, tensors: dict[str, Any], non_tensors: dict[str, Any]) -> "DataProto":
        return cls(tensors, non_tensors)

    def __getitem__(self, place: Any) -> Any:
        parts = [{name: each[place] for name, each in part.items()} for part in (self._tensors, self._values)]
        return DataProto(*parts) if isinstance(place, slice) else Item(*parts)
