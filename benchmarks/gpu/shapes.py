"""Speed and memory of the trainer on prime-rl's shapes: Qwen3-0.6B, 16,384 tokens in one sequence, in bfloat16.

    python -m benchmarks.gpu.shapes --case rl

prints one line of JSON. Each case is a process of its own, so that its peak is its own. The weights are fresh: speed and memory do not
depend on their values. Compared with prime-rl's committed baselines of one H100 (benchmarks/results/BENCHMARKS.md, 2026-02-01, commit
559b447), whose formula is that of MFU here: (6 N + 6 L d s) FLOPs for a token, d = heads x size of a head, over 989e12 a second.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dagrpo.algorithms.config import Algorithm
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.config.runtime import Layout, SftRuntime
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.metrics.throughput import Arithmetic
from dagrpo.trainer.model.fsdp import checkpoint_activations
from dagrpo.trainer.model.optimizer import adamw, apply_gradients
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.prepare import prepare_layout
from dagrpo.trainer.sft import accumulate
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.determinism import compute_deterministically
from dagrpo.utils.distributed import single_process
from dagrpo.utils.gpu_specs import kind_of

GIBIBYTE = 1 << 30
H100 = 989e12  # FLOPs per second in bfloat16, which prime-rl divides by
WARM_UP, MEASURED = 2, 5  # updates
QWEN3_0_6B = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
TOY = QWEN3_0_6B | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "head_dim": 16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One shape, and how it is computed."""

    title: str
    mode: str  # rl or sft
    sequences: int
    length: int  # tokens of each; of the longest, where they are spread
    spread: bool = False  # whether sequences are of an eighth of that length, two eighths, and so on
    layout: Layout = "padded"
    checkpointing: bool = True
    head_chunk: int | None = 2048
    deterministic: bool = False
    peer_tokens_per_second: int | None = None  # prime-rl's, of the same shape
    peer_gibibytes: float | None = None
    least_gibibytes: float = 0.0  # of the card; on a smaller one the case is left out

    def too_large_for(self, gibibytes: float) -> str | None:
        """Return why a card with this much memory cannot take the case; None where it can."""
        if gibibytes >= self.least_gibibytes:
            return None
        return f"left out: it takes about {self.least_gibibytes:.0f} GiB, and this card has {gibibytes:.0f}"


