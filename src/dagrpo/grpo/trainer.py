"""The GRPO loop: sample, grade, update, hand over the weights; resumable after any step that was saved."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dagrpo.checkpoints.convert import load_model, save_model
from dagrpo.console import progress
from dagrpo.grpo import state
from dagrpo.grpo.advantages import advantages_of
from dagrpo.grpo.history import History
from dagrpo.grpo.metrics import step_metrics
from dagrpo.grpo.optimizer import adamw
from dagrpo.grpo.prompts import prompts_of, read_examples
from dagrpo.grpo.rollouts import Prompt, Rollouts, to_table
from dagrpo.grpo.source import RolloutSource
from dagrpo.grpo.sync import EngineFolder, engine_folder
from dagrpo.grpo.update import PolicyUpdate
from dagrpo.params.algorithm import Algorithm
from dagrpo.params.reward import Reward
from dagrpo.params.rollout import Rollout
from dagrpo.params.training import Training
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.client import RolloutClient
from dagrpo.rollout.server import serving

Report = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """Everything a run is a function of, and where it writes."""

    initial: Path  # folder of the sharded checkpoint to start from
    train_split: Path  # train.parquet
    seed: int
    rollout: Rollout
    reward: Reward
    algorithm: Algorithm
    training: Training
    state: Path  # resumable, not an output
    server_log: Path
    policy: Path  # output: folder of the trained sharded checkpoint
    metrics: Path  # output: metrics.parquet
    rollouts: Path  # output: rollouts/manifest.json


def train(run: TrainingRun, report: Report) -> None:
    """Train to the last step, from the newest state if there is one, and write the outputs.

    `report(step, metrics)` is called once per step executed here, timings included. ValueError when the data, the
    checkpoint, the engine or a saved state cannot be used.
    """
    with state.exclusive(run.state):
        _train(run, report)


def _train(run: TrainingRun, report: Report) -> None:
    torch.use_deterministic_algorithms(run.rollout.deterministic, warn_only=torch.cuda.is_available())
    model, tokenizer = _load(run)
    optimizer = adamw(model.parameters(), run.training.learning_rate, run.training.weight_decay)
    reference = copy.deepcopy(model).requires_grad_(False) if run.algorithm.kl_coefficient > 0 else None
    saved = state.latest(run.state)
    if saved is not None:
        state.load(saved, model, optimizer)
    first = saved.step if saved is not None else 0
    update = PolicyUpdate(
        model=model,
        reference=reference,
        optimizer=optimizer,
        algorithm=run.algorithm,
        training=run.training,
        temperature=run.rollout.temperature,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
    )
    history = History(run.state)
    prompts = _prompts(run, tokenizer)  # before the engine starts: a bad row is an error at once
    if first < run.training.steps:
        with _engine(run, model) as (client, folder), Grader(run.reward.verify_seconds) as grader:
            source = RolloutSource(
                client=client,
                grader=grader,
                tokenizer=tokenizer,
                prompts=prompts,
                rollout=run.rollout,
                reward=run.reward,
                training=run.training,
                seed=run.seed,
            )
            _Loop(run, model, optimizer, update, source, client, folder, history, report).run(first)
    history.write_metrics(run.training.steps, run.metrics)
    history.write_rollouts(run.training.steps, run.rollouts)
    save_model(model, run.initial, run.policy)


def _load(run: TrainingRun) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load_model(run.initial, torch.float32)
    model.eval()  # no dropout anywhere: the policy that is updated is the policy that sampled
    return model.to(device), tokenizer


@contextmanager
def _engine(run: TrainingRun, model: PreTrainedModel) -> Iterator[tuple[RolloutClient, EngineFolder]]:
    dtype = getattr(torch, run.rollout.engine.dtype)
    with engine_folder(run.initial, dtype) as folder:
        folder.write(model)
        with serving(
            folder.path, run.rollout.engine, run.server_log, deterministic=run.rollout.deterministic
        ) as client:
            client.update_weights(folder.path, "resumed")
            yield client, folder


def _prompts(run: TrainingRun, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    examples = read_examples(run.train_split)
    prompts = prompts_of(examples, tokenizer, run.training, run.train_split)
    if len(prompts) < run.training.prompts_per_step:
        raise ValueError(
            f"{run.train_split} has {len(prompts)} problems to train on ({len(examples)} rows, less those outside "
            f"training.min_pass_rate to max_pass_rate), fewer than training.prompts_per_step "
            f"({run.training.prompts_per_step}): lower the latter, or widen the range."
        )
    return prompts


class _Loop:
    def __init__(
        self,
        run: TrainingRun,
        model: PreTrainedModel,
        optimizer: torch.optim.AdamW,
        update: PolicyUpdate,
        source: RolloutSource,
        client: RolloutClient,
        folder: EngineFolder,
        history: History,
        report: Report,
    ) -> None:
        self._setup = run
        self._model = model
        self._optimizer = optimizer
        self._update = update
        self._source = source
        self._client = client
        self._folder = folder
        self._history = history
        self._report = report

    def run(self, first: int) -> None:
        steps = self._setup.training.steps
        with progress(f"train (seed {self._setup.seed})", steps) as bar:
            bar.advance(first)
            for step in range(first, steps):
                metrics = self._step(step)
                if (step + 1) % self._setup.training.save_every == 0 or step + 1 == steps:
                    state.save(self._setup.state, step + 1, self._model, self._optimizer)
                bar.advance(1, f"reward {metrics['reward_mean']:.3f}")

    def _step(self, step: int) -> dict[str, float]:
        clock = _Clock()
        rollouts = self._source.collect(step)
        clock.lap("seconds_rollout")
        advantages = advantages_of(rollouts.rewards, rollouts.samples_per_prompt, self._setup.algorithm)
        updated = self._update.run(rollouts, advantages)
        clock.lap("seconds_update")
        self._folder.write(self._model)
        self._client.update_weights(self._folder.path, f"step_{step + 1}")
        clock.lap("seconds_weight_sync")
        metrics = step_metrics(rollouts, advantages, updated)
        table = to_table(rollouts, advantages, _per_completion(rollouts, updated.logprobs))
        self._history.add(step + 1, table, metrics)
        clock.lap("seconds_record")
        self._report(step + 1, metrics | clock.laps)
        return metrics


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now


def _per_completion(rollouts: Rollouts, logprobs: torch.Tensor) -> list[list[float]]:
    """Cut the flat [tokens] logprobs at the ends of completions."""
    lengths = [len(completion.token_ids) for completion in rollouts.completions]
    return [part.tolist() for part in torch.split(logprobs.cpu(), lengths)]
