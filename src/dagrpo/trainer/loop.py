"""The GRPO loop: sample, grade, update, hand over the weights; resumable after any step that was saved.

Every process that trains the policy runs it. The first one also samples (see sampler.py), and tells the others what.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from transformers import PreTrainedTokenizerBase

from dagrpo.checkpoints.gathered import GatheredWeights
from dagrpo.checkpoints.modules import load_tokenizer
from dagrpo.checkpoints.sharded import save_sharded
from dagrpo.distributed import World
from dagrpo.errors import UserError
from dagrpo.trainer import state
from dagrpo.trainer.packing import TokenSequences
from dagrpo.trainer.record import History
from dagrpo.trainer.optimizer import adamw
from dagrpo.trainer.policy import Policy
from dagrpo.trainer.prompts import prompts_of, read_examples
from dagrpo.trainer.rollouts import Prompt
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.sampler import Report, Turns, following, sampling
from dagrpo.trainer.sharding import load_policy
from dagrpo.trainer.update import PolicyUpdate


def train(run: TrainingRun, report: Report, world: World) -> None:
    """Train to the last step, from the newest state if there is one, and write the outputs.

    `report(step, metrics)` is called in the first process, once per step executed here, timings included. UserError
    when the data, the checkpoint, the engine or a saved state cannot be used.
    """
    with state.exclusive(run.state) if world.is_rank_zero else nullcontext():
        _train(run, report, world)


def _train(run: TrainingRun, report: Report, world: World) -> None:
    torch.use_deterministic_algorithms(run.rollout.deterministic, warn_only=torch.cuda.is_available())
    tokenizer = load_tokenizer(run.initial)
    prompts = _prompts(run, tokenizer) if world.is_rank_zero else []  # a bad row is an error before anything starts
    policy = load_policy(run.initial, world)
    optimizer = adamw(policy.parameters(), run.training.learning_rate, run.training.weight_decay)
    first = _resume(run, policy, optimizer, world)
    if first < run.training.steps:
        update = _update(run, policy, optimizer, tokenizer, world)
        weights = GatheredWeights(policy.model, getattr(torch, run.rollout.dtype), world)
        if world.is_rank_zero:
            turns: AbstractContextManager[Turns] = sampling(run, prompts, tokenizer, first, weights, report)
        else:
            turns = following(weights)
        with turns as taken:
            for step in range(first, run.training.steps):
                _step(step, taken, update, world)
                if (step + 1) % run.runtime.training.save_every == 0 or step + 1 == run.training.steps:
                    state.save(run.state, step + 1, policy.model, optimizer, world)
    if world.is_rank_zero:
        history = History(run.state)
        history.write_metrics(run.training.steps, run.metrics)
        history.write_rollouts(run.training.steps, run.rollouts)
    save_sharded(policy.model, run.initial, run.policy, world)


def _step(step: int, turns: Turns, update: PolicyUpdate, world: World) -> None:
    collected = world.broadcast(turns.collect(step))
    sequences = TokenSequences(prompts=collected["prompts"], completions=collected["completions"])
    turns.finish(update.run(step, sequences, torch.tensor(collected["advantages"])))


def _resume(run: TrainingRun, policy: Policy, optimizer: torch.optim.AdamW, world: World) -> int:
    """Load the newest state, if there is one; returns how many steps are finished."""
    newest = state.latest(run.state)
    finished = world.broadcast(newest.step if newest is not None else 0)
    if finished:
        state.load(state.at(run.state, finished), policy.model, optimizer)
    return int(finished)


def _update(
    run: TrainingRun,
    policy: Policy,
    optimizer: torch.optim.AdamW,
    tokenizer: PreTrainedTokenizerBase,
    world: World,
) -> PolicyUpdate:
    has_reference = run.algorithm.kl_coefficient > 0
    return PolicyUpdate(
        policy=policy,
        reference=load_policy(run.initial, world).requires_grad_(False) if has_reference else None,
        optimizer=optimizer,
        algorithm=run.algorithm,
        training=run.training,
        micro_batch_size=run.runtime.training.micro_batch_size,
        temperature=run.rollout.temperature,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
        max_new_tokens=run.rollout.max_new_tokens,
        world=world,
    )


def _prompts(run: TrainingRun, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    examples = read_examples(run.train_split)
    prompts = prompts_of(examples, tokenizer, run.training, run.train_split)
    if len(prompts) < run.training.prompts_per_step:
        raise UserError(
            f"{run.train_split} has {len(prompts)} problems to train on ({len(examples)} rows, less those outside "
            f"training.min_pass_rate to max_pass_rate), fewer than training.prompts_per_step "
            f"({run.training.prompts_per_step}): lower the latter, or widen the range."
        )
    return prompts
