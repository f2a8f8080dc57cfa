"""A few updates on made-up rollouts, in the process that calls it or in each of several.

`python -m dagrpo.pipeline.launch N tests/trainer/updates.py INITIAL OUT FIRST STEPS 0 [--copies COPIES]` does what `run` does.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.trainer import vision

from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.safetensors_file import write_safetensors
from dagrpo.checkpoints.sharded import save_sharded
from dagrpo.core.plugin_sections import Choice
from dagrpo.models.pictures import PictureProcessor
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.config.runtime import Layout
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.fsdp import load_policy, load_reference
from dagrpo.trainer.model.optimizer import adamw
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.vision_tower import Vision
from dagrpo.trainer.state import states, tensors
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.distributed import World, process_group

TRAINING = Training.model_validate(
    {
        "prompts_per_step": 6,
        "samples_per_prompt": 4,
        "mini_batches": 2,
        "learning_rate": 1e-2,
    }
)
MICRO_BATCH_SIZE = 3
ALGORITHM = Algorithm.model_validate(
    {"kl": {"coefficient": 0.1}, "loss": {"name": "ppo_clip", "clip_low": 0.01, "clip_high": 0.01}}
)


def rollouts(step: int) -> Batch:
    """24 trajectories of one to seven tokens at most: of the steps 1 and 2 some are left out, and some have two samples.

    Both make ranks that have less to do than others, or nothing; step 2 has nothing at all for the second mini-batch.
    """
    drawn = torch.Generator().manual_seed(step)
    prompts = [torch.randint(3, 60, (2 + row // 4,), generator=drawn).tolist() for row in range(24)]
    completions = [torch.randint(3, 60, (1 + (row * 5) % 7,), generator=drawn).tolist() for row in range(24)]
    advantages = torch.linspace(-1.5, 1.5, 24).roll(step)
    places = (list(range(24)), [0, 1, 2, 2, 3, 5, 6, 8, 9, 10, 11, 13, 13], [0, 1, 2, 3, 3, 3, 3, 7, 8, 9, 11])[
        step % 3
    ]
    return batch_of(prompts[: len(places)], completions[: len(places)], advantages[places], places=places)


def with_pictures(batch: Batch, processor: PictureProcessor) -> Batch:
    """The same rollouts, of which some show one picture and some two. Some micro-batches show none."""
    sequences, rows = batch.sequences, []
    parts = torch.split(sequences.token_ids, sequences.lengths.tolist())
    masks = torch.split(sequences.loss_mask, sequences.lengths.tolist())
    for number, (token_ids, mask) in enumerate(zip(parts, masks, strict=True)):
        files = [(vision.SMALL,), (), (vision.TALL, vision.WIDE)][number // 4 % 3]
        tokens = processor.tokens
        shown = processor.expanded([tokens.start, tokens.image, tokens.end] * len(files), files)
        rows.append(([*shown, *token_ids.tolist()], [False] * len(shown) + mask.tolist(), files))
    ids, loss_mask, pictures = zip(*rows, strict=True)
    return replace(batch, sequences=TokenSequences.of(ids, loss_mask, pictures))


def batch_of(
    prompts: list[list[int]],
    completions: list[list[int]],
    advantages: torch.Tensor,
    places: Sequence[int] | None = None,
) -> Batch:
    """Prompts and completions as the update reads them; the engine's logprobs are all -1. One trajectory each, or `places`.

    advantages: [completions], above 0 where the answer is right.
    """
    pairs = list(zip(prompts, completions, strict=True))
    return Batch(
        sequences=TokenSequences.of(
            [[*prompt, *completion] for prompt, completion in pairs],
            [[False] * len(prompt) + [True] * len(completion) for prompt, completion in pairs],
        ),
        trajectories=torch.tensor(places or range(len(pairs))),
        rollout_logprobs=torch.full((sum(map(len, completions)),), -1.0),
        positive=advantages > 0,
        advantages=advantages.repeat_interleave(torch.tensor([len(completion) for completion in completions])),
    )


def squares(batch: TokenBatch, config: Choice) -> TokenLoss:
    """No loss at all; it measures the square of each sequence's number of tokens."""
    return TokenLoss(per_token=0 * batch.logprobs, metrics={"squares": batch.sequence.bincount()[batch.sequence].sum()})


