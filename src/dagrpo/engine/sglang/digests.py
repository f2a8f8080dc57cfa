"""Digests of tensors, as SGLang's /weights_checker computes them.

They compare weights without moving them. SGLang reports a digest of every tensor that its model holds, in which some of
a checkpoint's lie side by side. A tensor that it holds in another form (quantised, experts joined) has no counterpart here,
and is not compared.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dagrpo.checkpoints.tensor_hash import in_hex, tensor_hash
from dagrpo.checkpoints.tensors import Tensors, raw_bytes
from dagrpo.engine.sglang import JOINED

# Tensors of an engine that hold several of a checkpoint's, one below the other.
_JOINED = dict(zip(("qkv_proj", "gate_up_proj"), JOINED, strict=True))
# What an engine's names begin with in the checkpoints of some vision-language models: Qwen3-VL's, not Qwen2.5-VL's.
LONGER = (("model.", "model.language_model."), ("visual.", "model.visual."))
_INNER = 32  # a multiple of this is the inner width of an MLP that SGLang takes as it is, on a CPU; on a GPU, one of 8
_VOCABULARY = 64  # SGLang fills embeddings up with zeros, to a multiple of this number of rows
Division = Literal["whole", "rows", "columns", "vocabulary"]
# How several ranks divide the tensors of a module of the language model (SGLang's layers/linear.py); norms are in each of them.
_DIVISIONS: dict[str, Division] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), "rows"),
    **dict.fromkeys(("o_proj", "down_proj"), "columns"),
    **dict.fromkeys(("embed_tokens", "lm_head"), "vocabulary"),
    "gate": "whole",  # of experts
}
_OF_KEY_VALUE_HEADS = ("k_proj", "v_proj")  # which several ranks have where there are fewer heads than ranks


@dataclass(frozen=True, slots=True)
class SGLangWeights:
    """Digests of the tensors of each rank of an SGLang server, by its names."""

    ranks: tuple[Mapping[str, str], ...]

    def comparable(self, weights: Tensors) -> dict[str, tuple[str, ...]]:
        """Return each tensor whose form is known, with the tensors of `weights` that it joins, in order."""
        return comparable(counterparts([*self.ranks[0]], [*weights.specs]), weights, len(self.ranks))

    def differing(self, parts: Mapping[str, tuple[str, ...]], weights: Tensors) -> list[str]:
        """Return the engine tensors in `parts` that differ from the trainer tensors joined into them."""
        return differing([*parts], self.ranks, parts, weights)


def comparable(known: Mapping[str, tuple[str, ...]], weights: Tensors, ranks: int = 1) -> dict[str, tuple[str, ...]]:
    """Return those of the `counterparts` whose form in an engine of `ranks` ranks is known.

    SGLang fills up the MLPs of a vision tower. How several ranks divide a tower, or a tensor of a name not listed here, is not known.
    """
    return {
        name: parts
        for name, parts in known.items()
        if not any(_is_filled_up(part, weights) or (ranks > 1 and _division(part) is None) for part in parts)
    }


def _is_filled_up(name: str, weights: Tensors) -> bool:
    if "visual.blocks." not in name or ".mlp." not in name:
        return False
    shape, leads_out = weights.specs[name].shape, any(f".{last}." in name for last in ("down_proj", "linear_fc2"))
    if leads_out and len(shape) == 1:
        return False  # a bias outside
    return shape[1 if leads_out else 0] % _INNER != 0


def counterparts(own: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return for each known tensor of an engine the checkpoint's tensors that it joins, in order."""
    known = set(names)
    found = {name: next(filter(known.issuperset, _candidates(name)), ()) for name in own}
    return {name: parts for name, parts in found.items() if parts}


def _candidates(name: str) -> Iterator[tuple[str, ...]]:
    """Yield the tensors of a checkpoint that a tensor of an engine may join."""
    for before, after in (("", ""), *LONGER):
        if name.startswith(before):
            yield _parts(after + name.removeprefix(before))


def _parts(name: str) -> tuple[str, ...]:
    if "visual." in name and ".qkv_proj." in name:  # a vision tower's are joined in the checkpoint, too
        return (name.replace(".qkv_proj.", ".qkv."),)
    for joined, parts in _JOINED.items():
        if f".{joined}." in name:
            return tuple(name.replace(f".{joined}.", f".{part}.") for part in parts)
    return (name,)


