"""Section `rollout`: how completions are sampled during training, and the SGLang engine that samples them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.params.base import Section


class Engine(Section):
    servers: list[str] = Field(
        [], description="Addresses of SGLang servers that run elsewhere; empty: the stage starts its own."
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Type the engine computes in.")
    max_total_tokens: Annotated[int, Field(ge=1024)] = Field(
        65_536, description="Size of the key-value cache, in tokens."
    )
    max_running_requests: Annotated[int, Field(ge=1)] = Field(256, description="Requests decoded at the same time.")
    start_timeout: Annotated[int, Field(ge=1)] = Field(
        300, description="Seconds until a server that is not ready is an error."
    )
    request_timeout: Annotated[int, Field(ge=1)] = Field(
        600, description="Seconds until a batch without an answer is an error."
    )


class Rollout(Section):
    temperature: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Sampling temperature; logprobs are of the scaled softmax."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Nucleus sampling; below 1 biases the importance ratio."
    )
    top_k: Annotated[int, Field(ge=-1)] = Field(-1, description="Sample from the k likeliest tokens; -1: from all.")
    max_new_tokens: Annotated[int, Field(ge=1)] = Field(20, description="Longest completion, in tokens.")
    deterministic: bool = Field(
        True,
        description="Submit each batch in lockstep, so that the same seed gives the same bytes; off is faster and nearly repeatable.",
    )
    engine: Engine = Field(Engine(), description="The SGLang engine, for training and for evaluation.")

    @model_validator(mode="after")
    def _top_k_is_a_number_of_tokens(self) -> Self:
        if self.top_k == 0:
            raise ValueError("rollout.top_k is 0: give -1 to sample from all tokens, or a positive number")
        return self
