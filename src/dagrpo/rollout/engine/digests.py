"""Digests of tensors as SGLang's /weights_checker computes them, so that weights can be compared without moving them.

SGLang reports a digest of every tensor of its model: of its own tensors, in which some of a checkpoint's lie side by side. A
tensor that it holds in another form still (quantised, experts joined) has no counterpart here, and is not compared.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dagrpo.checkpoints.tensors import Tensors, raw_bytes

# Tensors of an engine that hold several of a checkpoint's, one below the other.
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# What an engine's names begin with in the checkpoints of some vision-language models: Qwen3-VL's, not Qwen2.5-VL's.
LONGER = (("model.", "model.language_model."), ("visual.", "model.visual."))
_INNER = 32  # a multiple of this is the inner width of an MLP that SGLang takes as it is, on a CPU; on a GPU, one of 8
_VOCABULARY = 64  # SGLang fills embeddings up with zeros, to a multiple of so many rows
_WORD = (1 << 32) - 1
_LONG = (1 << 64) - 1
_TILE = 8192  # words
_TILES_AT_ONCE = 64
_TILES_ON_A_GPU = 1024  # fewer kernels; 64 MiB for each intermediate tensor


def comparable(known: Mapping[str, tuple[str, ...]], weights: Tensors) -> dict[str, tuple[str, ...]]:
    """Those of the `counterparts` that an engine holds as they are: SGLang fills up the MLPs of a vision tower."""
    return {name: parts for name, parts in known.items() if not any(_is_filled_up(part, weights) for part in parts)}


def _is_filled_up(name: str, weights: Tensors) -> bool:
    if "visual.blocks." not in name or ".mlp." not in name:
        return False
    shape, leads_out = weights.specs[name].shape, any(f".{last}." in name for last in ("down_proj", "linear_fc2"))
    if leads_out and len(shape) == 1:
        return False  # a bias outside
    return shape[1 if leads_out else 0] % _INNER != 0


def counterparts(held: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Of each tensor of an engine that is known here: the tensors of the checkpoint that make it up, in order."""
    known = set(names)
    found = {name: next(filter(known.issuperset, _candidates(name)), ()) for name in held}
    return {name: parts for name, parts in found.items() if parts}


def _candidates(name: str) -> Iterator[tuple[str, ...]]:
    """What may make up a tensor of an engine."""
    for before, after in (("", ""), *LONGER):
        if name.startswith(before):
            yield _parts(after + name.removeprefix(before))


def _parts(name: str) -> tuple[str, ...]:
    if "visual." in name and ".qkv_proj." in name:  # a vision tower's are joined in the checkpoint, too
        return (name.replace(".qkv_proj.", ".qkv."),)
    for joined, parts in JOINED.items():
        if f".{joined}." in name:
            return tuple(name.replace(f".{joined}.", f".{part}.") for part in parts)
    return (name,)


def not_held(
    names: Sequence[str], held: Mapping[str, str], known: Mapping[str, Sequence[str]], weights: Tensors
) -> list[str]:
    """Return those of an engine's tensors whose digests are not those of the checkpoint's tensors that make them up.

    `held`: the engine's digests; `known`: the parts of each tensor (see `counterparts`). Of weights on a GPU the digests of a server
    there are computed there, and the process waits for all of them once; SGLang's other way to make a digest is tried where it differs.
    """
    sums: dict[str, Tensor] = {}  # [forms] of each tensor on a GPU
    wrong = []
    for name in names:
        tensor = _joined(known[name], weights)
        if tensor.is_cuda:
            sums[name] = torch.stack([gpu_sum(each) for each in _forms(tensor)])
        elif not _is_digest_of(held[name], tensor):
            wrong.append(name)
    totals = torch.cat([*sums.values()]).tolist() if sums else []
    for name, each in sums.items():
        own, totals = totals[: len(each)], totals[len(each) :]
        if held[name] not in map(_digest_of_sum, own) and not _is_digest_of(held[name], _joined(known[name], weights)):
            wrong.append(name)
    return wrong


