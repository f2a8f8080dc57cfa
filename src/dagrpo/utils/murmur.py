"""MurmurHash3 (x86, 32 bit) of (seed, position, token), for seeded sampling.

Same numbers as the Triton kernel in sglang.kernels.ops.sampling.murmur_hash, which needs a GPU. In NumPy, which has logical shifts
of unsigned numbers and writes into existing memory: measured, a third of torch's time.
Source: Austin Appleby, MurmurHash3_x86_32, https://github.com/aappleby/smhasher (public domain).
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

C1 = np.uint32(0xCC9E2D51)
C2 = np.uint32(0x1B873593)
LENGTH = np.uint32(16)  # bytes hashed: seed 8, position 4, token 4

Words = NDArray[np.uint32]


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """Hash the 16 little-endian bytes of each (seed, position, token), with the hash's own seed 0.

    Shapes: seed [rows] (64 bit), positions [rows], col_indices [vocabulary] -> [rows, vocabulary], uint32.
    """
    return torch.from_numpy(_hashed(hash_rows(seed, positions), _scrambled(_low_bits(col_indices))))


def hash_rows(seed: torch.Tensor, positions: torch.Tensor) -> Words:  # [rows]
    """Return the state after seed and position, which all tokens share."""
    seed = seed.view(torch.int64)
    state = np.zeros(len(seed), np.uint32)
    for block in (seed, seed >> 32, positions):
        state = _mixed(state, _scrambled(_low_bits(block)))
    return state


def hash_vocabulary(rows: Words, vocabulary: int) -> Words:  # [rows, vocabulary]
    """Return the hashes of all tokens from 0, by the states of `hash_rows`."""
    return _hashed(rows, _scrambled_vocabulary(vocabulary))


@lru_cache(maxsize=2)
def _scrambled_vocabulary(vocabulary: int) -> Words:
    return _scrambled(np.arange(vocabulary, dtype=np.uint32))


def _hashed(rows: Words, blocks: Words) -> Words:
    state = _mixed(rows[:, None], blocks[None, :])
    state ^= LENGTH
    spare = np.empty_like(state)
    for shift, factor in ((16, np.uint32(0x85EBCA6B)), (13, np.uint32(0xC2B2AE35))):
        state ^= np.right_shift(state, np.uint32(shift), out=spare)
        state *= factor
    state ^= np.right_shift(state, np.uint32(16), out=spare)
    return state


def _low_bits(values: torch.Tensor) -> Words:
    return values.to(torch.int64).numpy().astype(np.uint32)


def _scrambled(block: Words) -> Words:
    return _rotated_left(block * C1, 15) * C2


def _mixed(state: Words, block: Words) -> Words:
    state = _rotated_left(state ^ block, 13)
    state *= np.uint32(5)
    state += np.uint32(0xE6546B64)
    return state


def _rotated_left(values: Words, bits: int) -> Words:
    low = values >> np.uint32(32 - bits)
    values <<= np.uint32(bits)
    values |= low
    return values
