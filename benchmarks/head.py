"""The head of a language model all at once and in chunks: peak memory and processor seconds of a forward and a backward pass.

    OMP_NUM_THREADS=1 python -m benchmarks.head [--vocabulary 151936] [--width 64] [--at-once 1024 2048] [--streamed 2048 8192]

Logprobs, entropies and the gradients of hidden states and weights, in float32, with random numbers. Each row is a process of its
own; its memory is the peak above what it held before the first pass, gradients included. The width is small, so that most of the time goes
to the softmax: with more width the extra product of the backward pass counts for more, at most a third of the head.
"""

import argparse
import resource
import subprocess
import sys
import time

import torch

from dagrpo.trainer.head import Reading, streamed

MEBIBYTE = 1 << 20


def main() -> None:
    """Print a table, or with --side the row of one process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=151_936, help="of Qwen2.5")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--at-once", type=int, nargs="*", default=[1024, 2048], help="tokens")
    parser.add_argument("--streamed", type=int, nargs="*", default=[2048, 8192], help="tokens")
    parser.add_argument("--chunks", type=int, nargs="*", default=[128, 512])
    parser.add_argument("--side", type=int, nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(_row(*given.side))
        return
    print("| tokens | chunk | MiB | processor seconds |\n|---|---|---|---|")
    cases = [(tokens, 0) for tokens in given.at_once]
    cases += [(tokens, chunk) for tokens in given.streamed for chunk in given.chunks]
    for tokens, chunk in cases:
        side = map(str, (tokens, chunk, given.vocabulary, given.width))
        subprocess.run([sys.executable, "-m", "benchmarks.head", "--side", *side], check=True)


def _row(tokens: int, chunk: int, vocabulary: int, width: int) -> str:
    """Of one pass; chunk 0: all at once."""
    drawn = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=drawn).requires_grad_()
    weight = (torch.randn(vocabulary, width, generator=drawn) / width**0.5).requires_grad_()
    reading = Reading(targets=torch.randint(vocabulary, (tokens,), generator=drawn), temperature=1.0)
    before, begun = _peak(), time.process_time()
    if chunk:
        logprobs, _, _ = streamed(hidden, weight, None, reading, chunk)
    else:
        logprobs, _, _ = reading.of(torch.nn.functional.linear(hidden, weight))
    logprobs.mean().backward()  # type: ignore[no-untyped-call]
    seconds = time.process_time() - begun
    return f"| {tokens:,} | {f'{chunk:,}' if chunk else 'all'} | {_peak() - before:,.0f} | {seconds:.1f} |"


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEBIBYTE


if __name__ == "__main__":
    main()
