"""Memory checks: room for the model, and advice when memory runs out.

Only what no smaller batch changes needs room: weights, and gradients and AdamW states of the trained ones.
Activations, the engine and a reference come on top: on a GPU the plan of the whole experiment covers those (pipeline/supervisor.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import NAMED_DTYPES, parameter_count
from dagrpo.core.errors import UserError
from dagrpo.trainer.config.sft import Sft
from dagrpo.trainer.config.training import Training
from dagrpo.utils.distributed import World
from dagrpo.utils.machine import memory_of_machine

FLOAT32 = 4  # bytes
GIBIBYTE = 1 << 30


def require_room(checkpoint: Path, section: str, params: Training | Sft, world: World) -> None:
    """Raise UserError if the device cannot hold the checkpoint's model, its gradients and its optimizer states.

    `section` of params.yaml: training or sft. With a frozen vision tower or an adapter, only the weights are counted.
    """
    weights = parameter_count(open_tensors(checkpoint))
    is_part = params.lora.is_on or params.vision == "frozen"
    trained = 0 if is_part else FLOAT32 + 2 * NAMED_DTYPES[params.moments_dtype].itemsize
    needed = weights * (FLOAT32 + trained)
    on_gpu = world.device.type == "cuda"
    own = needed * world.copies // world.size if on_gpu else needed  # on a CPU all ranks share one memory
    memory = torch.cuda.get_device_properties(world.device).total_memory if on_gpu else memory_of_machine()
    if own <= memory:
        return
    contents = "the weights" if is_part else "weights, gradients and AdamW states"
    remedies = [
        *([] if params.lora.is_on else [f"train an adapter ({section}.lora.rank)"]),
        *([f"raise runtime.{section}.processes (it is {world.size})"] if on_gpu else []),
        "choose a smaller model",
    ]
    raise UserError(
        f"{contents} of {weights:,} parameters take {own / GIBIBYTE:.1f} GiB, and the {'device' if on_gpu else 'machine'} has "
        f"{memory / GIBIBYTE:.1f} GiB: {' or '.join(remedies)}; `dagrpo plan` says what fits."
    )


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
