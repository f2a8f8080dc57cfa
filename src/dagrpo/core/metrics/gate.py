"""The group `gate/`: measurements of the checks in section training.gates."""

from dagrpo.core.metrics.definition import Metric

_UPDATES = (
    Metric(
        name="gate/skipped_updates",
        unit="updates",
        better="lower",
        meaning="Mini-batches whose update was skipped, since the loss or the gradient was not finite.",
        reading="0",
        remedy="lower the learning rate or correct the reward; several in a row stop the run (`training.gates.skipped_steps`)",
    ),
    Metric(
        name="gate/overflowed_updates",
        unit="updates",
        better="lower",
        meaning="Updates skipped because the scaled loss overflowed float16; each halves the scale. Missing if the loss is not "
        "scaled.",
        reading="one in the first steps and one every few hundred updates",
        remedy="in every step: gradients are too large for float16; train in bfloat16",
    ),
)
_ENGINE = (
    Metric(
        name="gate/rollout_outside_fraction",
        unit="share of tokens",
        better="lower",
        meaning="Sampled tokens whose engine and trainer logprobs differ by more than rounding (0.01 nats in float32, 0.05 in "
        "float16, 0.1 in bfloat16).",
        reading="0 in float32; up to 0.1 in bfloat16, even if only batch shapes differ",
        remedy="above: as for `policy/logprob_difference_mean`",
    ),
    Metric(
        name="gate/digest_tensors",
        unit="tensors",
        meaning="Weights of the engine whose digests were compared with the trainer's before this step. Not part of the result.",
        reading="the same in every compared step",
        remedy="0: nothing could be compared, see [training.gates](parameters.md)",
    ),
    Metric(
        name="gate/probe_outside_fraction",
        unit="share of tokens",
        better="lower",
        meaning="Tokens of the probe whose engine and trainer logprobs differ by more than rounding. Not part of the result.",
        reading="0 in float32",
        remedy="above 0: weights, temperature or precision of the engine differ; a run that stops for it names a table of all "
        "tokens",
    ),
    Metric(
        name="gate/probe_largest_difference",
        unit="nats",
        better="lower",
        meaning="Largest logprob difference between engine and trainer in the probe. Not part of the result.",
        reading="up to 1e-4 in float32",
        remedy="above: look at that token in the table",
    ),
)
_STEPS_IN_A_ROW = (
    Metric(
        name="gate/steps_without_advantage",
        unit="steps in a row",
        better="lower",
        meaning="Consecutive steps up to this one in which the share of groups without advantage reached "
        "training.gates.without_advantage.",
        reading="0, or small",
        remedy="the warning after `steps_in_a_row` of them names the likely cause",
    ),
    Metric(
        name="gate/steps_truncated",
        unit="steps in a row",
        better="lower",
        meaning="Consecutive steps up to this one in which the share of truncated trajectories reached training.gates.truncated.",
        reading="0",
        remedy="raise `rollout.max_new_tokens`",
    ),
    Metric(
        name="gate/steps_without_answers",
        unit="steps in a row",
        better="lower",
        meaning="Consecutive steps up to this one in which the share of missing answers reached training.gates.missing_answers.",
        reading="0 after the first steps",
        remedy="as for `reward/missing_answer_fraction`",
    ),
    Metric(
        name="gate/steps_unverifiable",
        unit="steps in a row",
        better="lower",
        meaning="Consecutive steps up to this one in which the share of unverifiable answers reached "
        "training.gates.unverifiable.",
        reading="0",
        remedy="as for `reward/unverifiable_fraction`",
    ),
)
GATE = (*_UPDATES, *_ENGINE, *_STEPS_IN_A_ROW)
