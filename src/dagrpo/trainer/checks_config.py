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
        description="Hand-overs from one comparison of digests and probe to the next; the first of an execution has one in any "
        "case. Both take some 65 ms of processor time on a CPU, whatever else a step takes.",
    )
    digest_mebibytes: Annotated[int, Field(ge=0, le=1 << 20)] = Field(
        16,
        description="MiB of the policy's tensors whose digests are compared with the engine's after each hand-over, drawn anew "
        "each time, one tensor at least; 0: none.",
    )
    unchanged_weights: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(
        3,
        description="Hand-overs in a row after which the engine may hold the very weights of before, although the policy was "
        "updated.",
    )
    probe_prompts: Annotated[int, Field(ge=0, le=4096)] = Field(
        2,
        description="Prompts that the engine completes greedily after each hand-over, and as many that it completes as for "
        "training: the trainer scores both with the weights handed over; 0: none.",
    )
    probe_prompt_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = Field(
        32,
        description="Probe prompts keep only their last tokens, this many; a prompt with a picture is not cut. null: no prompt is cut. "
        "A short prompt shows a fault as well as a long one, in less time.",
    )
    probe_tokens: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None,
        description="Longest of those completions, in tokens; null: 2 where the engine computes in float32, and 8 in bfloat16 "
        "and float16, where a few tokens say little.",
    )
    outside_share: Share | None = Field(
        None,
        description="Largest share of tokens, of the probe's and of a step's, whose logprob by the engine and by the trainer "
        "differ by more than rounding (float32: 0.01 nats, float16: 0.05, bfloat16: 0.1); null: 0.01 in float32, 0.1 in float16 "
        "and 0.5 in bfloat16.",
    )
    largest_difference: Annotated[float, Field(gt=0, le=1000)] = Field(
        3.0, description="Largest difference of those two logprobs of one token of the probe, in nats."
    )
    coincidence: Annotated[float, Field(ge=0, lt=1)] = Field(
        1e-6,
        description="A group of identical completions is refused where chance makes one in a run less often than this, by their "
        "logprobs; 0: never.",
    )
    distinct_seeds: bool = Field(True, description="Refuse a step in which samples of one prompt share their seeds.")
    consumed_prompts: bool = Field(
        True,
        description="Refuse a run whose recorded steps are not of the prompts that follow from its seed: when it goes on "
        "after an interruption, and at its end.",
    )
    without_advantage: Share | None = Field(
        1.0,
        description="Share of prompts all of whose advantages are 0, as where all samples earn the same reward; null: any.",
    )
    truncated: Share | None = Field(
        0.9, description="Share of completions that are cut off at rollout.max_new_tokens; null: any."
    )
    missing_answers: Share | None = Field(
        0.9, description="Share of completions in which no answer is found; null: any."
    )
    unverifiable: Share | None = Field(
        0.5, description="Share of completions whose answer cannot be compared in time; null: any."
    )
    steps_in_a_row: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(
        5, description="Steps in a row at one of these four shares or above it, after which the run says so."
    )
    learns_nothing: Literal["warn", "refuse"] = Field(
        "warn", description="What follows: a warning after every so many steps, or the end of the run."
    )
    skipped_steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = Field(
        3,
        description="Steps in a row whose update may be skipped, because a loss, a gradient or a reward is not finite; one more "
        "ends the run.",
    )
