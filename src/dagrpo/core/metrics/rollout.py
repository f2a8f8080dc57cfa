"""The group `rollout/`: sampled prompts and completions of a step.

Means are over the trajectories of the update.
"""

from dagrpo.core.metrics.definition import Metric, Plot

SAMPLES_SEEN = "rollout/samples_seen"
_ALWAYS = (
    Metric(
        name=SAMPLES_SEEN,
        unit="trajectories",
        meaning="Trajectories that the policy has been updated with since the first step. In MLflow alone, as an axis of its charts.",
        reading="grows by `training.prompts_per_step` times `training.samples_per_prompt`",
        remedy="compare runs of other batch sizes by it, not by steps",
    ),
    Metric(
        name="rollout/length_mean",
        unit="tokens",
        label="Mean length",
        plot=Plot(figure="completion_length"),
        meaning="Average number of tokens that the policy writes in a trajectory, over all its turns.",
        reading="may fall as the policy learns the format, or grow with reasoning",
        remedy="grows without reward: add the component overlong, or choose a loss that does not favour long answers (dr_grpo)",
    ),
    Metric(
        name="rollout/length_max",
        unit="tokens",
        meaning="Tokens that the policy writes in the longest trajectory of the step.",
        reading="below `rollout.max_new_tokens` in a single turn",
        remedy="at that limit in every step: see `rollout/truncated_fraction`",
    ),
    Metric(
        name="rollout/truncated_fraction",
        unit="share of trajectories",
        better="lower",
        meaning="Trajectories cut off at a limit before they ended.",
        reading="a truncated trajectory rarely has an answer",
        remedy="above 0.1: raise `rollout.max_new_tokens`, or penalise length",
    ),
    Metric(
        name="rollout/groups_without_spread",
        unit="share of groups",
        better="lower",
        label="Prompts with equal rewards",
        plot=Plot(figure="learning_curve", complement="Prompts whose samples differ in reward"),
        meaning="Prompts whose samples all earn the same reward: most advantages are then 0.",
        reading="0.2 to 0.6 is usual; near 1 a step costs its rollouts and teaches nothing",
        remedy="use harder or easier problems, more `training.samples_per_prompt`, or `training.dynamic_sampling`",
    ),
    Metric(
        name="rollout/groups_without_advantage",
        unit="share of groups",
        better="lower",
        meaning="Prompts whose samples teach nothing, since all their advantages are 0.",
        reading="equals the share without spread if advantages compare samples; near 0 otherwise (`remax`, "
        "`reinforce_plus_plus`)",
        remedy="as for `rollout/groups_without_spread`",
    ),
)
_PROMPT_SAMPLING = (
    Metric(
        name="rollout/rounds",
        unit="rounds",
        better="lower",
        meaning="Number of times training.dynamic_sampling sampled prompts for the step, including the first.",
        reading="1 or 2",
        remedy="at `max_rounds`: raise `oversampling`, or choose other problems",
    ),
    Metric(
        name="rollout/discarded_groups",
        unit="groups",
        better="lower",
        meaning="Prompts that were sampled but are not in the batch.",
        reading="the cost of a full batch",
        remedy="more than the batch itself: other problems would be cheaper",
    ),
    Metric(
        name="rollout/discarded_fraction",
        unit="share of groups",
        better="lower",
        meaning="Prompts that are not in the batch, as a share of all prompts sampled in the step.",
        reading="comparable across batch sizes",
        remedy="above 0.5: other problems would be cheaper",
    ),
    Metric(
        name="rollout/cut_off_groups",
        unit="groups",
        meaning="Prompts whose samples were unfinished when the batch was full: aborted, and sampled first in the next step.",
        reading="up to the number that `oversampling` adds to the batch, if `training.dynamic_sampling.max_aborts` is above 0",
        remedy="0 in most steps: the step waits for the longest completions, so raise `max_aborts` or `oversampling`",
    ),
    Metric(
        name="rollout/cut_off_tokens",
        unit="tokens",
        better="lower",
        meaning="Tokens written for the aborted groups and thrown away, as reported by the servers. Excludes tokens of retracted "
        "requests that were waiting to resume, and of servers that died.",
        reading="the cost of not waiting: compare it with `rollout/length_mean` times the samples of the batch",
        remedy="above a third of these: lower `oversampling`",
    ),
    Metric(
        name="rollout/retired_prompts",
        unit="prompts",
        meaning="Prompts that have reached training.retire_at so far and are not sampled any more.",
        reading="grows towards the size of the train split",
        remedy="near it: the run will end for lack of prompts, so stop or add problems",
    ),
)
_PREFETCH = (
    Metric(
        name="rollout/staleness",
        unit="steps",
        meaning="Updates between the weights that sampled the batch and those that are updated.",
        reading="0 in the first step, then up to `training.staleness`",
        remedy="see `policy/off_policy_effective_sample_size` for its cost",
    ),
    Metric(
        name="rollout/ahead_seconds",
        unit="seconds",
        better="lower",
        meaning="Time to sample and grade the batch while the policy was updated with earlier ones. Not part of the result.",
        reading="near `timing/update_seconds`, so that neither waits for the other",
        remedy="far above: use more servers; `timing/rollout_seconds` has the time spent waiting",
    ),
)
_PICTURES = (
    Metric(
        name="rollout/pictures_mean",
        unit="pictures",
        meaning="Average number of pictures in a prompt.",
        reading="as many as the task has",
        remedy="0 although the task has pictures: look at the prompts",
    ),
    Metric(
        name="rollout/picture_tokens_mean",
        unit="tokens",
        meaning="Average number of picture tokens in a prompt, limited by model.max_pixels.",
        reading="constant, apart from the choice of problems",
        remedy="most of the prompt, and steps are slow: lower `model.max_pixels`",
    ),
)
_TURNS = (
    Metric(
        name="rollout/turns_mean",
        unit="turns",
        label="Turns of a trajectory",
        plot=Plot(figure="turns_and_calls", in_dvc=False),
        meaning="Average number of the policy's turns in a trajectory.",
        reading="as many as the task needs",
        remedy="grows without reward: lower `rollout.agent.max_turns`",
    ),
    Metric(
        name="rollout/turns_max",
        unit="turns",
        meaning="Largest number of turns in a trajectory.",
        reading="below `rollout.agent.max_turns`",
        remedy="at that limit: see `rollout/stop_<reason>_fraction`",
    ),
    Metric(
        name="rollout/samples_mean",
        unit="token sequences",
        better="lower",
        meaning="Average number of token sequences in a trajectory: more than 1 if a chat template rewrites earlier turns.",
        reading="1",
        remedy="above 1: the policy is trained repeatedly on earlier turns whose text changed; choose another `rollout.chat` or "
        "model",
    ),
    Metric(
        name="rollout/tokens_mean",
        unit="tokens",
        meaning="Average length of a trajectory's longest token sequence, including the prompt and the tools' results.",
        reading="determines memory and time",
        remedy="grows because of results: limit the length of tool results",
    ),
    Metric(
        name="rollout/tokens_max",
        unit="tokens",
        meaning="Longest token sequence of the step, limited by rollout.agent.max_tokens.",
        reading="below `rollout.agent.max_tokens`",
        remedy="at that limit: raise it, or shorten tool results",
    ),
    Metric(
        name="rollout/excluded",
        unit="trajectories",
        better="lower",
        meaning="Trajectories, of all sampled, that failed through no fault of the policy.",
        reading="0",
        remedy="above 0: something is broken; read `fault` in the rollouts. Above `rollout.agent.max_excluded` the run stops",
    ),
    Metric(
        name="rollout/left_out",
        unit="trajectories",
        better="lower",
        meaning="Trajectories, of all sampled, that the update does not use: excluded, or without a sampled token.",
        reading="equal to `rollout/excluded`",
        remedy="more: prompts leave no room for a turn, so raise `rollout.agent.max_tokens`",
    ),
    Metric(
        name="rollout/stop_<reason>_fraction",
        unit="share of all trajectories",
        meaning="Trajectories that ended for one reason, such as answered or max_turns.",
        reading="answered, or user_done, for most",
        remedy="limits (turn_length, max_turns, max_tokens, seconds): raise the one that is reached; program_failed: fix the "
        "program",
    ),
    Metric(
        name="rollout/cached_tokens_fraction",
        unit="share of prompt tokens",
        better="higher",
        meaning="Prompt tokens found in the engine's prefix cache. Varies between runs and is not part of the result.",
        reading="near 1 for long conversations",
        remedy="low: turns go to different servers, or the cache is too small (`runtime.engine.max_total_tokens`)",
    ),
)
ROLLOUT = (*_ALWAYS, *_PROMPT_SAMPLING, *_PREFETCH, *_PICTURES, *_TURNS)
