"""MurmurHash3 (x86, 32 bit) of (seed, position, token), the noise behind SGLang's seeded sampling.

Same numbers as the Triton kernel in sglang.kernels.ops.sampling.murmur_hash, which needs a GPU.
Source: Austin Appleby, MurmurHash3_x86_32, https://github.com/aappleby/smhasher (public domain).
"""

import torch

C1 = 0xCC9E2D51
C2 = 0x1B873593
LENGTH = 16  # bytes hashed: seed 8, position 4, token 4


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """Hash the 16 little-endian bytes of each (seed, position, token), with the hash's own seed 0.

    Shapes: seed [rows] (64 bit), positions [rows], col_indices [vocabulary] -> [rows, vocabulary], uint32.
    """
    seed = seed.view(torch.int64)
    state = _mix(torch.zeros_like(seed, dtype=torch.int32), _low_bits(seed))
    state = _mix(state, _low_bits(seed >> 32))
    state = _mix(state, _low_bits(positions))
    state = _mix(state[:, None], _low_bits(col_indices)[None, :])  # [rows, vocabulary]
    return _finish(state).view(torch.uint32)


def _low_bits(values: torch.Tensor) -> torch.Tensor:
    """The low 32 bits as int32, whose products wrap as those of uint32 do."""
    return (values.to(torch.int64) & 0xFFFFFFFF).to(torch.int32)


def _signed(constant: int) -> int:
    return constant - (1 << 32) if constant >= 1 << 31 else constant


def _rotate_left(values: torch.Tensor, bits: int) -> torch.Tensor:
    return (values << bits) | _shift_right(values, 32 - bits)


def _shift_right(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift: int32's own copies the sign bit."""
    return (values >> bits) & ((1 << (32 - bits)) - 1)


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = _rotate_left(block * _signed(C1), 15) * _signed(C2)
    return _rotate_left(state ^ block, 13) * 5 + _signed(0xE6546B64)


def _finish(state: torch.Tensor) -> torch.Tensor:
    state = state ^ LENGTH
    state = (state ^ _shift_right(state, 16)) * _signed(0x85EBCA6B)
    state = (state ^ _shift_right(state, 13)) * _signed(0xC2B2AE35)
    return state ^ _shift_right(state, 16)
