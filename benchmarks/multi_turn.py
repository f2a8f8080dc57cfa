"""Conversations of several turns on the real server: our loop, against sending each whole conversation to its chat endpoint.

    PYTHONPATH=. python benchmarks/multi_turn.py --trajectories 32 --turns 4

Ours extends the tokens of the turn before, in waves and free-running. The peer sends all messages again at every turn to
/v1/chat/completions of the same model, as many at a time; that server renders and tokenizes them. Both have SGLang's cache.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import torch
from tests.rollout.single_turns import single_turns

from dagrpo.core.types import Row
from dagrpo.engine import open_engine, sglang
from dagrpo.engine.sglang import command
from dagrpo.engine.sglang import server as engine_server
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rollout.collect import collect
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.rollout.sampling import Sampling
from dagrpo.tools.simulated_users import Interaction

CONTEXT = 4096
PARAMS = sglang.Config(start_timeout=300, request_timeout=300)
TURNS = 4


def main() -> None:
    global TURNS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=32)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    TURNS = options.turns
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny"
        make_fresh(model, Fresh(max_position_embeddings=CONTEXT), torch.float32)
        waves, free = _ours(model, options.trajectories, options.tokens)
        chat = _through_the_chat_endpoint(model, options.trajectories, options.tokens)
    made = options.trajectories * options.turns
    for name, seconds in (("waves", waves), ("free-running", free), ("chat endpoint", chat)):
        print(
            f"{name:14} {seconds / made * 1e3:7.1f} ms a turn   {chat / seconds:5.2f} times as fast as the chat endpoint"
        )


def _reply(task_row: Row, answers: Any) -> str | None:
    return "and once more?" if len(answers) < TURNS else None


USER = Interaction(reply=_reply)


def _ours(model: Path, trajectories: int, tokens: int) -> tuple[float, float]:
    tokenizer = character_tokenizer(CONTEXT)
    row = Row(
        task="t", split="train", index=0, prompt=({"role": "user", "content": "12+34=?"},), question="12+34=?",
        answer="", ground_truth="46", data_source="benchmark", interaction=f"{__name__}:USER",
    )  # fmt: skip
    problem = PromptRenderer(tokenizer, Conversation()).prompt(0, row)
    log = model.parent / "server.log"

    def timed(lockstep: bool) -> float:
        sampling = Sampling(
            samples=trajectories, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=tokens, lockstep=lockstep
        )
        return _best(lambda: collect([problem], sampling, lambda at, sample: sample, engine=engine, agent=agent))

    with (
        open_engine(model, PARAMS, log, dtype="float32", deterministic=True) as engine,
        single_turns(tokenizer, tokens) as agent,
    ):
        return timed(True), timed(False)


def _through_the_chat_endpoint(model: Path, trajectories: int, tokens: int) -> float:
    with (
        _with_a_tokenizer(),
        engine_server.SGLangServer(model, PARAMS, model.parent / "chat.log") as server,
    ):
        return _best(lambda: asyncio.run(_converse(server, trajectories, tokens)))


async def _converse(server: engine_server.SGLangServer, trajectories: int, tokens: int) -> None:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(headers=headers, timeout=300, trust_env=False, limits=limits) as http:
        await asyncio.gather(*(_conversation(http, server.address, seed, tokens) for seed in range(trajectories)))


async def _conversation(http: httpx.AsyncClient, address: str, seed: int, tokens: int) -> None:
    messages = [{"role": "user", "content": "12+34=?"}]
    for _ in range(TURNS):
        body = {
            "model": "default", "messages": messages, "max_tokens": tokens, "temperature": 1.0, "top_p": 1.0,
            "top_k": -1, "seed": seed, "logprobs": True,
        }  # fmt: skip
        reply = await http.post(f"{address}/v1/chat/completions", json=body)
        reply.raise_for_status()
        said = reply.json()["choices"][0]["message"]["content"] or ""
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "and once more?"}]


@contextmanager
def _with_a_tokenizer() -> Iterator[None]:
    """Servers that are started inside have their tokenizer: ours need none."""

    def with_tokenizer(*given: Any, **named: Any) -> list[str]:
        return [part for part in command.server_command(*given, **named) if part != "--skip-tokenizer-init"]

    with mock.patch.object(engine_server, "server_command", with_tokenizer):
        yield


def _best(work: Callable[[], object], repeats: int = 3) -> float:
    """The shortest of several runs after one that warms up, in seconds."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


if __name__ == "__main__":
    main()