def differing(
    names: Sequence[str], ranks: Sequence[Mapping[str, str]], known: Mapping[str, Sequence[str]], weights: Tensors
) -> list[str]:
    """Return those of a server's tensors whose digests differ from those of the checkpoint's tensors that they join.

    `ranks`: the digests of each; `known`: the parts of each tensor (see `counterparts`). Of weights on a GPU the digests of a
    server there are computed there, with one wait for all of them; where one differs, SGLang's other form of digest is tried.
    """
    hashes: dict[tuple[str, int], Tensor] = {}  # [forms] of each tensor on a GPU, in each rank
    wrong = []
    for name in names:
        read = {part: weights.read(part) for part in known[name]}
        for rank, digests in enumerate(ranks):
            forms = _forms(read, rank, len(ranks))
            if forms and forms[0].is_cuda:
                hashes[name, rank] = torch.stack([tensor_hash(each) for each in forms])
            elif not _is_digest_of(digests.get(name, ""), forms):
                wrong.append(name)
    totals = torch.cat([*hashes.values()]).tolist() if hashes else []
    for (name, rank), each in hashes.items():
        own, totals = totals[: len(each)], totals[len(each) :]
        digest = ranks[rank].get(name, "")
        if digest not in map(in_hex, own):
            read = {part: weights.read(part) for part in known[name]}
            if not _is_digest_of(digest, _forms(read, rank, len(ranks))):
                wrong.append(name)
    return [*dict.fromkeys(wrong)]


def _is_digest_of(digest: str, forms: Sequence[Tensor]) -> bool:
    """Return True if it is one of the two digests that SGLang may compute of one of the forms."""
    return any(digest_on_cpu(each) == digest for each in forms) or any(digest_on_gpu(each) == digest for each in forms)


def _forms(parts: Mapping[str, Tensor], rank: int, ranks: int) -> list[Tensor]:
    """Return all forms in which a rank may hold the joined parts: a head of keys and values may be in one rank or in several."""
    if ranks == 1:
        return _with_rows_of_zeros(torch.cat([*parts.values()]) if len(parts) > 1 else next(iter(parts.values())))
    shared = any(name.split(".")[-2] in _OF_KEY_VALUE_HEADS for name in parts)
    copies = [count for count in range(1, ranks + 1) if ranks % count == 0] if shared else [1]
    return [torch.cat(shares) for each in copies if (shares := _shares(parts, rank, ranks, each)) is not None]


def _shares(parts: Mapping[str, Tensor], rank: int, ranks: int, copies: int) -> list[Tensor] | None:
    """Return a rank's share of each part, with every key-value head in `copies` ranks; None: they cannot be divided like that."""
    shares = []
    for name, tensor in parts.items():
        division = _division(name)
        has_copies = name.split(".")[-2] in _OF_KEY_VALUE_HEADS
        place, count = (rank // copies, ranks // copies) if has_copies else (rank, ranks)
        if division == "whole" or (division == "columns" and tensor.dim() == 1):  # a bias beside columns is added once
            shares.append(tensor)
        elif division == "vocabulary":
            shares.append(_vocabulary_share(tensor, place, count))
        elif tensor.shape[-1 if division == "columns" else 0] % count:
            return None
        else:
            shares.append(tensor.chunk(count, -1 if division == "columns" else 0)[place])
    return shares


def _division(name: str) -> Division | None:
    """Return how SGLang divides a tensor of a checkpoint over ranks; None: unknown."""
    if "visual." in name or "." not in name:
        return None
    module = name.split(".")[-2]
    return "whole" if module.endswith("norm") else _DIVISIONS.get(module)


def _vocabulary_share(tensor: Tensor, rank: int, ranks: int) -> Tensor:
    """Return a rank's rows of an embedding, the last of which are zeros where the vocabulary is filled up."""
    unit = _VOCABULARY if -(-len(tensor) // _VOCABULARY) * _VOCABULARY % ranks == 0 else _VOCABULARY * ranks
    size = -(-len(tensor) // unit) * unit // ranks
    rows = tensor[rank * size : (rank + 1) * size]
    return torch.cat([rows, tensor.new_zeros(size - len(rows), tensor.shape[1])])


def _with_rows_of_zeros(tensor: Tensor) -> list[Tensor]:
    """Return the tensor and, for a matrix, also the one with rows of zeros below that an embedding becomes."""
    missing = -len(tensor) % _VOCABULARY if tensor.dim() == 2 else 0
    return [tensor, torch.cat([tensor, tensor.new_zeros(missing, tensor.shape[1])])] if missing else [tensor]


def digest_on_cpu(tensor: Tensor) -> str:
    """Return the digest that SGLang computes of a tensor on a CPU: the first 8 bytes of its sha256."""
    return hashlib.sha256(raw_bytes(tensor)).hexdigest()[:16]


def digest_on_gpu(tensor: Tensor) -> str:
    """Return the digest that SGLang computes of a tensor on a GPU."""
    return in_hex(int(tensor_hash(tensor)))
