"""How near an update comes to its matrix products: the processor seconds of a forward and a backward pass, and those of the products in it.

    OMP_NUM_THREADS=1 python -m benchmarks.update_limit MODEL --dtype bfloat16 [--no-sharing]

MODEL is a folder with a model of transformers; the shape is that of benchmarks.shared_prompts, with the prompts of groups computed
once. Products are timed where they are called, in every second pass: the others show what a pass takes without a clock in it.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from benchmarks.shared_prompts import arguments, drawn, seconds_of_a_pass
from torch.utils._python_dispatch import TorchDispatchMode

from dagrpo.checkpoints.store import load_model
from dagrpo.trainer.policy import Policy

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
    parser = arguments(__doc__)
    parser.add_argument("--no-sharing", action="store_true", help="compute each sequence whole")
    given = parser.parse_args()
    policy = Policy(load_model(given.model, torch.float32)[0], dtype=getattr(torch, given.dtype))
    sequences = drawn(given.prompts, given.samples, given.prompt_tokens, given.tokens)
    plain, clocked = list[float](), list[Mapping[str, float]]()
    for _ in range(given.passes):
        plain.append(seconds_of_a_pass(policy, sequences, share_prompts=not given.no_sharing))
        with Clocked() as clock:
            seconds_of_a_pass(policy, sequences, share_prompts=not given.no_sharing)
        clocked.append(clock.seconds)
    whole = statistics.median(plain)
    for kind in (*KINDS, "the rest"):
        print(f"{kind:16}{statistics.median(each[kind] for each in clocked):8.2f} s")
    products = statistics.median(each["matrix products"] for each in clocked)
    print(f"{'a pass':16}{whole:8.2f} s: {whole / products:.2f} times its matrix products")


if __name__ == "__main__":
    main()
