"""Seeds of completions, derived from their identity alone."""

import hashlib
import json

SEEDS = 1 << 31  # SGLang takes seeds from 0 to 2**31 - 1


def sampling_seed(seed: int, *parts: int | str) -> int:
    """Return the seed of one completion: sha256 over the run's seed and the parts that name it, such as step, prompt, sample.

    Different parts give independent seeds, whatever the order of the requests. 0 <= result < 2**31.
    """
    text = json.dumps([seed, *parts], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % SEEDS
