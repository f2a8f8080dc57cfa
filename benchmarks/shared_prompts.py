"""What it saves to compute the prompt of a group once: forward and backward passes of a policy, with and without, in turns.

    OMP_NUM_THREADS=1 python -m benchmarks.shared_prompts MODEL --prompts 4 --samples 4 --prompt-tokens 100 --tokens 64

MODEL is a folder with a model of transformers. Tokens are drawn at random: what they say changes no time. Printed are the median
processor seconds of a pass over all sequences at once and the number of tokens that it computes.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from dagrpo.checkpoints.store import load_model
from dagrpo.trainer.packing import TokenSequences
from dagrpo.trainer.policy import Policy, token_logprobs

CPU = torch.device("cpu")


def main() -> None:
    """Print both ways and their ratios."""
    given = arguments(__doc__).parse_args()
    policy = Policy(load_model(given.model, torch.float32)[0], dtype=getattr(torch, given.dtype))
    sequences = drawn(given.prompts, given.samples, given.prompt_tokens, given.tokens)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(given.passes):
        for share, own in seconds.items():
            own.append(seconds_of_a_pass(policy, sequences, share_prompts=share))
    whole, shared = (statistics.median(own) for own in seconds.values())
    print(f"each sequence whole {whole:.2f} s, prompts once {shared:.2f} s: {whole / shared:.2f} times as fast")
    computed = [_tokens(sequences, share_prompts=share) for share in (False, True)]
    print(f"tokens computed {computed[0]} and {computed[1]}: {computed[0] / computed[1]:.2f} times as many")


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The model, and the shape of what is computed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    return parser


def drawn(prompts: int, samples: int, prompt_tokens: int, tokens: int) -> TokenSequences:
    """Groups of random tokens."""
    generator = torch.Generator().manual_seed(0)

    def text(length: int) -> list[int]:
        written: list[int] = torch.randint(3, 200, (length,), generator=generator).tolist()
        return written

    pairs = [(prompt, text(tokens)) for prompt in [text(prompt_tokens) for _ in range(prompts)] for _ in range(samples)]
    masks = [[False] * prompt_tokens + [True] * tokens] * len(pairs)
    return TokenSequences.of([prompt + written for prompt, written in pairs], masks)


def _tokens(sequences: TokenSequences, *, share_prompts: bool) -> int:
    batch = sequences.padded(range(len(sequences)), 0, CPU, share_prompts=share_prompts)
    return batch.input_ids.numel() + (0 if batch.prompts is None else batch.prompts.input_ids.numel())


def seconds_of_a_pass(policy: Policy, sequences: TokenSequences, *, share_prompts: bool) -> float:
    """Processor seconds of a forward and a backward pass."""
    policy.zero_grad()
    start = time.process_time()
    batch = sequences.padded(range(len(sequences)), 0, CPU, share_prompts=share_prompts)
    token_logprobs(policy, batch, 1.0).logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return time.process_time() - start


if __name__ == "__main__":
    main()
