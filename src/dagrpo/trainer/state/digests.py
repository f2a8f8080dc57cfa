"""Digests of gradients and weights, for replay to compare.

They are of whole tensors, however many ranks hold parts of them. Another number of processes or threads, other
micro-batches or chunks and another device round sums differently, which a digest shows as much as an error: `Computed` is recorded
beside them.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dagrpo.checkpoints.lora_layers import low_rank_updates
from dagrpo.checkpoints.tensor_hash import in_hex, tensor_hash
from dagrpo.checkpoints.tensors import raw_bytes
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.state.digest_table import Computed, Hash, TensorDigests
from dagrpo.utils.distributed import World
from dagrpo.utils.portable import PORTABLE_CPU, is_portable

THREADS = 4  # that hash: the number of whole tensors in memory at a time
FEW_BYTES = 50_000_000  # below this the threads would cost more than they save
FEW_PARAMETERS, RARELY = 100_000_000, 20  # recorded in every step up to the former, in one of the latter above
SHA256_WORDS = hashlib.sha256().digest_size // 8


def computed_by(world: World, budget: Budget, hashed_by: Hash) -> Computed:
    """Return the conditions under which this process computes."""
    is_gpu, cpu = world.device.type == "cuda", PORTABLE_CPU if is_portable() else "cpu"
    return Computed(
        processes=world.size,
        copies=world.copies,
        threads=torch.get_num_threads(),
        micro_batch_size=budget.sequences,
        micro_batch_tokens=budget.tokens or 0,
        micro_batch_patches=budget.patches or 0,
        head_chunk_tokens=budget.head_chunk_tokens or 0,
        layout=budget.layout,
        share_prompts=budget.share_prompts,
        reduce_gradients=budget.reduce_gradients,
        compiled=budget.compiled,
        device=torch.cuda.get_device_name(world.device) if is_gpu else cpu,
        hashed_by=hashed_by,
    )


@dataclass(frozen=True, slots=True)
class PendingDigests:
    """Digests of tensors, still on the computing device, each in the rank that has hashed its tensor."""

    names: tuple[str, ...]
    words: Tensor  # [tensors, 64-bit words of a digest], int64; rows of tensors that other ranks hash are 0


def recorded_every(trained: int, every: int | None) -> int:
    """Return after how many steps digests of `trained` parameters are recorded, by training.digests_every; 0: never."""
    if every is not None:
        return every
    return 1 if trained <= FEW_PARAMETERS else RARELY


def usual_hash(world: World) -> Hash:
    """Return the default hash of this device: one that neither waits for a GPU nor moves its tensors."""
    return "gpu_tensor_hash" if world.device.type == "cuda" else "sha256"


def gradient_digests(model: torch.nn.Module, world: World, hashed_by: Hash) -> PendingDigests:
    """Hash the existing gradients. Every rank calls this."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    present = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    return pending_digests(present, world, hashed_by)


def weight_digests(model: torch.nn.Module, world: World, hashed_by: Hash) -> PendingDigests:
    """Hash the parameters; of a model with an adapter, only the adapter's. Every rank calls this."""
    adapted = bool(low_rank_updates(model))
    parameters = {name: each.detach() for name, each in model.named_parameters() if each.requires_grad or not adapted}
    return pending_digests(parameters, world, hashed_by)


def pending_digests(tensors: Mapping[str, Tensor], world: World, hashed_by: Hash) -> PendingDigests:
    """Hash each tensor's bytes. Each rank hashes an equal share of the tensors, and every rank calls this."""
    names = tuple(sorted(tensors))
    hashed = _hashed_there if hashed_by == "gpu_tensor_hash" else _hashed_on_cpu
    return PendingDigests(names, hashed([tensors[name] for name in names], world))


def read(pending: Sequence[PendingDigests], world: World) -> list[TensorDigests]:
    """Return the digests in hex, in every rank: with one reduction, and one wait for the device. Every rank calls this."""
    if not pending:
        return []
    words = world.all_reduce(torch.cat([each.words for each in pending]))  # in each row only one rank is not zero
    rows = iter(words.cpu().tolist())
    return [{name: "".join(map(in_hex, next(rows))) for name in each.names} for each in pending]


def _hashed_there(tensors: Sequence[Tensor], world: World) -> Tensor:
    """Return hashes that are computed on the tensors' device, of one whole tensor at a time. [tensors, 1]"""
    none = torch.zeros((), dtype=torch.int64, device=world.device)
    whole = (_own(tensor, place, world) for place, tensor in enumerate(tensors))
    hashes = [none if tensor is None else tensor_hash(tensor) for tensor in whole]
    return torch.stack(hashes).unsqueeze(1) if hashes else none.new_zeros(0, 1)


def _hashed_on_cpu(tensors: Sequence[Tensor], world: World) -> Tensor:
    """Return sha256 hashes, computed by several threads where that is worth it. [tensors, 4]"""
    words = torch.zeros(len(tensors), SHA256_WORDS, dtype=torch.int64)
    size = sum(tensor.nbytes for tensor in tensors)
    with ThreadPoolExecutor(THREADS) as threads:
        hashed = threads.map if size > FEW_BYTES else map
        for first in range(0, len(tensors), THREADS * world.size):
            places = range(first, min(first + THREADS * world.size, len(tensors)))
            whole = {place: _own(tensors[place], place, world) for place in places}
            own = {place: tensor for place, tensor in whole.items() if tensor is not None}
            for place, digest in zip(own, hashed(_sha256, own.values()), strict=True):
                words[place] = torch.tensor(digest)
    return words


def _own(tensor: Tensor, place: int, world: World) -> Tensor | None:
    """Return the whole tensor if this rank is to hash it, else None. Every rank helps to gather it."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole if place % world.size == world.rank else None


def _sha256(tensor: Tensor) -> tuple[int, ...]:
    """Return the sha256 as signed 64-bit words, the first one first."""
    return struct.unpack(f">{SHA256_WORDS}q", hashlib.sha256(raw_bytes(tensor)).digest())
