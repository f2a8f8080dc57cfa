"""The head of a language model all at once and in chunks: peak memory and processor seconds of a forward and a backward pass.

    OMP_NUM_THREADS=1 python -m benchmarks.head [--vocabulary 151936] [--width 64] [--plain 1024] [--at-once 1024 2048]
        [--streamed 2048 8192] [--chunks 128 512] [--dtype float32] [--liger 1024]

Logprobs, entropies and the gradients of hidden states and weights, with random numbers. Each row is a process of its
own; its memory is the peak above what it held before the first pass, gradients included. The plain form is log_softmax and autograd;
the last column says how long a token takes, of what it takes in the plain row before it. The width is small, so that most of the time goes
to the softmax: with more width the extra product of the backward pass counts for more, at most a third of the head.

--liger adds rows of liger-kernel's fused GRPO loss, without torch.compile, one sequence of 256 tokens at a time. It makes no entropy. The
package is not among the requirements: `pip install --no-deps liger-kernel==0.8.5`, in a folder of its own on PYTHONPATH. The last column
but one is the norm of the gradient of the weights, by which all forms can be told to compute the same.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from dagrpo.trainer.model.head import Reading, read_of_head

MEBIBYTE = 1 << 20
PLAIN, ALL, LIGER = "plain", "all", "liger"  # kinds of rows, beside the numbers of tokens in a chunk
LIGER_SEQUENCE = 256  # tokens


def main() -> None:
    """Print a table, or with --side the row of one process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=151_936, help="of Qwen2.5")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--plain", type=int, nargs="*", default=[1024], help="tokens")
    parser.add_argument("--at-once", type=int, nargs="*", default=[1024, 2048], help="tokens")
    parser.add_argument("--streamed", type=int, nargs="*", default=[2048, 8192], help="tokens")
    parser.add_argument("--chunks", type=int, nargs="*", default=[128, 512])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--liger", type=int, nargs="*", default=[], help="tokens, a multiple of 256")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(json.dumps(_measured(int(given.side[0]), given.side[1], given.vocabulary, given.width, given.dtype)))
        return
    print("| tokens | chunk | MiB | processor seconds | norm | of the plain form's |\n|---|---|---|---|---|---|")
    cases = [*((tokens, PLAIN) for tokens in given.plain), *((tokens, ALL) for tokens in given.at_once)]
    cases += [(tokens, str(chunk)) for tokens in given.streamed for chunk in given.chunks]
    cases += [(tokens, LIGER) for tokens in given.liger]
    shape = ["--vocabulary", str(given.vocabulary), "--width", str(given.width), "--dtype", given.dtype]
    plain = 0.0  # seconds of a token
    for tokens, kind in cases:
        command = [sys.executable, "-m", "benchmarks.head", *shape, "--side", str(tokens), kind]
        mebibytes, seconds, norm = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        )
        plain = seconds / tokens if kind == PLAIN else plain
        ratio = f"{seconds / tokens / plain:.2f}" if plain else ""
        print(f"| {tokens:,} | {kind} | {mebibytes:,.0f} | {seconds:.1f} | {norm:.6g} | {ratio} |", flush=True)


def _measured(tokens: int, kind: str, vocabulary: int, width: int, dtype: str) -> tuple[float, float, float]:
    """MiB and processor seconds of one pass, and the norm of the gradient of the weights."""
    drawn, type_ = torch.Generator().manual_seed(0), getattr(torch, dtype)
    hidden = torch.randn(tokens, width, generator=drawn).to(type_).requires_grad_()
    weight = (torch.randn(vocabulary, width, generator=drawn) / width**0.5).to(type_).requires_grad_()
    reading = Reading(targets=torch.randint(vocabulary, (tokens,), generator=drawn), temperature=1.0)
    liger = _liger() if kind == LIGER else None
    before, begun = _peak(), time.process_time()
    if liger is not None:
        loss = liger(hidden, weight, reading.targets)
    elif kind == PLAIN:
        loss = -_plain(hidden, weight, reading.targets).mean()
    else:
        logprobs, _, _ = read_of_head(hidden, weight, None, reading, None if kind == ALL else int(kind))
        loss = -logprobs.mean()
    loss.backward()  # type: ignore[no-untyped-call]
    mebibytes, seconds = _peak() - before, time.process_time() - begun
    assert weight.grad is not None
    return mebibytes, seconds, float(weight.grad.float().norm())


def _liger() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Liger's loss of hidden states, weights and targets, with every advantage 1: the gradient is that of the mean logprob."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    fused = LigerFusedLinearGRPOLoss(beta=0.0, compiled=False, use_ref_model=False, loss_type="bnpo")

    def loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        own = targets.view(-1, LIGER_SEQUENCE)
        advantages = torch.ones(len(own))
        of_all: torch.Tensor = fused(
            hidden.view(len(own), LIGER_SEQUENCE, -1), weight, own, torch.ones_like(own), advantages
        )[0]
        return of_all

    return loss


def _plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The same logprobs by autograd, and the entropies that nobody differentiates."""
    log_softmax = torch.log_softmax(torch.nn.functional.linear(hidden, weight).float(), dim=-1)
    with torch.no_grad():
        (log_softmax.exp() * log_softmax).sum(dim=-1)
    return log_softmax.gather(1, targets[:, None])[:, 0]


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEBIBYTE


if __name__ == "__main__":
    main()
