"""MurmurHash3_x86_32 for any bytes, in plain Python, to check the tensor version against."""

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
