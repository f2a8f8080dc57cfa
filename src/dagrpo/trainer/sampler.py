"""What surrounds the updates: the first process samples, grades and records, the others give their parts of the weights."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from transformers import PreTrainedTokenizerBase

from dagrpo.algorithms.advantages import advantages_of
from dagrpo.checkpoints.gathered import GatheredWeights
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.console import Advance, progress
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.engine.client import RolloutClient
from dagrpo.rollout.engine.server import serving
from dagrpo.rollout.engine.weights import EngineFolder, engine_folder
from dagrpo.trainer.record import History
from dagrpo.trainer.metrics import step_metrics
from dagrpo.trainer.rollouts import Prompt, Rollouts, to_table
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.source import RolloutSource
from dagrpo.trainer.update import Updated

Report = Callable[[int, Mapping[str, float]], None]


class Turns(Protocol):
    """What a process does around the update of each step."""

    def collect(self, step: int) -> Any:
        """What the update is to read, as JSON can say it: see `Sampler.collect`; None where it comes from elsewhere."""

    def finish(self, updated: Updated) -> None:
        """Called after the update of the step that was collected."""


@contextmanager
def sampling(
    run: TrainingRun,
    prompts: list[Prompt],
    tokenizer: PreTrainedTokenizerBase,
    first: int,
    weights: GatheredWeights,
    report: Report,
) -> Iterator["Sampler"]:
    """A sampler whose engine holds the policy's weights; the engine is started for it and stopped after it."""
    with engine_folder(run.initial) as folder:
        weights.hand_to(folder.write)
        engine = serving(
            folder.path,
            run.runtime.engine,
            run.server_log,
            dtype=run.rollout.dtype,
            deterministic=run.rollout.deterministic,
        )
        with (
            engine as client,
            Grader(run.reward.verify_seconds) as grader,
            progress(f"train (seed {run.seed})", run.training.steps) as bar,
        ):
            client.update_weights(folder.path, "resumed")
            bar.advance(first)
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
            yield Sampler(run, source, client, folder, weights, report, bar)


class Sampler:
    """The first process: samples and grades, then hands the new weights to the engine and records the step."""

    def __init__(
        self,
        run: TrainingRun,
        source: RolloutSource,
        client: RolloutClient,
        folder: EngineFolder,
        weights: GatheredWeights,
        report: Report,
        bar: Advance,
    ) -> None:
        self._algorithm = run.algorithm
        self._history = History(run.state)
        self._source = source
        self._client = client
        self._folder = folder
        self._weights = weights
        self._report = report
        self._bar = bar

    def collect(self, step: int) -> dict[str, Any]:
        """Tokens of prompts and completions, and advantages, of the step numbered from 0."""
        self._clock = _Clock()
        self._rollouts = self._source.collect(step)
        self._clock.lap("seconds_rollout")
        rewards = self._rollouts.rewards
        self._advantages = advantages_of(rewards, self._rollouts.samples_per_prompt, self._algorithm.advantage)
        return {
            "prompts": [prompt.token_ids for prompt in self._rollouts.prompts],
            "completions": [completion.token_ids for completion in self._rollouts.completions],
            "advantages": self._advantages.tolist(),
        }

    def finish(self, updated: Updated) -> None:
        """Hand over the weights, keep what the step has produced, report its metrics."""
        step = self._rollouts.step + 1
        self._clock.lap("seconds_update")
        self._weights.hand_to(self._folder.write)
        self._client.update_weights(self._folder.path, f"step_{step}")
        self._clock.lap("seconds_weight_sync")
        metrics = step_metrics(self._rollouts, self._advantages, updated)
        logprobs = _per_completion(self._rollouts, updated.logprobs)
        self._history.add(step, to_table(self._rollouts, self._advantages, logprobs), metrics)
        self._clock.lap("seconds_record")
        self._report(step, metrics | self._clock.laps)
        self._bar.advance(1, f"reward {metrics['reward_mean']:.3f}")


@contextmanager
def following(weights: GatheredWeights) -> Iterator["Follower"]:
    """The same for the other processes, which give their parts of the weights when the first one starts its engine."""
    weights.hand_to(_nothing)
    yield Follower(weights)


class Follower:
    """A process that only makes updates, together with the others."""

    def __init__(self, weights: GatheredWeights) -> None:
        self._weights = weights

    def collect(self, step: int) -> None:
        """The first process tells what the update reads."""

    def finish(self, updated: Updated) -> None:
        """Give this process's parts of the weights."""
        self._weights.hand_to(_nothing)


def _nothing(weights: Tensors) -> None:
    """Work on the gathered weights is the first process's alone."""


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
    return [part.tolist() for part in torch.split(logprobs, lengths)]
