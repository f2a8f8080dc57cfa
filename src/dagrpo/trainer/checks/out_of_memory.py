"""Turn out-of-memory errors into advice on a parameter."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dagrpo.core.errors import UserError


@contextmanager
def advice_on_memory(key: str, value: int) -> Iterator[None]:
    """Turn an out-of-memory error of the device into a UserError that names the parameter to lower, and its value.

    `key`: of the section runtime.training or runtime.sft.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        section = key.rpartition(".")[0]
        remedy = (
            f"lower {key} (it is {value}), and run again: it goes on from the last saved step"
            if value > 1
            else f"set {section}.activation_checkpointing to true, or {section}.head_chunk_tokens, such as 1024; or use a device with "
            f"more memory, more processes ({section}.processes), or shorter sequences"
        )
        raise UserError(f"the device ran out of memory: {remedy}.") from error
