"""Stage `sample`: a checkpoint completes every problem of a test split, once greedily and k times sampled.

Grades nothing: `score` does that from what is written here, as often as one likes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from dagrpo.checkpoints.folder import require_chat_template, require_format, require_tokenizer
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.modules import load_tokenizer
from dagrpo.console import progress
from dagrpo.errors import UserError
from dagrpo.evaluation.tables import COMPLETIONS, GREEDY
from dagrpo.files import read_json, read_parquet
from dagrpo.params.evaluation import Sampling
from dagrpo.params.runtime import Engine
from dagrpo.records import Completion, Example, SamplingRequest
from dagrpo.rendering import completion_text, render
from dagrpo.rollout.engine.server import serving
from dagrpo.rollout.seeds import sampling_seed
from dagrpo.tasks.schema import from_table, require_single_turn

CHUNKS_IN_FLIGHT = 4  # when nothing is in lockstep, a long chunk keeps the engine full while its last requests finish


class Client(Protocol):
    """The one thing this stage asks of an engine."""

    def generate(self, requests: Sequence[SamplingRequest], *, lockstep: bool) -> list[Completion]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRun:
    """Everything a run of the stage is a function of, and where the server's log goes."""

    model: Path  # folder of the Hugging Face checkpoint
    test_split: Path  # test.parquet
    seed: int
    sampling: Sampling
    engine: Engine
    dtype: str  # of the engine
    deterministic: bool
    server_log: Path
    greedy: bool = True  # one completion at temperature 0 per problem, besides the sampled ones
    limit_key: str = "evaluation.sampling.max_new_tokens"  # the parameter that bounds a completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One row of test.parquet, rendered by the policy's chat template."""

    index: int
    example: Example
    prompt: str
    prompt_ids: tuple[int, ...]  # [prompt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One completion to ask for."""

    problem: Problem
    sample_index: int
    request: SamplingRequest


def sample(run: SamplingRun) -> pa.Table:
    """The completions table (columns as in COMPLETIONS), problems in order, the greedy completion of each first.

    UserError when the checkpoint does not match its manifest, a row cannot be used, or the server fails.
    """
    tokenizer = open_checkpoint(run.model)
    problems = read_problems(run, tokenizer)
    with serving(run.model, run.engine, run.server_log, dtype=run.dtype, deterministic=run.deterministic) as client:
        return complete(client, problems, tokenizer, run)


def open_checkpoint(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint that is what its manifest says; UserError when it cannot be sampled from."""
    require_format(folder, verify(folder), "huggingface")
    require_tokenizer(folder)
    require_chat_template(folder)
    return load_tokenizer(folder)


def read_problems(run: SamplingRun, tokenizer: PreTrainedTokenizerBase) -> list[Problem]:
    """The test split rendered; UserError names a row that leaves no room for its completion."""
    examples = from_table(read_parquet(run.test_split), run.test_split)[: run.sampling.max_problems]
    if not examples:
        raise UserError(f"{run.test_split} has no rows: choose experiment.evaluate tasks that have a test split.")
    require_single_turn(examples, run.test_split)
    room = min(_context_length(run.model), run.engine.max_total_tokens)
    problems = []
    for index, example in enumerate(examples):
        prompt, prompt_ids = render(tokenizer, example.prompt)
        if len(prompt_ids) + run.sampling.max_new_tokens > room:
            raise UserError(
                f"{run.test_split} row {index}: the prompt has {len(prompt_ids)} tokens and "
                f"{run.limit_key} is {run.sampling.max_new_tokens}, but model and engine hold {room}: "
                "lower it, or leave the row out."
            )
        problems.append(Problem(index=index, example=example, prompt=prompt, prompt_ids=prompt_ids))
    return problems


def _context_length(model: Path) -> int:
    config: dict[str, Any] = read_json(model / "config.json")
    return int(config.get("text_config", config).get("max_position_embeddings", 1 << 30))


def draws_of(problem: Problem, sampling: Sampling, seed: int, *, greedy: bool = True) -> list[Draw]:
    """The greedy request of one problem if asked for, then its k sampled ones, each with a seed of its own."""
    return [
        Draw(
            problem=problem,
            sample_index=index,
            request=SamplingRequest(
                input_ids=problem.prompt_ids,
                seed=sampling_seed(sampling.seed, seed, problem.example.task, problem.index, index),
                temperature=0.0 if index == GREEDY else sampling.temperature,
                top_p=1.0 if index == GREEDY else sampling.top_p,
                top_k=-1 if index == GREEDY else sampling.top_k,
                max_new_tokens=sampling.max_new_tokens,
            ),
        )
        for index in range(GREEDY if greedy else 0, sampling.samples)
    ]


def complete(
    client: Client, problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, run: SamplingRun
) -> pa.Table:
    """Ask for every draw of every problem. In lockstep a chunk is one batch, so its size is part of the result."""
    draws = [draw for problem in problems for draw in draws_of(problem, run.sampling, run.seed, greedy=run.greedy)]
    size = run.engine.max_running_requests * (1 if run.deterministic else CHUNKS_IN_FLIGHT)
    completions: list[Completion] = []
    with progress(f"sample {problems[0].example.task} (seed {run.seed})", len(draws)) as bar:
        for chunk in _chunks(draws, size):
            completions += client.generate([draw.request for draw in chunk], lockstep=run.deterministic)
            bar.advance(len(chunk), note=f"{sum(len(c.token_ids) for c in completions):,} tokens")
    rows = [_row(draw, completion, tokenizer) for draw, completion in zip(draws, completions, strict=True)]
    return pa.Table.from_pylist(rows, schema=COMPLETIONS)


def _chunks(draws: Sequence[Draw], size: int) -> Iterator[Sequence[Draw]]:
    for start in range(0, len(draws), size):
        yield draws[start : start + size]


def _row(draw: Draw, completion: Completion, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    example = draw.problem.example
    return {
        "task": example.task,
        "problem_index": draw.problem.index,
        "sample_index": draw.sample_index,
        "prompt": draw.problem.prompt,
        "completion": completion_text(tokenizer, completion.token_ids),
        "completion_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "finish_reason": completion.finish_reason,
        "ground_truth": example.ground_truth,
        "verifier": example.verifier,
        "question": example.question,
        "sampling_seed": draw.request.seed,
    }
