"""64-bit hash of a tensor, computed on its device."""

import torch
from torch import Tensor

_WORD = (1 << 32) - 1
_LONG = (1 << 64) - 1
_TILE = 8192  # words
_TILES_AT_ONCE = 64  # on a CPU, whose caches they are to stay in
_TILES_LAUNCHED = 512  # on other devices: temporary tensors of 32 MiB each


def tensor_hash(tensor: Tensor) -> Tensor:
    """Return the hash of a tensor's bytes, [] in int64, on the tensor's device, without synchronising.

    The value is that of SGLang's gpu_tensor_hash: two 32-bit sums of mixed words for each 8,192 words. It detects errors and different
    rounding; it is no defence against a deliberate collision.
    """
    words = _words(tensor)
    seeds = (0x243F6A88, (0x243F6A88 * 0x9E3779B1 ^ 0xDEADBEEF) & _WORD)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    step = _TILE * (_TILES_AT_ONCE if tensor.device.type == "cpu" else _TILES_LAUNCHED)
    for number, some in enumerate(torch.split(words, step)):
        part = some.long() & _WORD
        index = torch.arange(number * step, number * step + len(part), device=part.device) & _WORD
        high = _tile_sums(part ^ _place(index, 0x27D4EB2D, seeds[0], 15), len(words))
        low = _tile_sums(part ^ _place(index, 0x165667B1, seeds[1], 13), len(words))
        total += ((high << 32) | low).sum()  # modulo 2^64, as int64 overflows
    return _mix_64(total)


def in_hex(value: int) -> str:
    """Return 16 hex digits of a 64-bit number, which may be signed."""
    return f"{value & _LONG:016x}"


def _words(tensor: Tensor) -> Tensor:
    """Return the bytes as [words] in int32; zeros pad the last word. Copies only bytes that cannot be viewed."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if len(data) % 4 or data.storage_offset() % 4:
        data = torch.nn.functional.pad(data, (0, -len(data) % 4))
    return data.view(torch.int32)


def _place(index: Tensor, factor: int, seed: int, turn: int) -> Tensor:
    """Return the value that a word is combined with, so that its position counts."""
    return ((index * factor + seed) & _WORD) ^ (((index << turn) | (index >> (32 - turn))) & _WORD)


def _tile_sums(words: Tensor, count: int) -> Tensor:
    """Return one 32-bit number for each tile of mixed words, [tiles], of a tensor of `count` words."""
    mixed = _mix_32(words)
    if len(mixed) % _TILE:
        mixed = torch.nn.functional.pad(mixed, (0, -len(mixed) % _TILE))
    sums = mixed.view(-1, _TILE).sum(dim=1) & _WORD
    return _mix_32(sums ^ (count * 4 & _WORD))


def _mix_32(x: Tensor) -> Tensor:
    """Return the last step of MurmurHash3's 32-bit form, on words in 64 bits."""
    x = x ^ (x >> 16)
    x = (x * 0x85EBCA6B) & _WORD
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & _WORD
    return x ^ (x >> 16)


def _mix_64(x: Tensor) -> Tensor:
    """Return the last step of SplitMix64, on 64 bits that int64 reads as a signed number."""
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Return x shifted right, with zeros from the left: int64 alone would repeat its sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64)
