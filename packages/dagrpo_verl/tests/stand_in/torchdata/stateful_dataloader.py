"""Stand-in for torchdata's loader: torch's own, whose place cannot be saved."""

from typing import Any

from torch.utils.data import DataLoader


class StatefulDataLoader(DataLoader[Any]):
    """Loader of torch, in one process."""

    def __init__(self, dataset: Any, batch_size: int, *, num_workers: int = 0, **options: Any) -> None:
        super().__init__(dataset, batch_size, **options)
