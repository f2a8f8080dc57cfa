"""The group `timing/`: seconds of each part of a step.

Not part of any result: metrics.parquet does not have it.
"""

from dagrpo.core.metrics.definition import Metric

_PARTS = (
    Metric(
        name="timing/gates_seconds",
        unit="seconds",
        better="lower",
        meaning="Checks before sampling: engine and trainer score the probe.",
        reading="under 1% of a step",
        remedy="more: lower `probe_prompts`, or raise `every` (`training.gates`)",
    ),
    Metric(
        name="timing/held_out_seconds",
        unit="seconds",
        better="lower",
        meaning="Sampling and grading of held-out problems: before the step is sampled, and in the last step after it as well.",
        reading="0 except in steps that evaluate; missing if `training.evaluate_every` is 0",
        remedy="a large part of all steps: raise `training.evaluate_every`, or lower `evaluation_problems`",
    ),
    Metric(
        name="timing/rollout_seconds",
        unit="seconds",
        better="lower",
        meaning="Sampling by the engine, including tool calls; with training.staleness, the wait for batches sampled ahead.",
        reading="most of a step",
        remedy="use more servers (`runtime.engine.servers`), more `max_running_requests`, or shorter completions",
    ),
    Metric(
        name="timing/rewards_seconds",
        unit="seconds",
        better="lower",
        meaning="Grading: parse and compare answers, sum components; 0 if it happens ahead or during sampling.",
        reading="small",
        remedy="large: the verifier is slow, see `reward.verify_seconds`",
    ),
    Metric(
        name="timing/teacher_seconds",
        unit="seconds",
        better="lower",
        meaning="Teacher's logprobs of the sampled tokens.",
        reading="a forward pass of the teacher",
        remedy="use more servers (`runtime.teacher.servers`)",
    ),
    Metric(
        name="timing/save_seconds",
        unit="seconds",
        better="lower",
        meaning="Wait, before the update, for the state of an earlier step that is written while this one is sampled.",
        reading="0 unless a state takes longer to write than a batch to sample",
        remedy="raise `runtime.training.save_every`, or use `training.moments_dtype: bfloat16` or more `processes`",
    ),
    Metric(
        name="timing/update_seconds",
        unit="seconds",
        better="lower",
        meaning="Advantages, forward and backward passes, optimizer, digests of gradients and weights.",
        reading="grows with tokens, not with trajectories",
        remedy="raise `runtime.training.micro_batch_size`, or use more `processes`",
    ),
    Metric(
        name="timing/weight_sync_seconds",
        unit="seconds",
        better="lower",
        meaning="Weight sync: transfer of the new weights to the engine, and the comparison of their digests.",
        reading="grows with the model",
        remedy="keep `runtime.engine.weights_folder` in memory; lower `digest_mebibytes`",
    ),
    Metric(
        name="timing/record_seconds",
        unit="seconds",
        better="lower",
        meaning="Writing of the step's rollouts, metrics and digests to disk; missing for steps before an interruption.",
        reading="small",
        remedy="large: the disk below `.state/` is slow",
    ),
)
# In the order of a step. Other metrics of the group that end in _seconds follow them.
PARTS = tuple(metric.name for metric in _PARTS)
TIMING = (
    *_PARTS,
    Metric(
        name="timing/weight_sync_bytes",
        unit="bytes",
        better="lower",
        meaning="Tensors that a weight sync brings to the engine; each server gets all of them.",
        reading="constant in a run: all weights, or the adapter's; missing in a last step that samples nothing after it",
        remedy="train an adapter (`training.lora`) and serve it (`serving: adapter`)",
    ),
    Metric(
        name="timing/tokens_per_second",
        unit="tokens per second",
        better="higher",
        meaning="Tokens written in the step, including those of discarded groups and rollout/cut_off_tokens, divided by the "
        "time until the step is recorded, without that of held-out problems.",
        reading="falls as the completions of a step differ more in length",
        remedy="compare runs by it only on one machine",
    ),
    Metric(
        name="timing/rollout_mfu",
        unit="share of the peak",
        better="higher",
        meaning="Model FLOPs of sampling, 2 N per written token, divided by the device's peak in bfloat16 over that time.",
        reading="a few percent: memory bandwidth limits decoding, not arithmetic",
        remedy="sample more trajectories at a time",
    ),
    Metric(
        name="timing/update_mfu",
        unit="share of the peak",
        better="higher",
        meaning="Model FLOPs of the update, 6 N + 6 L d s per token (4 N for frozen weights), divided by the devices' peak in "
        "bfloat16 over that time.",
        reading="0.3 to 0.5 is good for large models; padding and the forward pass before the update lower it",
        remedy="use larger micro-batches, or samples of similar length",
    ),
)
