"""Section `rollout`: sampling during training, and the engine's type."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dagrpo.algorithms.config import Algorithm
from dagrpo.chat.renderers import CHATS
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice, Chosen, Several
from dagrpo.core.section import MOST_STEPS, MOST_TOKENS, HeadDtype, Section, Temperature, TopK, TopP
from dagrpo.rollout.agents import AGENTS, OWN_LOOP, Limits
from dagrpo.rollout.sampling import Sampling
from dagrpo.tools import TOOLS, ToolSection

Dtype = Literal["float32", "bfloat16", "float16"]
KeepRollouts = Literal["all", "rounded", "best_and_worst", "none"] | Annotated[int, Field(ge=1, le=MOST_STEPS)]
LARGEST_SUPPORT = 4096  # tokens of a recorded sampling mask
_TOOL_AGENT: Any = {"name": "tool_agent"}
_TEMPLATE: Any = {"name": "template"}


class Conversation(Section):
    """The settings of an attempt, in training and in evaluation alike."""

    agent: Annotated[Limits, Chosen(AGENTS)] = Field(
        _TOOL_AGENT,
        description="Agent that turns a prompt into a trajectory: our own loop of turns and tools, or a program.",
    )
    tools: Annotated[dict[str, ToolSection], Several(TOOLS)] = Field(
        {},
        description="Parameters of the tools that tasks offer, by name; a tool without an entry has its defaults.",
    )
    chat: Annotated[Choice, Chosen(CHATS)] = Field(
        _TEMPLATE, description="Format that renders conversations as tokens, and in which the policy writes tool calls."
    )


class Rollout(Conversation):
    temperature: Temperature = Field(1.0, description="Sampling temperature; logprobs are of the scaled softmax.")
    top_p: TopP = Field(
        1.0,
        description=(
            "Nucleus sampling. Below 1 it needs a top_k of 2 to 4096: the sampling mask is then recorded, and the trainer's "
            "softmax is over the mask."
        ),
    )
    top_k: TopK = Field(
        -1, description="Sample from the k likeliest tokens, which are recorded as the sampling mask; -1: from all."
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = Field(
        20, description="Longest turn of the policy, in tokens."
    )
    deterministic: bool = Field(
        True,
        description="Submit each batch in lockstep, so that the same seed gives the same bytes; false is faster and nearly repeatable.",
    )
    dtype: Dtype = Field("float32", description="Data type of the engine, in training and in evaluation.")
    head_dtype: HeadDtype = Field(
        None,
        description="float32: engine and trainer compute logits in float32, from hidden states and weights in their dtypes; "
        "null: in their dtypes. Start external servers with --enable-fp32-lm-head for float32.",
    )

    @model_validator(mode="after")
    def _check_top_k(self) -> Self:
        if self.top_k == 0:
            raise UserError("rollout.top_k is 0: give -1 to sample from all tokens, or a positive number")
        if self.top_k == 1:
            raise UserError(
                "rollout.top_k is 1, so that all samples of a prompt are the same and nothing can be learned: give -1 to sample "
                f"from all tokens, or 2 to {LARGEST_SUPPORT}"
            )
        return self

    @model_validator(mode="after")
    def _check_sampling_mask_is_recorded(self) -> Self:
        if self.top_k > LARGEST_SUPPORT or (self.top_p < 1 and self.top_k == -1):
            raise UserError(
                f"rollout.top_p is {self.top_p} and rollout.top_k {self.top_k}, but the sampling mask, which the trainer "
                f"needs, is recorded only with a rollout.top_k of at most {LARGEST_SUPPORT}: set rollout.top_k to 2 to "
                f"{LARGEST_SUPPORT}, or rollout.top_p to 1.0 and rollout.top_k to -1"
            )
        return self

    @property
    def cuts(self) -> bool:
        """Return True if some tokens are never sampled."""
        return self.top_k != -1

    def check(self, algorithm: Algorithm) -> None:
        """Raise UserError if the teacher has prompts that the agent would not use."""
        name, teacher = self.agent.name, algorithm.teacher
        if teacher.is_there and teacher.prompt == "with_solution" and name != OWN_LOOP:
            raise UserError(
                f"algorithm.teacher.prompt is with_solution, but the prompts of rollout.agent {name} are its own: set "
                f"algorithm.teacher.prompt to plain, or take rollout.agent: {{name: {OWN_LOOP}}}"
            )


def conversation_of(section: Mapping[str, Any]) -> Conversation:
    """Return the part of section rollout about making an attempt, for a stage that reads no more of it."""
    return Conversation.model_validate({name: section[name] for name in Conversation.model_fields})


def training_sampling(rollout: Rollout, samples: int, *, greedy: bool = False) -> Sampling:
    """Return the sampling of training, by section `rollout`, without a greedy attempt unless the advantages need one."""
    return Sampling(
        samples=samples,
        greedy=greedy,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_new_tokens=rollout.max_new_tokens,
        lockstep=rollout.deterministic,
    )
