"""A policy to talk to, sampled as in its run's evaluation."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from dagrpo.api.policy import STEP, opened_policy
from dagrpo.chat.renderers import chat_format
from dagrpo.config.schema import read_params
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt, Trajectory
from dagrpo.core.types import Completion, Row
from dagrpo.engine.config import EngineConfig
from dagrpo.engine.interface import RolloutEngine
from dagrpo.evaluation.config import Sampling
from dagrpo.evaluation.sampling import SplitAttempts, attempt_unseen, evaluation_sampling, opened
from dagrpo.models.pictures import processor_of
from dagrpo.rollout.config import conversation_of
from dagrpo.rollout.prompts import PromptRenderer, read_split
from dagrpo.rollout.sampling import context_tokens, sampling_seed
from dagrpo.rollout.session import Session, SessionLimits
from dagrpo.utils.devices import visible_devices
from dagrpo.utils.files import read_object

RECORD = "completions.provenance.json"
PARAMS = Path("params.yaml")
READ = ("manifest.json", "test.parquet", "passages.parquet")  # of what the evaluation has read
SAMPLE = 0  # sample_index of a sampled answer
MOST_TURNS = 1 << 30
Result = TypeVar("Result")


class Policy:
    """An open policy, with its conversation of the page. One answer at a time."""

    def __init__(
        self, name: str, attempts: SplitAttempts, engine: RolloutEngine, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self.name = name
        self._attempts = attempts
        self._engine = engine
        self._tokenizer = tokenizer
        self._problems = read_split(attempts.split)
        self._renderer = PromptRenderer(tokenizer, attempts.conversation, processor_of(attempts.model))
        self._said: list[dict[str, Any]] = []
        self._numbers = count()
        self._one_at_a_time = threading.Lock()

    def problem(self, number: int) -> Row:
        """Return a problem of the test split; after the last one comes the first."""
        return self._problems[number % len(self._problems)]

    def forget(self) -> None:
        """Begin a new conversation."""
        with self._one_at_a_time:
            self._said.clear()

    def answer(self, text: str, *, greedy: bool) -> list[dict[str, Any]]:
        """Return the messages that follow a user's text: answers, calls of the task's tools, and their results.

        Raises UserError if the conversation is too long.
        """
        with self._one_at_a_time:
            said = [*self._said, {"role": "user", "content": text}]
            trajectory = self._attempt(said, greedy=greedy)
            new = [dict(message) for message in trajectory.messages] or [
                {"role": "assistant", "content": trajectory.text}
            ]
            self._said = [*said, *new]
            return new

    def _attempt(self, said: Sequence[dict[str, Any]], *, greedy: bool) -> Trajectory:
        first = self._problems[0]
        system = [message for message in first.prompt if message["role"] == "system"]
        row = replace(first, prompt=(*system, *said), images=(), interaction="", index=next(self._numbers))
        prompt = self._renderer.prompt(row.index, row)
        room = context_tokens(self._attempts.model, self._attempts.engine) - self._attempts.sampling.max_new_tokens
        if len(prompt.token_ids) > room:
            raise UserError(
                f"The conversation has {len(prompt.token_ids):,} tokens, and there is room for {room:,}: begin a new one."
            )
        sampling = replace(self._attempts.sampling, samples=0 if greedy else 1, greedy=greedy)
        attempts = replace(self._attempts, sampling=sampling)
        (trajectory,) = attempt_unseen([prompt], attempts, self._engine, self._tokenizer, what=f"serve {self.name}")
        return trajectory

    def session(self) -> Session:
        """Return a session for programs, which run tools by themselves. It holds all of their turns."""
        attempts = self._attempts
        row = replace(self._problems[0], prompt=(), images=(), tools=())
        sampling = replace(attempts.sampling, lockstep=False)

        async def complete(token_ids: tuple[int, ...], most: int) -> Completion:
            number = next(self._numbers)
            seed = sampling_seed(*attempts.seeds, "serve", number)
            return await self._engine.complete(
                sampling.request(token_ids, SAMPLE, seed, most), f"serve {number}", abortable=False
            )

        return Session(
            prompt=Prompt(index=0, row=row, text="", token_ids=()),
            chat=chat_format(self._tokenizer, attempts.conversation.chat),
            complete=complete,
            limits=SessionLimits(
                turns=MOST_TURNS,
                tokens=context_tokens(attempts.model, attempts.engine),
                new_tokens=sampling.max_new_tokens,
            ),
            seed=attempts.seeds[1],
            name=f"serve {self.name}",
        )


@contextmanager
def open_policies(run: Path, names: Sequence[str], task: str | None) -> Iterator[list[Policy]]:
    """Open policies of a run until the context ends. Raises UserError if an evaluation or a GPU is missing."""
    config = read_params(PARAMS).runtime.engine.model_copy(update={"replicas": 1, "own_gpus": False})
    _require_gpus(config, len(names))
    wanted = [
        _attempts(run, name, task, config.model_copy(update={"own_gpus": number > 0}))
        for number, name in enumerate(names)
    ]
    with ExitStack() as stack:
        wanted = [
            replace(own, model=stack.enter_context(opened_policy(run, name))) if STEP.fullmatch(name) else own
            for name, own in zip(names, wanted, strict=True)
        ]
        checkpoints = [stack.enter_context(opened(attempts)) for attempts in wanted]
        engines = call_together([checkpoint.engine for checkpoint in checkpoints])
        yield [
            Policy(name, attempts, engine, checkpoint.tokenizer)
            for name, attempts, engine, checkpoint in zip(names, wanted, engines, checkpoints, strict=True)
        ]


def call_together(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Return what the calls return, made at the same time in threads. Raises what the first to fail raises.

    Neither an error nor an interrupt waits for the others: they end with this process.
    """
    if len(calls) == 1:
        return [calls[0]()]
    results = [Future[Result]() for _ in calls]

    def settle(call: Callable[[], Result], result: Future[Result]) -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            result.set_exception(error)

    for each in zip(calls, results, strict=True):
        threading.Thread(target=settle, args=each, daemon=True).start()
    done, _ = wait(results, return_when=FIRST_EXCEPTION)
    for result in done:
        result.result()
    return [result.result() for result in results]


