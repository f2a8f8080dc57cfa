"""Logprobs of the same sampled tokens by SGLang and by the trainer, in several types, and how long each takes.

    python -m benchmarks.precision MODEL [--prompts 8] [--tokens 32] [--cases bfloat16 bfloat16+head float16 float16+head float32]

MODEL is a folder with a model of transformers. Each case starts a server of its own; both sides compute in its type, with `+head`
the logits in float32 (rollout.head_dtype). Printed are the mean and the largest distance in nats, the share of tokens that are more
than 0.01 nats apart, the seconds of sampling, and those of the faster of two forward and backward passes of the trainer.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from dagrpo.checkpoints.store import load_model
from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine import open_engine, sglang
from dagrpo.trainer.batches.packing import PaddedBatch, TokenSequences
from dagrpo.trainer.model.policy import Policy, token_logprobs

CASES = ["float32", "bfloat16", "bfloat16+head", "float16", "float16+head"]
HEAD = "+head"
QUESTION = "Tom has {} apples and buys {} bags of {} apples each. How many apples has he now? Think step by step.\n"
CPU = torch.device("cpu")
NOTICED = 0.01  # nats


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=CASES)
    given = parser.parse_args()
    requests = made_up_requests(given.model, given.prompts, given.tokens)
    print("| both in | tokens | mean | largest | above 0.01 | sampling s | update s |\n|---|---|---|---|---|---|---|")
    for case in given.cases:
        print(_row(given.model, case, requests), flush=True)


def made_up_requests(model: Path, prompts: int, tokens: int) -> list[SamplingRequest]:
    """So many questions that differ, each to be answered in so many tokens at most."""
    tokenizer = load_tokenizer(model)
    texts = [QUESTION.format(number + 3, number % 5 + 2, 2 * number + 1) for number in range(prompts)]
    return [
        SamplingRequest(
            input_ids=tuple(tokenizer(text)["input_ids"]),
            seed=number,
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            max_new_tokens=tokens,
        )
        for number, text in enumerate(texts)
    ]


def _row(model: Path, case: str, requests: list[SamplingRequest]) -> str:
    dtype, float32_head = case.removesuffix(HEAD), case.endswith(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        opened = open_engine(
            model,
            sglang.Config(max_total_tokens=8192, max_running_requests=len(requests)),
            Path(folder) / "server.log",
            dtype=dtype,
            deterministic=True,
            head_dtype="float32" if float32_head else None,
        )
        with opened as engine:
            engine.generate(requests[:1], lockstep=True)  # warms up
            start = time.perf_counter()
            completions = engine.generate(requests, lockstep=True)
            sampling = time.perf_counter() - start
    policy = Policy(load_model(model, torch.float32)[0], dtype=NAMED_DTYPES[dtype], float32_head=float32_head)
    passes = [_scored(policy, requests, completions) for _ in range(2)]
    told = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
    apart = (told - passes[0][0]).abs()
    return (
        f"| {case} | {len(told)} | {apart.mean():.2g} | {apart.max():.2g} | {(apart > NOTICED).float().mean():.1%} "
        f"| {sampling:.1f} | {min(seconds for _, seconds in passes):.1f} |"
    )


def _scored(
    policy: Policy, requests: list[SamplingRequest], completions: list[Completion]
) -> tuple[torch.Tensor, float]:
    """The trainer's logprobs, and the seconds of a forward and a backward pass."""
    batch = in_one_batch(requests, completions)
    policy.zero_grad()
    start = time.perf_counter()
    logprobs = token_logprobs(policy, batch, 1.0).logprobs
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return logprobs.detach(), time.perf_counter() - start


def in_one_batch(requests: list[SamplingRequest], completions: list[Completion]) -> PaddedBatch:
    """Prompts and completions side by side; the completions count as trained tokens."""
    pairs = [(request.input_ids, each.token_ids) for request, each in zip(requests, completions, strict=True)]
    sequences = TokenSequences.of(
        [[*prompt, *written] for prompt, written in pairs],
        [[False] * len(prompt) + [True] * len(written) for prompt, written in pairs],
    )
    return sequences.padded(range(len(sequences)), 0, CPU)


if __name__ == "__main__":
    main()
