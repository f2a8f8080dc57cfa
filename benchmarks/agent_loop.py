"""What our own loop costs beside the engine: trajectories of several turns with a tool, over an engine that answers at once.

    PYTHONPATH=. python benchmarks/agent_loop.py --trajectories 512 --turns 4

Processor time of this process, in which other work on the machine does not count, per turn of the policy: prompts rendered and
extended, calls parsed and answered, samples put together. For comparison, in the same run: what it costs to render and tokenize
the whole conversation again at every turn, as a client of a chat endpoint has it done.
"""

import argparse
import asyncio
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from dagrpo.chat.renderers import chat_format
from dagrpo.core.trajectory import Trajectory
from dagrpo.core.types import Completion, Row, SamplingRequest
from dagrpo.engine.interface import Aborted, HeldWeights
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rollout.collect import collect
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.open_agent import AgentEnv, open_agent
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.rollout.sampling import Sampling

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "123*456"}}\n</tool_call>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=512)
    parser.add_argument("--turns", type=int, default=4)
    options = parser.parse_args()
    tokenizer = character_tokenizer(4096, calls=(("calculator", "expression"),))
    conversation = Conversation.model_validate({"agent": {"name": "tool_agent", "max_turns": options.turns}})
    engine = ScriptedEngine(tuple(tokenizer(CALL + "<|end|>", add_special_tokens=False)["input_ids"]))
    problem = PromptRenderer(tokenizer, conversation).prompt(0, _row())
    around = AgentEnv(folder=Path(), passages=None, max_new_tokens=64, context_tokens=4096)
    sampling = Sampling(
        samples=options.trajectories, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=64, lockstep=True
    )
    with open_agent(conversation, tokenizer, ("calculator",), around) as agent:
        for _ in range(2):  # the first one warms up
            start = time.process_time()
            trajectories = collect([problem], sampling, lambda at, sample: sample, engine=engine, agent=agent)
            seconds = time.process_time() - start
    turns = sum(trajectory.turns for trajectory in trajectories)
    again = _rendered_again(trajectories[0], conversation, tokenizer)
    print(f"our loop                  {seconds / turns * 1e3:6.3f} ms a turn ({turns} turns)")
    print(f"rendering all again alone {again * 1e3:6.3f} ms a turn")
    print(f"ratio                     {seconds / turns / again:6.2f}")


class ScriptedEngine:
    """Answers every request with the same tokens."""

    def __init__(self, token_ids: tuple[int, ...]) -> None:
        self._completion = Completion(
            token_ids=token_ids, logprobs=(-0.5,) * len(token_ids), finish_reason="stop", weight_version="v"
        )

    def generate(self, requests: Sequence[SamplingRequest], **waves: Any) -> list[Completion]:
        return [self._completion] * len(requests)

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        await asyncio.sleep(0)
        return self._completion

    async def abort(self, sessions: Collection[str]) -> list[Aborted]:
        return []

    def score(self, requests: Any, *, lockstep: bool) -> list[tuple[float, ...]]:
        return []

    def interrupt(self) -> None:
        """Nobody waits."""

    def load(self, weights: Any, version: str) -> None:
        """There are none."""

    def release_memory(self) -> None:
        """It takes none."""

    def digests(self) -> list[HeldWeights]:
        return []


def _row() -> Row:
    return Row(
        task="arithmetic_tool",
        split="train",
        index=0,
        prompt=({"role": "user", "content": "123*456=?"},),
        question="123*456=?",
        answer="56088",
        ground_truth="56088",
        data_source="benchmark",
        tools=("calculator",),
    )


def _rendered_again(trajectory: Trajectory, conversation: Conversation, tokenizer: Any) -> float:
    """Seconds to render and tokenize a conversation at each of its turns, per turn."""
    chat = chat_format(tokenizer, conversation.chat)
    whole = [*trajectory.prompt.row.prompt, *trajectory.messages]
    ends = [place for place, message in enumerate(whole) if message["role"] == "assistant"]
    start = time.process_time()
    repeats = 50
    for _ in range(repeats):
        for end in ends:
            chat.prompt(whole[:end], trajectory.prompt.tools)
    return (time.process_time() - start) / repeats / len(ends)


if __name__ == "__main__":
    main()