def _require_gpus(engine: EngineConfig, policies: int) -> None:
    gpus, needed = len(visible_devices()), policies * engine.tensor_parallel
    if 0 < gpus < needed:
        raise UserError(
            f"{policies} policies take {needed} GPUs, and {gpus} is visible: serve one with --policy trained."
        )
    if engine.servers and policies > 1:
        raise UserError("runtime.engine.servers hold one policy at a time: serve one with --policy trained.")


def _attempts(run: Path, name: str, task: str | None, engine: EngineConfig) -> SplitAttempts:
    """Return the attempts of a recorded evaluation, with the engine of params.yaml. Raises UserError listing the evaluations.

    A kept step's are those of the trained policy, whether or not it was evaluated.
    """
    evaluated = "trained" if STEP.fullmatch(name) else name
    records = {path.parts[-3]: path for path in sorted(run.glob(f"eval/*/{evaluated}/{RECORD}"))}
    if task not in records and (task or not records):
        there = f"it has those of {', '.join(records)}" if records else "it has none yet"
        raise UserError(f"{run} has no evaluation {task or 'of a task'} of the policy {evaluated}: {there}.")
    path = records[task] if task else next(iter(records.values()))
    record = read_object(path)
    inputs = [next(path for each in record["inputs"] if (path := Path(each)).name == name) for name in READ]
    if missing := [each for each in inputs if not each.exists()]:
        raise UserError(f"{missing[0]} is not there: restore it with `dvc pull`, or run its stage again.")
    rollout, sampling = record["params"]["rollout"], record["params"]["evaluation"]["sampling"]
    logs = Path("logs") / run.parents[1].name
    return SplitAttempts(
        model=inputs[0].parent,
        split=inputs[1],
        passages=inputs[2],
        conversation=conversation_of(rollout),
        sampling=evaluation_sampling(Sampling.model_validate(sampling), deterministic=rollout["deterministic"]),
        seeds=(sampling["seed"], record["seed"] or 0),
        engine=engine,
        dtype=rollout["dtype"],
        head_dtype=rollout["head_dtype"],
        server_log=logs / f"serve.{name}.server.log",
        agent_folder=logs / f"serve.{name}",
    )
