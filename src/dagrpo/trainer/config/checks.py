"""Section `training.gates`: runtime checks that stop a broken run.

On by default, with limits that a healthy run does not come near. None of them changes results: a run that was stopped resumes
from its last saved step with other limits.
"""

from typing import Annotated, Literal

from pydantic import Field

from dagrpo.core.section import MOST_STEPS, Section, Share


class Gates(Section):
    every: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(
        1,
        description="Compare digests and probe every n weight syncs, and always at the first of an execution. On two cores both take "
        "some 60 ms with the tiny model and 0.8 s with SmolLM2-135M, however many tokens a step has.",
    )
    digest_mebibytes: Annotated[int, Field(ge=0, le=1 << 20)] = Field(
        16,
        description="MiB of the policy's tensors whose digests are compared with the engine's, sampled again at each "
        "check; at least one tensor. 0: none.",
    )
    unchanged_weights: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(
        3,
        description="Weight syncs in a row after which the engine may hold the weights of the sync before, although the "
        "policy was updated.",
    )
    probe_prompts: Annotated[int, Field(ge=0, le=4096)] = Field(
        2,
        description="Prompts that the engine completes greedily at each check, and as many that it samples as in "
        "training; the trainer scores both with the synced weights. 0: none.",
    )
    probe_prompt_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = Field(
        32,
        description="Keep only this many last tokens of a probe prompt; a prompt with a picture is kept whole. null: "
        "keep all. A short prompt shows a fault as well as a long one, in less time.",
    )
    probe_tokens: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None,
        description="Most tokens of a probe completion. null: 2 if the engine computes in float32, 8 in bfloat16 and "
        "float16, where a few tokens say little.",
    )
    outside_share: Share | None = Field(
        None,
        description="Largest share of tokens, of the probe and of a step, whose logprobs by engine and trainer differ by "
        "more than rounding (float32: 0.01 nats, float16: 0.05, bfloat16: 0.1). null: 0.01 in float32, 0.1 "
        "in float16 and 0.5 in bfloat16.",
    )
    largest_difference: Annotated[float, Field(gt=0, le=1000)] = Field(
        3.0, description="Largest difference of these two logprobs for a single token of the probe, in nats."
    )
    coincidence: Annotated[float, Field(ge=0, lt=1)] = Field(
        1e-6,
        description="Refuse a group of identical completions if, by their logprobs, chance produces one in a run less "
        "often than this. 0: never.",
    )
    without_advantage: Share | None = Field(
        1.0,
        description="Limit of the share of prompts whose advantages are all 0, for instance because all samples earn the "
        "same reward. null: none.",
    )
    truncated: Share | None = Field(
        0.9, description="Limit of the share of completions that are truncated at rollout.max_new_tokens. null: none."
    )
    missing_answers: Share | None = Field(
        0.9, description="Limit of the share of completions without an answer. null: none."
    )
    unverifiable: Share | None = Field(
        0.5, description="Limit of the share of completions whose answer cannot be compared in time. null: none."
    )
    steps_in_a_row: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(
        5, description="Steps in a row that may reach one of these four limits before learns_nothing applies."
    )
    learns_nothing: Literal["warn", "refuse"] = Field(
        "warn", description="Reaction to a reached limit: warn again every steps_in_a_row steps, or end the run."
    )
    skipped_steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = Field(
        3,
        description="Steps in a row whose update may be skipped because a loss, a gradient or a reward is not finite; "
        "one more ends the run.",
    )
