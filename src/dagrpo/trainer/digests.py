"""Digests of gradients and weights while a policy is trained: whoever computes a step again compares them.

They are of whole tensors, however many ranks hold parts of them. Another number of processes or threads, other
micro-batches or chunks and another device round sums differently, which a digest shows as much as an error: `Computed` is recorded
beside them.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dagrpo.checkpoints.adapted import low_rank_updates
from dagrpo.checkpoints.tensors import raw_bytes
from dagrpo.distributed import World
from dagrpo.trainer.budget import Budget
from dagrpo.trainer.digest_table import Computed, TensorDigests

THREADS = 4  # that hash; so many whole tensors are in memory at a time
FEW_BYTES = 50_000_000  # below this the threads would cost more than they save
BYTES = hashlib.sha256().digest_size


def computed_by(world: World, budget: Budget) -> Computed:
    """How this process computes, beside the others."""
    is_gpu = world.device.type == "cuda"
    return Computed(
        processes=world.size,
        threads=torch.get_num_threads(),
        micro_batch_size=budget.sequences,
        micro_batch_tokens=budget.tokens or 0,
        micro_batch_patches=budget.patches or 0,
        head_chunk_tokens=budget.head_chunk_tokens or 0,
        layout=budget.layout,
        share_prompts=budget.share_prompts,
        reduce_gradients=budget.reduce_gradients,
        device=torch.cuda.get_device_name(world.device) if is_gpu else world.device.type,
    )


def gradient_digests(model: torch.nn.Module, world: World) -> TensorDigests:
    """Of the gradients that are there. Every rank calls this."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return tensor_digests({name: gradient for name, gradient in gradients.items() if gradient is not None}, world)


def weight_digests(model: torch.nn.Module, world: World) -> TensorDigests:
    """Of the parameters; of a model with an adapter, of that alone. Every rank calls this."""
    adapted = bool(low_rank_updates(model))
    parameters = {name: each.detach() for name, each in model.named_parameters() if each.requires_grad or not adapted}
    return tensor_digests(parameters, world)


def tensor_digests(tensors: Mapping[str, Tensor], world: World) -> TensorDigests:
    """sha256 of each tensor's bytes, in every rank. Each rank hashes an equal share of the tensors."""
    names = sorted(tensors)
    digests = torch.zeros(len(names), BYTES, dtype=torch.uint8)
    size = sum(tensor.nbytes for tensor in tensors.values())
    with ThreadPoolExecutor(THREADS) as threads:
        hashed = threads.map if size > FEW_BYTES else map
        for first in range(0, len(names), THREADS * world.size):
            places = range(first, min(first + THREADS * world.size, len(names)))
            whole = {place: _own(tensors[names[place]], place, world) for place in places}
            own = {place: tensor for place, tensor in whole.items() if tensor is not None}
            for place, digest in zip(own, hashed(_digest, own.values()), strict=True):
                digests[place] = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    rows = world.all_reduce(digests.long())  # of each row one rank has what is not zero
    return dict(zip(names, (bytes(row).hex() for row in rows.tolist()), strict=True))


def _own(tensor: Tensor, place: int, world: World) -> Tensor | None:
    """The whole tensor where this rank is to hash it. The others help to gather it."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole if place % world.size == world.rank else None


def _digest(tensor: Tensor) -> bytes:
    return hashlib.sha256(raw_bytes(tensor)).digest()
