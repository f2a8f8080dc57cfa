"""The group `tool/`: tool calls of a step, in multi-turn runs.

Means are over the trajectories of the update.
"""

from dagrpo.core.metrics.definition import Metric, Plot

TOOL = (
    Metric(
        name="tool/calls_mean",
        unit="calls",
        label="Calls of a trajectory",
        plot=Plot(figure="turns_and_calls", in_dvc=False),
        meaning="Average number of calls in a trajectory, successful or not.",
        reading="follows the reward that calls bring",
        remedy="falls to 0: calls do not pay; add a component that asks for them, or use problems that need them",
    ),
    Metric(
        name="tool/called_fraction",
        unit="share of trajectories",
        label="Trajectories with a call",
        plot=Plot(figure="turns_and_calls", in_dvc=False),
        meaning="Trajectories with at least one call.",
        reading="steady or rising if tools help; 0 in the first five steps stops the run (`rollout.agent.require_calls`)",
        remedy="near 0: fine-tune on demonstrations that call (`sft.steps`)",
    ),
    Metric(
        name="tool/ok_fraction",
        unit="share of calls",
        better="higher",
        label="Successful calls",
        plot=Plot(figure="turns_and_calls", in_dvc=False),
        meaning="Calls with the status ok: the tool ran and returned a result.",
        reading="rises towards 1",
        remedy="see the other statuses in `tool/<status>_fraction`",
    ),
    Metric(
        name="tool/<status>_fraction",
        unit="share of calls",
        better="lower",
        meaning="Calls with another status: failed or timed_out in the tool, or malformed and not carried out.",
        reading="all fall as the policy learns",
        remedy="undecodable, unclosed or wrong_arguments stay: use another `rollout.chat` or demonstrations; timed_out: the tool "
        "is too slow",
    ),
    Metric(
        name="tool/result_characters_mean",
        unit="characters",
        meaning="Average length of a call's result as the policy reads it.",
        reading="the context that a call costs",
        remedy="large: limit the results",
    ),
    Metric(
        name="tool/calls_of_<function>",
        unit="calls",
        meaning="Calls of one function in the step.",
        reading="shows which tools the policy prefers",
        remedy="never called: remove the tool",
    ),
    Metric(
        name="tool/seconds_mean",
        unit="seconds",
        better="lower",
        meaning="Average duration of a call, over all trajectories. Not part of the result.",
        reading="small compared with a turn",
        remedy="large: rollouts wait for tools, so give them more workers",
    ),
    Metric(
        name="tool/seconds_max",
        unit="seconds",
        better="lower",
        meaning="Duration of the longest call. Not part of the result.",
        reading="below the tool's own limit",
        remedy="at that limit: see timed_out",
    ),
)
