"""The group `held_out/<task>/`: scores on held-out problems during training.

A task with an oracle is named <task>_oracle.
"""

from dagrpo.core.metrics.definition import Metric

HELD_OUT = (
    Metric(
        name="held_out/<task>/greedy",
        unit="share of problems",
        better="higher",
        label="Held-out problems",
        meaning="Share of some held-out problems that the policy solves with one completion at temperature 0; the same problems "
        "at every step.",
        reading="the report shows its interval; with 64 problems it cannot resolve less than about 12 points",
        remedy="flat while `reward/mean` rises: the policy exploits the reward or memorises the prompts. Falls at the end: too "
        "many steps, to be judged on a validation split",
    ),
)
