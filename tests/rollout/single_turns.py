"""The agent of every task without tools: one completion per attempt."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from dagrpo.rollout.config import Conversation
from dagrpo.rollout.open_agent import AgentEnv, OpenAgent, open_agent


@contextmanager
def single_turns(tokenizer: PreTrainedTokenizerBase, max_new_tokens: int = 20) -> Iterator[OpenAgent]:
    """Opened as the stages open it, with the parameters that ship."""
    around = AgentEnv(
        folder=Path("nothing is written"), passages=None, max_new_tokens=max_new_tokens, context_tokens=1 << 20
    )
    with open_agent(Conversation(), tokenizer, (), around) as agent:
        yield agent