def _joined(parts: Sequence[str], weights: Tensors) -> Tensor:
    read = [weights.read(name) for name in parts]
    return read[0] if len(read) == 1 else torch.cat(read)


def _is_digest_of(digest: str, tensor: Tensor) -> bool:
    """Return whether it is one of the two that SGLang may make of the tensor."""
    forms = _forms(tensor)
    return any(digest_on_cpu(each) == digest for each in forms) or any(digest_on_gpu(each) == digest for each in forms)


def _forms(tensor: Tensor) -> list[Tensor]:
    """The tensor itself and, of a matrix, the one with rows of zeros below that an embedding becomes."""
    missing = -len(tensor) % _VOCABULARY if tensor.dim() == 2 else 0
    return [tensor, torch.cat([tensor, tensor.new_zeros(missing, tensor.shape[1])])] if missing else [tensor]


def digest_on_cpu(tensor: Tensor) -> str:
    """As SGLang computes it of a tensor on a CPU: the first 8 bytes of its sha256."""
    return hashlib.sha256(raw_bytes(tensor)).hexdigest()[:16]


def digest_on_gpu(tensor: Tensor) -> str:
    """As SGLang computes it of a tensor on a GPU (gpu_tensor_hash: two 32-bit sums of mixed words for each 8,192 words)."""
    return _digest_of_sum(int(gpu_sum(tensor)))


def gpu_sum(tensor: Tensor) -> Tensor:
    """Return the number that such a digest is mixed from, modulo 2^64, on the tensor's device; nothing waits for the device."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    data = torch.nn.functional.pad(data, (0, -len(data) % 4))
    words = data.view(torch.int32)
    seeds = (0x243F6A88, (0x243F6A88 * 0x9E3779B1 ^ 0xDEADBEEF) & _WORD)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)  # wraps around, as SGLang's does
    at_once = _TILE * (_TILES_ON_A_GPU if tensor.is_cuda else _TILES_AT_ONCE)
    for start in range(0, len(words), at_once):
        part = words[start : start + at_once].long() & _WORD
        index = torch.arange(start, start + len(part), device=part.device) & _WORD
        high = _tile_sums(part ^ _place(index, 0x27D4EB2D, seeds[0], 15), len(words))
        low = _tile_sums(part ^ _place(index, 0x165667B1, seeds[1], 13), len(words))
        total += ((high << 32) | low).sum()
    return total


def _digest_of_sum(total: int) -> str:
    return f"{_mix_64(total & _LONG):016x}"


def _place(index: Tensor, factor: int, seed: int, turn: int) -> Tensor:
    """What a word is combined with, so that its place counts."""
    return ((index * factor + seed) & _WORD) ^ (((index << turn) | (index >> (32 - turn))) & _WORD)


def _tile_sums(words: Tensor, count: int) -> Tensor:
    """Return one number for each tile of mixed words, of a tensor of `count` words: [tiles], int64 below 2^32."""
    mixed = torch.nn.functional.pad(_mix_32(words), (0, -len(words) % _TILE))
    return _mix_32(mixed.view(-1, _TILE).sum(dim=1) & _WORD ^ (count * 4 & _WORD))


def _mix_32(x: Tensor) -> Tensor:
    """The last step of MurmurHash3's 32-bit form, on words in 64 bits."""
    x = x ^ (x >> 16)
    x = (x * 0x85EBCA6B) & _WORD
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & _WORD
    return x ^ (x >> 16)


def _mix_64(x: int) -> int:
    """The last step of SplitMix64."""
    x ^= x >> 30
    x = (x * 0xBF58476D1CE4E5B9) & _LONG
    x ^= x >> 27
    x = (x * 0x94D049BB133111EB) & _LONG
    return x ^ (x >> 31)
