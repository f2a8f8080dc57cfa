"""What a step costs between engine and update, part by part, on a scripted engine and a policy of one number.

    OMP_NUM_THREADS=1 python -m benchmarks.scale step --completions 512 1024 2048 > table.md

Completions have 4,096 tokens, groups 16 samples, the step four mini-batches. Each size is a process of its own. The engine's answers
are SGLang's JSON, parsed anew for each request; seconds are processor time on one core, MiB the largest resident memory of the part.
Left out are HTTP, the model's forward and backward pass with the loss, and the rollout table (`--rows` measures it too).
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from benchmarks.scale.measuring import exponent, markdown

from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import Completion, Row, SamplingRequest, ScoringRequest
from dagrpo.engine.interface import Aborted, HeldWeights, WeightVersion
from dagrpo.engine.sglang.answers import completions_of
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.config import Rollout
from dagrpo.rollout.open_agent import AgentEnv, open_agent
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.batches.rollouts import broadcast_batch
from dagrpo.trainer.checks.logprob_agreement import require_the_policys_rollouts
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.metrics.step import rollout_rows, step_metrics
from dagrpo.trainer.model.optimizer import adamw
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler
from dagrpo.trainer.sampling.step_sampler import StepSampler
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.distributed import single_process

SAMPLES, TOKENS, PROMPT = 16, 4096, 150  # per prompt, per completion, of a prompt
ANSWERS = 16  # different ones of the engine
VERSION = WeightVersion(name="step_0", sent="step_0")
TEXT = "The sum of the digits is 12, so we try again. #### "


def table(arguments: Sequence[str]) -> str:
    """Measure a step of each size and return the table, with the exponent of each part in its last column."""
    parser = argparse.ArgumentParser(
        prog="step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--completions", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each completion")
    parser.add_argument("--rows", action="store_true", help="measure the rollout table, too")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # size, in this process
    given = parser.parse_args(arguments)
    if given.one:
        return json.dumps(parts_of(given.completions[0], given.tokens, rows=given.rows))
    rest = ["--tokens", str(given.tokens), *(["--rows"] if given.rows else [])]
    measured = [_in_a_process(["--completions", str(size), *rest]) for size in given.completions]
    lines = []
    for part in measured[0]:
        seconds = [each[part][0] for each in measured]
        cells = [f"{each[part][0]:.2f} s, {each[part][1]:.0f} MiB" for each in measured]
        lines.append([part, *cells, f"{exponent(given.completions, [max(one, 1e-3) for one in seconds]):.2f}"])
    return markdown(("part", *(f"{size:,}" for size in given.completions), "exponent of seconds"), lines)


def _in_a_process(arguments: Sequence[str]) -> dict[str, tuple[float, float]]:
    command = [sys.executable, "-m", "benchmarks.scale", "step", "--one", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, tuple[float, float]] = json.loads(done.stdout.splitlines()[-1])
    return measured


class Parts:
    """Processor seconds and peak memory of the parts of a step."""

    def __init__(self) -> None:
        self.costs: dict[str, tuple[float, float]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the block."""
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        start = time.process_time()
        yield
        self.costs[name] = (time.process_time() - start, _peak())

    def total(self) -> dict[str, tuple[float, float]]:
        """Return all parts with their sum and the highest peak."""
        seconds, peaks = zip(*self.costs.values(), strict=True)
        return self.costs | {"all": (sum(seconds), max(peaks))}


def _peak() -> float:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


class ScriptedEngine:
    """Engine that gives one of a few completions for each request, parsed before."""

    def __init__(self, tokenizer: Any, tokens: int) -> None:
        self._tokens = tokens
        self._answers = [json.dumps([_reply(tokenizer, number, tokens)]).encode() for number in range(ANSWERS)]
        self._completions: dict[int, Completion] = {}
        self._asked = 0

    def parsed(self, number: int, prompt: Prompt) -> None:
        """Parse one of the answers."""
        request = SamplingRequest(
            input_ids=prompt.token_ids, seed=0, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=self._tokens
        )
        data = self._answers[number % ANSWERS]
        (self._completions[number % ANSWERS],) = completions_of(data, [request], "the engine", VERSION)

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        """Return the next completion."""
        await asyncio.sleep(0)
        self._asked += 1
        return self._completions[self._asked % len(self._completions)]

    def generate(self, requests: Sequence[SamplingRequest], **waves: Any) -> list[Completion]:
        raise NotImplementedError("the step is free-running")

    async def abort(self, sessions: Collection[str]) -> list[Aborted]:
        return []

    def score(self, requests: Sequence[ScoringRequest], *, lockstep: bool) -> list[tuple[float, ...]]:
        raise NotImplementedError("there is no teacher")

    def interrupt(self) -> None:
        """Nobody waits."""

    def load(self, weights: Tensors, version: str) -> None:
        """There are none."""

    def release_memory(self) -> None:
        """It takes none."""

    def digests(self) -> list[HeldWeights]:
        return []


