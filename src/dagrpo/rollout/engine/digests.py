"""Digests of tensors as SGLang's /weights_checker computes them, so that weights can be compared without moving them.

SGLang reports a digest of every tensor of its model: of its own tensors, in which some of a checkpoint's lie side by side. A
tensor that it holds in another form still (quantised, experts joined) has no counterpart here, and is not compared.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dagrpo.checkpoints.tensor_hash import in_hex, tensor_hash
from dagrpo.checkpoints.tensors import Tensors, raw_bytes

# Tensors of an engine that hold several of a checkpoint's, one below the other.
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# What an engine's names begin with in the checkpoints of some vision-language models: Qwen3-VL's, not Qwen2.5-VL's.
LONGER = (("model.", "model.language_model."), ("visual.", "model.visual."))
_INNER = 32  # a multiple of this is the inner width of an MLP that SGLang takes as it is, on a CPU; on a GPU, one of 8
_VOCABULARY = 64  # SGLang fills embeddings up with zeros, to a multiple of so many rows


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
    hashes: dict[str, Tensor] = {}  # [forms] of each tensor on a GPU
    wrong = []
    for name in names:
        tensor = _joined(known[name], weights)
        if tensor.is_cuda:
            hashes[name] = torch.stack([tensor_hash(each) for each in _forms(tensor)])
        elif not _is_digest_of(held[name], tensor):
            wrong.append(name)
    totals = torch.cat([*hashes.values()]).tolist() if hashes else []
    for name, each in hashes.items():
        own, totals = totals[: len(each)], totals[len(each) :]
        if held[name] not in map(in_hex, own) and not _is_digest_of(held[name], _joined(known[name], weights)):
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
    """Return the digest that SGLang computes of a tensor on a GPU."""
    return in_hex(int(tensor_hash(tensor)))