KEPT = 53.0  # GiB that prime-rl takes for 16,384 tokens of this model with activations kept
CASES = {
    "rl": Case(
        title="RL update, 1 x 16,384, packed",
        mode="rl",
        sequences=1,
        length=16_384,
        layout="packed",
        peer_tokens_per_second=11_900,
        peer_gibibytes=12.5,
    ),
    "rl_deterministic": Case(
        title="RL update, 1 x 16,384, deterministic", mode="rl", sequences=1, length=16_384, deterministic=True
    ),
    "rl_short": Case(
        title="RL update, 32 x 512, activations kept",
        mode="rl",
        sequences=32,
        length=512,
        checkpointing=False,
        least_gibibytes=KEPT,
    ),
    "rl_spread": Case(title="RL update, 16 x 512 to 4,096, padded", mode="rl", sequences=16, length=4096, spread=True),
    "rl_spread_packed": Case(
        title="RL update, 16 x 512 to 4,096, packed",
        mode="rl",
        sequences=16,
        length=4096,
        spread=True,
        layout="packed",
    ),
    "sft": Case(title="SFT, 1 x 16,384", mode="sft", sequences=1, length=16_384),
    "sft_kept": Case(
        title="SFT, 1 x 16,384, activations kept",
        mode="sft",
        sequences=1,
        length=16_384,
        checkpointing=False,
        peer_tokens_per_second=25_490,
        peer_gibibytes=52.8,
        least_gibibytes=KEPT,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one case took."""

    title: str
    parameters: int
    tokens: int  # of an update
    seconds: float  # of an update, median
    tokens_per_second: float
    mfu: float  # by prime-rl's formula, over the peak of an H100 whatever the device is
    mfu_of_device: float | None  # the same over the device's own peak; None: not known
    gibibytes_allocated: float | None  # peak; None on a CPU
    gibibytes_reserved: float | None
    peer_tokens_per_second: int | None
    peer_gibibytes: float | None


def main() -> None:
    """One case, as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=[*CASES], required=True)
    parser.add_argument("--toy", action="store_true", help="a model and lengths that a CPU computes in a second")
    given = parser.parse_args()
    if given.toy:
        torch.set_num_threads(1)  # more would wait for each other, spinning
    print(json.dumps(asdict(measured(CASES[given.case], toy=given.toy))))


def mfu(arithmetic: Arithmetic, lengths: Sequence[int], tokens_per_second: float, peak: float = H100) -> float:
    """(6 N + 6 L d s) x tokens per second / peak, of sequences of these lengths."""
    return arithmetic.update([*lengths]) / sum(lengths) * tokens_per_second / peak


def measured(case: Case, *, toy: bool) -> Measured:
    """Time some updates, after some that warm up."""
    world, length = single_process(), case.length // 256 if toy else case.length
    compute_deterministically(case.deterministic)
    model = fresh(TOY if toy else QWEN3_0_6B)
    policy = Policy(model.to(world.device).eval(), dtype=torch.bfloat16)
    if case.checkpointing:
        checkpoint_activations(policy.model)
    lengths = [length * (1 + number % 8) // 8 if case.spread else length for number in range(case.sequences)]
    batch = made_up(lengths, model.config.vocab_size)
    update = (_rl if case.mode == "rl" else _sft)(policy, case, batch)
    seconds = _median(update, world.device)
    tokens = sum(lengths)
    on_gpu = world.device.type == "cuda"
    kind = kind_of(torch.cuda.get_device_name(world.device)) if on_gpu else None
    arithmetic = Arithmetic.of(model)
    return Measured(
        title=case.title,
        parameters=round(arithmetic.parameters),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        mfu=mfu(arithmetic, lengths, tokens / seconds),
        mfu_of_device=None if kind is None else mfu(arithmetic, lengths, tokens / seconds, kind.bfloat16),
        gibibytes_allocated=torch.cuda.max_memory_allocated(world.device) / GIBIBYTE if on_gpu else None,
        gibibytes_reserved=torch.cuda.max_memory_reserved(world.device) / GIBIBYTE if on_gpu else None,
        peer_tokens_per_second=case.peer_tokens_per_second,
        peer_gibibytes=case.peer_gibibytes,
    )


def fresh(shape: dict[str, int | bool]) -> Qwen3ForCausalLM:
    """Return a Qwen3 of this shape with random weights, the same each time."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**shape))


def made_up(lengths: Sequence[int], vocabulary: int) -> Batch:
    """Rollouts of one prompt token each; all the rest is trained on, so that the head has the most to do."""
    drawn = torch.Generator().manual_seed(0)
    ids = [torch.randint(vocabulary, (length,), generator=drawn).tolist() for length in lengths]
    trained = sum(lengths) - len(lengths)
    return Batch(
        sequences=TokenSequences.of(ids, [[False] + [True] * (length - 1) for length in lengths]),
        trajectories=torch.arange(len(lengths)),
        rollout_logprobs=torch.full((trained,), -12.0),
        positive=torch.ones(len(lengths), dtype=torch.bool),
        advantages=torch.randn(trained, generator=drawn),
    )


def _rl(policy: Policy, case: Case, batch: Batch) -> Callable[[int], object]:
    """The policy update of a step, as the stage train takes it."""
    training = Training.model_validate(
        {"prompts_per_step": case.sequences, "samples_per_prompt": 1, "learning_rate": 1e-6, "digests_every": 0}
        | {"gates": {"truncated": None}}
    )
    update = PolicyUpdate(
        policy=policy,
        reference=None,
        optimizer=adamw(policy.parameters(), training.weight_decay),
        algorithm=Algorithm(),
        training=training,
        budget=Budget(sequences=case.sequences, head_chunk_tokens=case.head_chunk, layout=case.layout),
        temperature=1.0,
        max_new_tokens=case.length,
        pad_token_id=0,
        world=single_process(),
    )
    return lambda step: update.run(step, batch)


def _sft(policy: Policy, case: Case, batch: Batch) -> Callable[[int], object]:
    """An update of supervised fine-tuning, as the stage sft takes it."""
    optimizer, layout = adamw(policy.parameters(), 0.01), prepare_layout(policy, case.layout, single_process())
    runtime = SftRuntime(micro_batch_size=case.sequences, head_chunk_tokens=case.head_chunk)

    def update(step: int) -> float:
        accumulate(policy, batch.sequences, runtime, layout=layout, pad_token_id=0, world=single_process())
        return apply_gradients(optimizer, 1e-6, 1.0)

    return update


def _median(update: Callable[[int], object], device: torch.device) -> float:
    """Seconds of an update, until the device has finished it: the median after the warm-up."""
    seconds = []
    for step in range(WARM_UP + MEASURED):
        begun = time.perf_counter()
        update(step)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[WARM_UP:])


if __name__ == "__main__":
    main()
