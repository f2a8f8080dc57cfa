"""One seed per request, derived from what the request is and from nothing else."""

import hashlib


def sampling_seed(seed: int, *parts: int | str) -> int:
    """A number in [0, 2**31) for (seed, parts): equal parts give equal seeds, all others unrelated ones."""
    text = "\x1f".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
