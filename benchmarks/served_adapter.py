"""A weight sync of merged weights against one of the adapter alone (training.lora.serving), and how long each way samples.

    OMP_NUM_THREADS=1 python -m benchmarks.served_adapter MODEL [--rank 16] [--dtype float32] [--prompts 8] [--tokens 32] [--rounds 3]

MODEL is a folder with a model of transformers. Each way starts a server of its own. Every round changes the adapter, hands it over, has
the gate compare digests, and samples in lockstep; printed are the bytes of a weight sync, the median seconds of each, and the largest
distance in nats between the logprobs of engine and trainer.
"""

import argparse
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from benchmarks.precision import in_one_batch, made_up_requests

from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.lora_layers import low_rank_updates
from dagrpo.checkpoints.store import load_model
from dagrpo.checkpoints.tensors import NAMED_DTYPES, total_bytes
from dagrpo.core.types import SamplingRequest
from dagrpo.engine import open_engine, sglang
from dagrpo.engine.interface import Adapter, RolloutEngine
from dagrpo.engine.sglang import ADAPTER_LAYERS
from dagrpo.trainer.checks.weight_sync import WeightSyncCheck
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.model.lora import add_adapter, begin
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.trainer.weight_sync import GatheredAdapter, adapter_form
from dagrpo.utils.distributed import single_process

WAYS = ("merged", "adapter")
MEGABYTE = 1_000_000


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", choices=NAMED_DTYPES, default="float32")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS)
    given = parser.parse_args()
    print("| serving | MB | weight sync s | digests s | sampling s | largest difference |\n|---|---|---|---|---|---|")
    for way in given.ways:
        print(_row(given, way), flush=True)


def _row(given: argparse.Namespace, way: str) -> str:
    lora, dtype, world = Lora(rank=given.rank), NAMED_DTYPES[given.dtype], single_process()
    policy = Policy(load_model(given.model, torch.float32)[0], dtype=dtype)
    add_adapter(policy.model, lora)
    begin(policy.model, 0)
    _move(policy, 0)
    serves = way == "adapter"
    weights = GatheredWeights(policy.model, dtype, world, merges=not serves)
    handed = GatheredAdapter(policy.model, lora.rank, dtype, world, ADAPTER_LAYERS) if serves else weights
    requests = made_up_requests(given.model, given.prompts, given.tokens)
    with tempfile.TemporaryDirectory() as folder, handed.reading() as first:
        with weights.reading() if serves else nullcontext(first) as base:
            opened = open_engine(
                given.model,
                sglang.Config(max_total_tokens=8192, max_running_requests=len(requests)),
                Path(folder) / "server.log",
                dtype=given.dtype,
                deterministic=True,
                weights=base,
                adapter=Adapter(form=adapter_form(policy.model, lora, ADAPTER_LAYERS), tensors=first)
                if serves
                else None,
            )
            with opened as engine:
                rounds = [_round(engine, policy, handed, requests, number) for number in range(given.rounds + 1)]
        size = total_bytes(first) / MEGABYTE
    seconds = [statistics.median(each) for each in zip(*(timed for timed, _ in rounds[1:]), strict=True)]
    columns = " | ".join(f"{each:.2f}" for each in seconds)
    return f"| {way} | {size:.1f} | {columns} | {max(apart for _, apart in rounds):.2g} |"


def _move(policy: Policy, number: int) -> None:
    """As an update would."""
    drawn = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for update in low_rank_updates(policy.model).values():
            update.up.copy_(0.01 * torch.randn(update.up.shape, generator=drawn))


def _round(
    engine: RolloutEngine,
    policy: Policy,
    handed: GatheredWeights | GatheredAdapter,
    requests: list[SamplingRequest],
    number: int,
) -> tuple[tuple[float, float, float], float]:
    """Seconds of weight sync, comparison and sampling; and how far the logprobs are apart. The first round warms up."""
    _move(policy, number)
    times = [time.perf_counter()]
    with handed.reading() as tensors:
        engine.load(tensors, f"step_{number}")
        times.append(time.perf_counter())
        WeightSyncCheck(Gates(), 0).check(engine, tensors, number, updated=True)
        times.append(time.perf_counter())
    completions = engine.generate(requests, lockstep=True)
    times.append(time.perf_counter())
    told = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
    with torch.no_grad():
        scored = token_logprobs(policy, in_one_batch(requests, completions), 1.0).logprobs
    apart = (told - scored).abs().max().item()
    return (times[1] - times[0], times[2] - times[1], times[3] - times[2]), apart


if __name__ == "__main__":
    main()
