"""The group `reward/`: rewards of a step's trajectories.

Means are over trajectories that are learned from, unless the definition says otherwise.
"""

from dagrpo.core.metrics.definition import Metric

REWARD = (
    Metric(
        name="reward/mean",
        unit="reward",
        meaning="Average reward of the completions sampled in a training step, on training problems: evidence of learning, "
        "not of generalisation.",
    ),
    Metric(name="reward/std", unit="reward", meaning="Standard deviation of these rewards over the whole step."),
    Metric(
        name="reward/greedy_mean",
        unit="reward",
        meaning="Average reward of each prompt's completion at temperature 0, where the advantage asks for one (remax).",
    ),
    Metric(
        name="reward/component/<label>",
        unit="points of the component",
        meaning="Average of one component of the reward by itself, before its weight.",
    ),
    Metric(name="reward/accuracy", unit="share of attempts", meaning="Right answers."),
    Metric(
        name="reward/missing_answer_fraction",
        unit="share of attempts",
        meaning="Attempts in which the extractor found no answer.",
    ),
    Metric(
        name="reward/unverifiable_fraction",
        unit="share of attempts",
        meaning="Attempts whose answer could not be compared with the ground truth within the time allowed.",
    ),
)
