"""MurmurHash3_x86_32 as a tensor operation, against the published hash of any bytes in plain Python."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dagrpo.utils.murmur import murmur_hash32

MASK = 0xFFFFFFFF


def murmur3_x86_32(data: bytes, seed: int) -> int:
    """The hash as published: blocks of four bytes, the tail, the finalizer."""
    state = seed
    whole = len(data) - len(data) % 4
    for start in range(0, whole, 4):
        state ^= scrambled(int.from_bytes(data[start : start + 4], "little"))
        state = (rotated(state, 13) * 5 + 0xE6546B64) & MASK
    state ^= scrambled(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = ((state ^ (state >> shift)) * factor) & MASK
    return state ^ (state >> 16)


def scrambled(block: int) -> int:
    return (rotated((block * 0xCC9E2D51) & MASK, 15) * 0x1B873593) & MASK


def rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & MASK


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"", 0xFFFFFFFF, 0x81F16F39),
        (b"\xff\xff\xff\xff", 0, 0x76293B50),
        (b"\x21\x43\x65\x87", 0, 0xF55B516B),
        (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
        (b"\x21\x43\x65", 0, 0x7E4A8634),
        (b"\x21\x43", 0, 0xA0F7B07A),
        (b"\x21", 0, 0x72661CF4),
        (b"\0\0\0\0", 0, 0x2362F9DE),
        (b"aaaa", 0x9747B28C, 0x5A97808A),
        (b"Hello, world!", 0x9747B28C, 0x24884CBA),
        (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
    ],
)
def test_the_reference_gives_the_published_test_vectors(data: bytes, seed: int, expected: int) -> None:
    assert murmur3_x86_32(data, seed) == expected


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**32 - 1), token=st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_the_tensor_version_hashes_the_sixteen_bytes_of_seed_position_and_token(
    seed: int, position: int, token: int
) -> None:
    hashed = murmur_hash32(torch.tensor([seed], dtype=torch.uint64), torch.tensor([position]), torch.tensor([token]))
    assert hashed.item() == murmur3_x86_32(struct.pack("<QII", seed, position, token), 0)


def test_every_row_is_hashed_with_every_token() -> None:
    seeds, positions, tokens = torch.tensor([5, 2**31 - 1]), torch.tensor([0, 77]), torch.arange(300)
    hashed = murmur_hash32(seeds, positions, tokens)
    assert hashed.shape == (2, 300)
    assert hashed.dtype == torch.uint32
    expected = murmur3_x86_32(struct.pack("<QII", 2**31 - 1, 77, 299), 0)
    assert hashed[1, 299].item() == expected
