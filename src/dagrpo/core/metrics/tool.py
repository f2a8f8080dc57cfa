"""The group `tool/`: tool calls of a step, in multi-turn runs.

Means are over trajectories that are learned from.
"""

from dagrpo.core.metrics.definition import Metric

TOOL = (
    Metric(name="tool/calls_mean", unit="calls", meaning="Average number of calls in an attempt, well or not."),
    Metric(name="tool/called_fraction", unit="share of attempts", meaning="Attempts with at least one call."),
    Metric(
        name="tool/result_characters_mean",
        unit="characters",
        meaning="Average length of what a call gave back to the policy.",
    ),
    Metric(
        name="tool/<status>_fraction",
        unit="share of calls",
        meaning="How calls went: ok; failed or timed_out (the tool said so); the others could not be carried out as written.",
    ),
    Metric(name="tool/calls_of_<function>", unit="calls", meaning="Calls of one function in the step."),
    Metric(
        name="tool/seconds_mean",
        unit="seconds",
        meaning="Average time that a call took, of all attempts. No part of the result.",
    ),
    Metric(name="tool/seconds_max", unit="seconds", meaning="The longest call. No part of the result."),
)