def _reply(tokenizer: Any, number: int, tokens: int) -> dict[str, Any]:
    """Return an answer of SGLang: a text that ends with a number, right in every other answer."""
    rng = np.random.default_rng(number)
    words = rng.integers(97, 123, tokens, dtype=np.uint8).tobytes().decode()
    ids = tokenizer((words + TEXT + str(number % 2))[-tokens:], add_special_tokens=False)["input_ids"]
    logprobs = (-rng.exponential(0.3, len(ids))).astype(np.float32).tolist()
    return {
        "text": "",
        "output_ids": ids,
        "meta_info": {
            "finish_reason": {"type": "stop"},
            "weight_version": VERSION.sent,
            "output_token_logprobs": [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)],
        },
    }


class OneNumber(torch.nn.Module):
    """Policy whose logprobs depend on one number, in place of a model."""

    tower = None

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(1, 1, bias=False)
        self.model.config = SimpleNamespace()  # type: ignore[assignment]

    def forward(self, batch: Any, temperature: float, extras: Any, head_chunk_tokens: int | None) -> Any:
        """Return (logprobs, entropy, collision), all [tokens]."""
        logprobs = self.model.weight[0, 0] * 1e-6 - batch.targets.float() * 2e-3
        return logprobs, torch.ones_like(logprobs).detach(), torch.zeros_like(logprobs).detach()

    def take_packed(self) -> None:
        """Take packed rows."""

    def forget_pictures(self) -> None:
        """Forget none."""


def parts_of(completions: int, tokens: int, *, rows: bool) -> dict[str, tuple[float, float]]:
    """Measure the parts of one step in this process."""
    torch.set_num_threads(1)
    parts, training = Parts(), _training(completions)
    tokenizer = character_tokenizer(tokens + 2 * PROMPT)
    with TemporaryDirectory() as folder:
        return _measured(parts, training, tokenizer, tokens, Path(folder), rows=rows)


def _measured(
    parts: Parts, training: Training, tokenizer: Any, tokens: int, state: Path, *, rows: bool
) -> dict[str, tuple[float, float]]:
    rollout = Rollout(deterministic=False, max_new_tokens=tokens)
    engine, prompts = ScriptedEngine(tokenizer, tokens), _prompts(tokenizer, rollout, training.prompts_per_step)
    env = AgentEnv(folder=state, passages=None, max_new_tokens=tokens, context_tokens=tokens + 2 * PROMPT)
    with Grader(1.0) as grader, open_agent(rollout, tokenizer, (), env) as agent:
        sampler = StepSampler(
            engine=engine,
            agent=agent,
            grader=grader,
            prompts=prompts,
            prompt_sampler=PromptSampler(prompts, training, 0),
            rollout=rollout,
            reward=Reward(),
            training=training,
            seed=0,
            state=state,
        )
        with parts.part("answers parsed"):
            for number in range(training.prompts_per_step * SAMPLES):
                engine.parsed(number, prompts[0])
        with parts.part("trajectories and grades"):
            rollouts = sampler.sample(0, Clock())
    del sampler, agent
    with parts.part("batch"):
        batch = broadcast_batch(rollouts, single_process())
    policy = _update(training, tokens)
    with parts.part("before the update"):
        before = policy.before(batch)
    with parts.part("advantages"):
        advantages = policy.advantages(rollouts, before)
    with parts.part("micro-batches"):
        stats = policy.run(0, replace(batch, advantages=advantages), before)
    del before
    gates = training.gates.model_copy(update={"outside_share": 1.0})
    with parts.part("logprobs compared"):
        require_the_policys_rollouts(batch, stats.logprobs, gates, dtype="bfloat16", state=state, step=1, staleness=1)
    rollouts = replace(rollouts, advantages=advantages)
    with parts.part("metrics"):
        step_metrics(rollouts, stats)
    if rows:
        with parts.part("rollout table"):
            rollout_rows(rollouts, stats.logprobs)
    return parts.total()


def _training(completions: int) -> Training:
    batch = {"prompts_per_step": completions // SAMPLES, "samples_per_prompt": SAMPLES, "mini_batches": 4}
    return Training.model_validate(batch | {"digests_every": 0, "gates": {"coincidence": 1e-6}})


def _prompts(tokenizer: Any, rollout: Rollout, count: int) -> list[Prompt]:
    renderer = PromptRenderer(tokenizer, rollout)
    return [renderer.prompt(index, _row(index)) for index in range(count)]


def _row(index: int) -> Row:
    question = f"{index} ".ljust(PROMPT, "q")
    return Row(
        task="made_up",
        split="train",
        index=index,
        prompt=({"role": "user", "content": question},),
        question=question,
        answer="#### 1",
        ground_truth="1",
        data_source="benchmark",
    )


def _update(training: Training, tokens: int) -> PolicyUpdate:
    policy = cast(Policy, OneNumber())
    update = PolicyUpdate(
        policy=policy,
        reference=None,
        optimizer=adamw(policy.parameters(), 0.0),
        algorithm=Algorithm(),
        training=training,
        budget=Budget(sequences=4, tokens=4 * (tokens + 2 * PROMPT), layout="packed"),
        temperature=1.0,
        max_new_tokens=tokens,
        pad_token_id=0,
        world=single_process(),
    )
    update.objective.loss = _no_loss  # type: ignore[method-assign, assignment]
    return update


def _no_loss(tokens: TokenBatch, *_: Any, counts: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return tokens.logprobs.sum(), {}
