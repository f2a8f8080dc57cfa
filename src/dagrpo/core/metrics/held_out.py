"""The group `held_out/<task>/`: scores on held-out problems during training.

A task with an oracle is called <task>_oracle.
"""

from dagrpo.core.metrics.definition import Metric

HELD_OUT = (
    Metric(
        name="held_out/<task>/greedy",
        unit="share of problems",
        meaning="Share of some held-out problems whose one completion at temperature 0 is right; the same problems at each step.",
    ),
)
