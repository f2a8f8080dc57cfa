"""What it saves to pack the sequences of a micro-batch end to end: forward and backward passes of a policy, padded and packed, in turns.

    OMP_NUM_THREADS=1 python -m benchmarks.packing MODEL --prompts 4 --samples 4 --prompt-tokens 100 --tokens 10 64
        [--micro-batch-size 32] [--dtype bfloat16] [--without-sharing]

MODEL is a folder with a model of transformers. Prompts have up to a tenth more or fewer tokens than asked for, completions any number
between the two of --tokens, and all tokens are drawn at random: what they say changes no time. Micro-batches are cut as the trainer cuts
them, from the longest sequence to the shortest. Printed are processor seconds of all passes over the sequences, their median and range
over the rounds, and the number of tokens that are computed, padding included.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.trainer.batches.batch import MicroBatch, TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget, MicroBatchSplitter
from dagrpo.trainer.config.runtime import Layout
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.utils.distributed import single_process

CPU = torch.device("cpu")
PAD = 0


@dataclass(frozen=True, slots=True)
class Way:
    """How sequences are laid out."""

    layout: Layout
    share_prompts: bool


WAYS = (Way("padded", False), Way("packed", False), Way("packed", True))


def main() -> None:
    """Print a table."""
    parser = arguments(__doc__)
    parser.add_argument("--without-sharing", action="store_true", help="leave out shared prompts")
    given = parser.parse_args()
    policy = load_policy(given.model, single_process(), dtype=NAMED_DTYPES[given.dtype])
    policy.take_packed()
    sequences = drawn(given.prompts, given.samples, given.prompt_tokens, *given.tokens)
    ways = [way for way in WAYS if not (way.share_prompts and given.without_sharing)]
    for way in ways:
        seconds_of_passes(
            policy, drawn(1, 2, given.prompt_tokens, *given.tokens), way, given.micro_batch_size
        )  # warms up
    seconds: dict[Way, list[float]] = {way: [] for way in ways}
    for _ in range(given.rounds):
        for way, own in seconds.items():
            own.append(seconds_of_passes(policy, sequences, way, given.micro_batch_size))
    print("| layout | shared prompts | tokens | processor seconds | of the padded form's |\n|---|---|---|---|---|")
    padded = statistics.median(seconds[ways[0]])
    for way, own in seconds.items():
        tokens = sum(tokens_of(batch) for batch in batches(sequences, way, given.micro_batch_size))
        median, shared = statistics.median(own), "yes" if way.share_prompts else "no"
        spread = f"{median:.2f} ({min(own):.2f} to {max(own):.2f})"
        print(f"| {way.layout} | {shared} | {tokens:,} | {spread} | {median / padded:.2f} |")


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The model, and the shape of what is computed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--tokens", type=int, nargs=2, default=[10, 64])
    parser.add_argument("--micro-batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    return parser


def drawn(prompts: int, samples: int, prompt_tokens: int, fewest: int, most: int) -> TokenSequences:
    """Groups of random tokens."""
    generator = torch.Generator().manual_seed(0)

    def text(low: int, high: int) -> list[int]:
        length = int(torch.randint(low, high + 1, (), generator=generator))
        written: list[int] = torch.randint(3, 200, (length,), generator=generator).tolist()
        return written

    around = prompt_tokens - prompt_tokens // 10, prompt_tokens + prompt_tokens // 10
    groups = [(text(*around), [text(fewest, most) for _ in range(samples)]) for _ in range(prompts)]
    pairs = [(prompt, written) for prompt, own in groups for written in own]
    return TokenSequences.of(
        [prompt + written for prompt, written in pairs],
        [[False] * len(prompt) + [True] * len(written) for prompt, written in pairs],
    )


def batches(sequences: TokenSequences, way: Way, micro_batch_size: int) -> Iterator[MicroBatch]:
    """The micro-batches of all sequences."""
    budget = Budget(sequences=micro_batch_size, layout=way.layout, share_prompts=way.share_prompts)
    splitter = MicroBatchSplitter(sequences, budget)
    spans = splitter.arrange([slice(number, number + 1) for number in range(len(sequences))], 1)
    for part in splitter.micro_batches(spans, 0, 1):
        yield sequences.lay_out(part, PAD, CPU, way.layout, share_prompts=way.share_prompts)


def tokens_of(batch: MicroBatch) -> int:
    """Those that a pass computes, padding included."""
    return batch.input_ids.numel()


def seconds_of_passes(policy: Policy, sequences: TokenSequences, way: Way, micro_batch_size: int) -> float:
    """Processor seconds of a forward and a backward pass over each micro-batch, and of laying it out."""
    policy.zero_grad()
    start = time.process_time()
    for batch in batches(sequences, way, micro_batch_size):
        token_logprobs(policy, batch, 1.0).logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return time.process_time() - start


if __name__ == "__main__":
    main()
