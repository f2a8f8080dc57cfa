"""The group `reward/`: rewards of a step's trajectories.

Means are over the trajectories of the update, unless a definition says otherwise.
"""

from dagrpo.core.metrics.definition import Metric, Plot

REWARD = (
    Metric(
        name="reward/mean",
        unit="reward",
        better="higher",
        label="Mean reward",
        plot=Plot(figure="learning_curve"),
        meaning="Average reward of the completions sampled in a training step, on training problems: evidence of learning, "
        "not of generalisation.",
        reading="rises, then flattens once the policy has learned what it can; single steps vary with the sampled prompts, so "
        "look at a moving average",
        remedy="flat from the start: see `rollout/groups_without_spread` and `reward/missing_answer_fraction`. Rises without the "
        "evaluation: the policy exploits the reward or memorises the prompts, so read completions",
    ),
    Metric(
        name="reward/std",
        unit="reward",
        meaning="Standard deviation of the rewards over the whole step.",
        reading="falls to 0 as all trajectories earn the same",
        remedy="near 0 from the start: choose problems that the policy solves sometimes (`training.min_pass_rate`, "
        "`max_pass_rate`)",
    ),
    Metric(
        name="reward/greedy_mean",
        unit="reward",
        better="higher",
        meaning="Average reward of each prompt's completion at temperature 0; recorded if the advantage needs one (remax).",
        reading="above `reward/mean`, the policy knows more than its samples show; the two meet as entropy falls",
        remedy="far above for many steps: lower `rollout.temperature`",
    ),
    Metric(
        name="reward/component/<label>",
        unit="points of the component",
        better="higher",
        meaning="Average of one component of the reward, before its weight.",
        reading="shows which component moves `reward/mean`",
        remedy="a component rises while `reward/accuracy` falls, of which training and the report warn: read completions, lower "
        "its weight, or let it require another one (`requires`)",
    ),
    Metric(
        name="reward/judge_calls",
        unit="answers",
        meaning="Answers of the judge that the step used, recorded ones included; recorded with the component judge.",
        reading="one for each trajectory; equal trajectories are asked about once, but counted each",
        remedy="far above the number of trajectories: see `reward/judge_unparsable_fraction`",
    ),
    Metric(
        name="reward/judge_tokens",
        unit="tokens",
        better="lower",
        meaning="Tokens of the judge's prompts and answers in the step, as its server counts them, recorded answers included: the "
        "same when a run is repeated from them.",
        reading="times the price of a token, the cost of the step",
        remedy="too many: set `reasons` of the judge to false, lower `longest`, or let it require a cheaper component (`requires`)",
    ),
    Metric(
        name="reward/judge_unparsable_fraction",
        unit="share of trajectories",
        better="lower",
        meaning="Trajectories of which the judge gave no verdict in two answers; they are excluded, not counted as 0.",
        reading="0 with `structured`, else a few in a thousand",
        remedy="above `rollout.agent.max_excluded` the run ends: raise `max_tokens` of the judge, set `structured` to true, or take "
        "another judge",
    ),
    Metric(
        name="reward/reward_model_clipped_fraction",
        unit="share of trajectories",
        better="lower",
        meaning="Trajectories whose score of the reward model was clipped; recorded with the component reward_model.",
        reading="near 0: clipped scores do not differ, and nothing is learned from their difference",
        remedy="rises: the policy leaves the scores that the reward model was trained for, so read completions; or correct `mean`, "
        "`scale`, `lowest` and `highest`",
    ),
    Metric(
        name="reward/accuracy",
        unit="share of trajectories",
        better="higher",
        meaning="Trajectories with a correct answer.",
        reading="`reward/mean` without shaping and penalties; if prompts are sampled without a filter, step 1 shows the base "
        "policy's score",
        remedy="above 0.9: use harder problems; near 0: use easier ones, more `sft.steps` or a larger model",
    ),
    Metric(
        name="reward/missing_answer_fraction",
        unit="share of trajectories",
        better="lower",
        meaning="Trajectories in which the extractor found no answer.",
        reading="falls within the first steps, since the answer format is the easiest thing to learn",
        remedy="high from the start: read completions (`dagrpo grade` shows how each is parsed), choose another "
        "`reward.extractor`, or raise `sft.steps`",
    ),
    Metric(
        name="reward/unverifiable_fraction",
        unit="share of trajectories",
        better="lower",
        meaning="Trajectories whose answer the verifier could not compare with the ground truth within the time limit.",
        reading="0, or a few in a thousand",
        remedy="rises: the policy writes answers that are slow to compare; read some, raise `reward.verify_seconds` or penalise "
        "them (`unverifiable` of the component accuracy)",
    ),
)
