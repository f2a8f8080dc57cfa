"""The group `timing/`: seconds of each part of a step.

No part of any result: metrics.parquet does not have it.
"""

from dagrpo.core.metrics.definition import Metric

_PARTS = (
    Metric(
        name="timing/gates_seconds",
        unit="seconds",
        meaning="Checks before the step is sampled: the probe that engine and trainer score.",
    ),
    Metric(
        name="timing/held_out_seconds",
        unit="seconds",
        meaning="Held-out problems, answered and graded: before the step is sampled, and in the last step after it as well.",
    ),
    Metric(
        name="timing/rollout_seconds",
        unit="seconds",
        meaning="Sampling by the engine, with the calls of tools in it; with training.staleness, waiting for what it samples ahead.",
    ),
    Metric(
        name="timing/rewards_seconds",
        unit="seconds",
        meaning="Grading: answers read and compared, components summed; 0 where that is done ahead, or while others are sampled.",
    ),
    Metric(name="timing/teacher_seconds", unit="seconds", meaning="The teacher's logprobs of what was sampled."),
    Metric(
        name="timing/update_seconds",
        unit="seconds",
        meaning="Advantages, forward and backward passes, the optimizer, digests of gradients and weights.",
    ),
    Metric(
        name="timing/hand_over_seconds",
        unit="seconds",
        meaning="The new weights on their way into the engine, and the comparison of what arrived.",
    ),
    Metric(
        name="timing/record_seconds",
        unit="seconds",
        meaning="The step's rollouts, metrics and digests on their way to the disk; missing of steps before an interruption.",
    ),
)
# In the order in which a step does them. Whatever else of the group ends in _seconds comes after them.
PARTS = tuple(metric.name for metric in _PARTS)
TIMING = (
    *_PARTS,
    Metric(
        name="timing/tokens_per_second",
        unit="tokens per second",
        meaning="Tokens that the policy wrote in the step, with those of discarded groups and rollout/cut_off_tokens, over the time of the "
        "step until it is recorded, without that of held-out problems.",
    ),
    Metric(
        name="timing/rollout_mfu",
        unit="share of the peak",
        meaning="Model FLOPs of sampling, 2 N per token that was written, by what the device could do in bfloat16 in that time.",
    ),
    Metric(
        name="timing/update_mfu",
        unit="share of the peak",
        meaning=(
            "Model FLOPs of the update, 6 N + 6 L d s per token (4 N for frozen weights), by what its devices could do in "
            "bfloat16 in that time."
        ),
    ),
)