SQUARES = Loss(config=Choice, function=squares)


def update_of(policy: Policy, world: World, budget: Budget, initial: Path | None = None, **given: Any) -> PolicyUpdate:
    """An update of `rollouts`; with `initial`, beside that checkpoint as the reference."""
    usual = {
        "reference": None if initial is None else load_reference(initial, world, policy),
        "optimizer": adamw(policy.parameters(), 0.01),
        "algorithm": Algorithm() if initial is None else ALGORITHM,
        "training": TRAINING,
        "temperature": 0.9,
        "max_new_tokens": 7,
        "pad_token_id": 0,
    }
    return PolicyUpdate(policy=policy, world=world, budget=budget, **usual | given)


def weight_sum(policy: Policy, world: World) -> float:
    """Return the magnitudes of all weights, added up over all ranks."""
    own = (p.to_local() if hasattr(p, "to_local") else p for p in policy.parameters())
    return float(world.all_reduce(torch.stack([part.detach().double().abs().sum() for part in own]).sum().cpu()))


@contextmanager
def counted() -> Iterator[list[int]]:
    """Yield the elements of each reduce-scatter, which is how FSDP adds gradients up."""
    sizes: list[int] = []
    reduce = dist.reduce_scatter_single

    def noted(**given: Any) -> Any:
        sizes.append(given["input"].numel())
        return reduce(**given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "reduce_scatter_single", noted)
        yield sizes


def run(
    world: World,
    initial: Path,
    out: Path,
    first: int = 0,
    steps: int = 3,
    *,
    kind: Vision | None = None,
    rank: int = 0,
    head_chunk_tokens: int | None = None,
    activation_checkpointing: bool = False,
    layout: Layout = "padded",
) -> list[dict[str, Any]]:
    """Train the checkpoint `initial` from step `first` (0, or one whose state is in `out`) on; return what the steps saw.

    Writes out/policy, out/engine, out/seen.json and states. `rank`: of an adapter that is trained. With `kind` the checkpoint takes
    pictures, and the rollouts show some.
    """
    out.mkdir(parents=True, exist_ok=True)
    processor = None if kind is None else PictureProcessor.of(initial)
    lora = Lora(rank=rank, alpha=8, vision=kind == "trained" and rank > 0)
    policy = load_policy(
        initial, world, kind or "trained", lora, seed=5, activation_checkpointing=activation_checkpointing
    )
    optimizer = adamw(policy.parameters(), 0.01)
    if first:
        tensors.load(states.at(out / "states", first), policy.model, optimizer)
    budget = Budget(sequences=MICRO_BATCH_SIZE, head_chunk_tokens=head_chunk_tokens, layout=layout)
    update = update_of(policy, world, budget, initial, optimizer=optimizer)
    seen: list[dict[str, Any]] = []
    for step in range(first, steps):
        stats = update.run(step, rollouts(step) if processor is None else with_pictures(rollouts(step), processor))
        seen.append({"loss": stats.loss, "kl": stats.kl, "entropy": stats.entropy, "norm": stats.grad_norm})
        seen[-1] |= {"clipped": stats.metrics["clip_fraction"], "logprobs": stats.logprobs.tolist()}
        tensors.save(out / "states", step + 1, policy.model, optimizer, world)
    _write_for_the_engine(out / "engine", GatheredWeights(policy.model, torch.bfloat16, world), world)
    save_sharded(policy.model, initial, out / "policy", world)
    if world.is_rank_zero:
        (out / "seen.json").write_text(json.dumps(seen))
    return seen


def _write_for_the_engine(folder: Path, weights: GatheredWeights, world: World) -> None:
    if not world.is_rank_zero:
        weights.give_parts()
        return
    folder.mkdir(parents=True, exist_ok=True)
    with weights.reading() as weights_read:
        write_safetensors(folder / "model.safetensors", weights_read, {"format": "pt"})


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    given_initial, given_out, given_first, given_steps, _, *copies = sys.argv[1:]
    with process_group(copies=int(copies[1]) if copies else 1) as joint:
        run(joint, Path(given_initial), Path(given_out), int(given_first), int(given_steps))
