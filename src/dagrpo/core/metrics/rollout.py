"""The group `rollout/`: sampled prompts and completions of a step.

Means are over trajectories that are learned from.
"""

from dagrpo.core.metrics.definition import Metric

_ALWAYS = (
    Metric(
        name="rollout/length_mean",
        unit="tokens",
        meaning="Average number of tokens that the policy wrote in an attempt, over all of its turns.",
    ),
    Metric(name="rollout/length_max", unit="tokens", meaning="The most that it wrote in one of the step's attempts."),
    Metric(
        name="rollout/truncated_fraction",
        unit="share of attempts",
        meaning="Attempts that were cut off at a limit before they ended.",
    ),
    Metric(
        name="rollout/groups_without_spread",
        unit="share of groups",
        meaning="Prompts whose samples all earned the same reward: most advantages are 0 then.",
    ),
    Metric(
        name="rollout/groups_without_advantage",
        unit="share of groups",
        meaning="Prompts from whose samples nothing is learned, since all of their advantages are 0.",
    ),
)
_DRAWING = (
    Metric(
        name="rollout/rounds",
        unit="rounds",
        meaning="How often training.dynamic_sampling sampled further prompts, the first time included.",
    ),
    Metric(
        name="rollout/discarded_groups",
        unit="groups",
        meaning="Prompts that were sampled and are not in the batch.",
    ),
    Metric(
        name="rollout/discarded_fraction",
        unit="share of groups",
        meaning="The same, as a share of all prompts that the step has sampled.",
    ),
    Metric(
        name="rollout/cut_off_groups",
        unit="groups",
        meaning="Prompts whose samples were not finished when the batch was full: aborted, and the first of the next step.",
    ),
    Metric(
        name="rollout/cut_off_tokens",
        unit="tokens",
        meaning="Tokens that had been written for those groups and are thrown away, as far as the servers tell. Not included: tokens of "
        "retracted requests that were waiting to resume, and of servers that died.",
    ),
    Metric(
        name="rollout/retired_prompts",
        unit="prompts",
        meaning="Prompts that have reached training.retire_at so far and are drawn no more.",
    ),
)
_AHEAD = (
    Metric(
        name="rollout/staleness",
        unit="steps",
        meaning="Steps that the policy has taken since the weights that sampled the batch.",
    ),
    Metric(
        name="rollout/ahead_seconds",
        unit="seconds",
        meaning="Drawing, sampling and grading the batch, while the policy learned from others. No part of the result.",
    ),
)
_PICTURES = (
    Metric(name="rollout/pictures_mean", unit="pictures", meaning="Average number of pictures that a prompt shows."),
    Metric(
        name="rollout/picture_tokens_mean",
        unit="tokens",
        meaning="Average number of a prompt's tokens that are pictures; model.max_pixels limits them.",
    ),
)
_TURNS = (
    Metric(name="rollout/turns_mean", unit="turns", meaning="Average number of turns of the policy in an attempt."),
    Metric(name="rollout/turns_max", unit="turns", meaning="The most turns of an attempt."),
    Metric(
        name="rollout/samples_mean",
        unit="token sequences",
        meaning="Average number of token sequences of an attempt: more than 1 where a chat template rewrites earlier turns.",
    ),
    Metric(
        name="rollout/tokens_mean",
        unit="tokens",
        meaning="Average length of an attempt's longest token sequence, prompt and tools' results included.",
    ),
    Metric(
        name="rollout/tokens_max",
        unit="tokens",
        meaning="The longest token sequence of the step: what rollout.agent.max_tokens limits.",
    ),
    Metric(
        name="rollout/excluded",
        unit="attempts",
        meaning="Attempts, of all, that something broke which the policy has no part in.",
    ),
    Metric(
        name="rollout/left_out",
        unit="attempts",
        meaning="Attempts, of all, from which nothing is learned: excluded, or nothing was sampled.",
    ),
    Metric(
        name="rollout/stop_<reason>_fraction",
        unit="share of all attempts",
        meaning="How attempts ended, such as answered or max_turns.",
    ),
    Metric(
        name="rollout/cached_tokens_fraction",
        unit="share of prompt tokens",
        meaning="Prompt tokens that the engine had in its cache. It depends on the run, and is no part of the result.",
    ),
)
ROLLOUT = (*_ALWAYS, *_DRAWING, *_AHEAD, *_PICTURES, *_TURNS)
