"""How near an update comes to its matrix products: the processor seconds of a forward and a backward pass, and those of the products in it.

    OMP_NUM_THREADS=1 python -m benchmarks.update_limit MODEL --dtype bfloat16 [--layout padded] [--no-sharing]

MODEL is a folder with a model of transformers; the other options are those of benchmarks.packing, with completions of 64 tokens. Without
--layout and --no-sharing the pass is the one that training computes by default on a CPU: a packed row, and the prompt of a group once.
Products are timed where they are called, in every second round: the others show what a round takes without a clock in it.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from benchmarks.packing import Way, arguments, drawn, seconds_of_passes
from torch.utils._python_dispatch import TorchDispatchMode

from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.utils.distributed import single_process

aten = torch.ops.aten
PRODUCTS = (aten.mm, aten.addmm, aten.addmm_, aten.bmm, aten.baddbmm)
ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
)
KINDS = {"matrix products": PRODUCTS, "attention": ATTENTION}


class Clocked(TorchDispatchMode):
    """Adds up the seconds of each kind of operation while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and look at the clock before and after."""
        start = time.process_time()
        result = func(*args, **(kwargs or {}))
        kind = next((name for name, packets in KINDS.items() if func.overloadpacket in packets), "the rest")
        self.seconds[kind] += time.process_time() - start
        return result


def main() -> None:
    """Print a line for each kind of operation, and the ratio."""
    given = _given()
    policy = load_policy(given.model, single_process(), dtype=NAMED_DTYPES[given.dtype])
    if given.layout == "packed":
        policy.take_packed()
    sequences = drawn(given.prompts, given.samples, given.prompt_tokens, *given.tokens)
    way = Way(given.layout, share_prompts=not given.no_sharing)
    plain, clocked = list[float](), list[Mapping[str, float]]()
    for _ in range(given.rounds):
        plain.append(seconds_of_passes(policy, sequences, way, given.micro_batch_size))
        with Clocked() as clock:
            seconds_of_passes(policy, sequences, way, given.micro_batch_size)
        clocked.append(clock.seconds)
    _print(statistics.median(plain), clocked)


def _given() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--layout", choices=["packed", "padded"], default="packed")
    parser.add_argument("--no-sharing", action="store_true", help="compute the prompt of a group once per sample")
    parser.set_defaults(tokens=[64, 64])
    return parser.parse_args()


def _print(whole: float, clocked: Sequence[Mapping[str, float]]) -> None:
    for kind in (*KINDS, "the rest"):
        print(f"{kind:16}{statistics.median(each[kind] for each in clocked):8.2f} s")
    products = statistics.median(each["matrix products"] for each in clocked)
    print(f"{'altogether':16}{whole:8.2f} s: {whole / products:.2f} times its matrix products")


if __name__ == "__main__":
    main()
