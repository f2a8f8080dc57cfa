"""The group `gate/`: measurements of the checks of section training.gates."""

from dagrpo.core.metrics.definition import Metric

GATE = (
    Metric(
        name="gate/skipped_updates",
        unit="updates",
        meaning="Mini-batches whose update was skipped, since the loss or the gradient was not finite.",
    ),
    Metric(
        name="gate/overflowed_updates",
        unit="updates",
        meaning="Those of them that the scale of the loss in float16 explains: it has halved since. Missing where the loss is not "
        "scaled.",
    ),
    Metric(
        name="gate/rollout_outside_fraction",
        unit="share of tokens",
        meaning="Sampled tokens whose logprobs of engine and trainer differ by more than rounding (0.01 nats in float32, 0.05 in "
        "float16, 0.1 in bfloat16).",
    ),
    Metric(
        name="gate/digest_tensors",
        unit="tensors",
        meaning="Weights of the engine that were compared by digest with what it was handed before this step. No part of the result.",
    ),
    Metric(
        name="gate/probe_outside_fraction",
        unit="share of tokens",
        meaning="The same share as of the rollouts, of the completions that both sides score before anything is sampled. No part of "
        "the result.",
    ),
    Metric(
        name="gate/probe_largest_difference",
        unit="nats",
        meaning="The largest gap between both sides among the probed tokens. No part of the result.",
    ),
    Metric(
        name="gate/steps_without_advantage",
        unit="steps in a row",
        meaning="Steps up to this one with a share of groups without advantage of training.gates.without_advantage or more.",
    ),
    Metric(
        name="gate/steps_truncated",
        unit="steps in a row",
        meaning="Steps up to this one with a share of attempts that were cut off of training.gates.truncated or more.",
    ),
    Metric(
        name="gate/steps_without_answers",
        unit="steps in a row",
        meaning="Steps up to this one with a share of missing answers of training.gates.missing_answers or more.",
    ),
    Metric(
        name="gate/steps_unverifiable",
        unit="steps in a row",
        meaning="Steps up to this one with a share of answers that could not be verified of training.gates.unverifiable or more.",
    ),
)
