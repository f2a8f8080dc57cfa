"""The group `eval/<task>/`: scores of a policy on a task.

A score comes with its interval, `<score>_low` and `<score>_high`. <kind> is greedy or sampled. A task with an oracle is
named <task>_oracle.
"""

from dagrpo.core.metrics.definition import Metric

_SCORES = (
    Metric(
        name="eval/<task>/greedy",
        unit="share of problems",
        better="higher",
        label="Greedy accuracy",
        meaning="Share of problems that the policy solves with one completion at temperature 0. Interval: Wilson's score "
        "interval.",
        reading="its interval covers the choice of problems",
        remedy="compare policies by the paired difference, not by two intervals",
    ),
    Metric(
        name="eval/<task>/greedy_without_pictures",
        unit="share of problems",
        label="Greedy accuracy without pictures",
        meaning="Greedy accuracy if each problem's pictures are left out, for a task that has pictures: the score that the text "
        "alone allows. A policy that uses the pictures scores well above it.",
        reading="greedy accuracy minus this is the value of the pictures to the policy",
        remedy="as high as greedy accuracy: the policy ignores the pictures, or the text reveals the answer",
    ),
    Metric(
        name="eval/<task>/mean_at_<k>",
        unit="share of completions",
        better="higher",
        label="mean@k",
        meaning="Share of correct answers among k completions sampled per problem, averaged over problems: the expected score of "
        "a single sample.",
        reading="less noisy than greedy accuracy",
        remedy="more `evaluation.sampling` samples narrow its interval",
    ),
    Metric(
        name="eval/<task>/pass_at_<k>",
        unit="chance",
        better="higher",
        label="pass@k",
        meaning="Chance that at least one of k samples is correct, by the unbiased estimator of Chen et al. (2021). It rewards "
        "variety: training can raise mean@k and lower pass@k.",
        reading="what a search over samples could reach",
        remedy="falls while mean@k rises: variety is lost, see `policy/entropy`",
    ),
    Metric(
        name="eval/<task>/maj_at_<k>",
        unit="share of problems",
        better="higher",
        label="maj@k",
        meaning="Share of problems for which the most frequent answer of k samples is correct. Completions without an answer do "
        "not vote; a tie counts as the expected value of a random pick. Not for programs under test and instructions (ifeval): two of "
        "these answers cannot be compared with each other.",
        reading="what voting reaches",
        remedy="below mean@k: the policy repeats the same mistakes",
    ),
    Metric(
        name="eval/<task>/<score>_by_<scorer>",
        unit="share",
        better="higher",
        label="By a published scorer",
        meaning="The same score by the rules of a published scorer, one of `evaluation.scoring.also`. Completions that it leaves "
        "undecided count as not right. There is no maj@k: these rules have no votes.",
        reading="beside the main score: how much of a published number depends on its scorer",
        remedy="far from the main score: the report's table of scorers counts the completions on which they differ",
    ),
    Metric(
        name="eval/<task>/<score>_difference",
        unit="share",
        better="higher",
        label="Trained minus base",
        meaning="Trained policy's score minus the base policy's. Both answer the same problems with the same sampling seeds; "
        "pairing the problems makes the difference more precise than either score.",
        reading="bold in the report if its interval excludes 0",
        remedy="its interval includes 0: evaluate more problems or train more seeds",
    ),
)
_COMPLETIONS = (
    Metric(
        name="eval/<task>/truncation_rate_<kind>",
        unit="share of completions",
        better="lower",
        label="Truncated",
        meaning="Completions that reached the token limit before they ended. A truncated completion rarely has an answer, so a "
        "high share measures the limit rather than the policy.",
        reading="compare base and trained",
        remedy="high: raise `evaluation.sampling.max_new_tokens`",
    ),
    Metric(
        name="eval/<task>/missing_answer_rate_<kind>",
        unit="share of completions",
        better="lower",
        label="No answer found",
        meaning="Completions in which the extractor found no answer. They count as wrong.",
        reading="its fall shows how much format alone has gained",
        remedy="compare the three extractors in the report",
    ),
    Metric(
        name="eval/<task>/unverifiable_rate_<kind>",
        unit="share of completions",
        better="lower",
        label="Unverifiable",
        meaning="Completions whose answer the verifier could not compare with the ground truth within the time limit. They do "
        "not count as correct; the true score lies between the reported one and that plus this share.",
        reading="0",
        remedy="raise `evaluation.scoring.verify_seconds` and score again",
    ),
    Metric(
        name="eval/<task>/mean_completion_tokens_<kind>",
        unit="tokens",
        meaning="Average number of tokens in a completion.",
        reading="compare base and trained",
        remedy="as for `rollout/length_mean`",
    ),
    Metric(
        name="eval/<task>/parts_<extractor>_<kind>",
        unit="share of instructions",
        better="higher",
        meaning="Instructions that completions follow, of all in the prompts (task ifeval), by each extractor: strict is the published "
        "strict accuracy of instructions, flexible the loose one.",
        reading="above greedy accuracy and mean@k, for which a completion has to follow all",
        remedy="far above them: prompts with several instructions are what the policy cannot do",
    ),
)
_TURNS = (
    Metric(
        name="eval/<task>/turns_<kind>",
        unit="turns",
        meaning="Average number of turns in a trajectory.",
        reading="as many as the task needs",
        remedy="at the limit: raise `rollout.agent.max_turns`",
    ),
    Metric(
        name="eval/<task>/calls_<kind>",
        unit="calls",
        meaning="Average number of calls in a trajectory.",
        reading="as many as the task needs",
        remedy="see `tool/calls_mean`",
    ),
    Metric(
        name="eval/<task>/called_<kind>",
        unit="share of trajectories",
        meaning="Trajectories with at least one call.",
        reading="compare base and trained",
        remedy="see `tool/called_fraction`",
    ),
    Metric(
        name="eval/<task>/excluded_<kind>",
        unit="share of trajectories",
        better="lower",
        label="Excluded",
        meaning="Trajectories that failed through no fault of the policy, for example because a search server broke. Training "
        "does not use them; an evaluation counts them as unverifiable, so the true score lies between the reported one and that "
        "plus this share.",
        reading="0",
        remedy="repair what broke and sample again",
    ),
    Metric(
        name="eval/<task>/call_<status>_<kind>",
        unit="share of calls",
        label="Call status",
        meaning="ok; failed or timed_out (reported by the tool); unknown_tool, wrong_arguments, missing_name, unclosed or "
        "undecodable (malformed, not carried out); not_run (the trajectory had ended). Every call counts, and the policy reads "
        "what was wrong.",
        reading="ok rises with training",
        remedy="as for `tool/<status>_fraction`",
    ),
    Metric(
        name="eval/<task>/stop_<reason>_<kind>",
        unit="share of trajectories",
        label="End of a trajectory",
        meaning="answered: the policy made no further call. user_done: the user had nothing more to say. turn_length: a turn was "
        "cut at its token limit. max_turns, max_tokens, seconds: a limit of rollout.agent was reached. program_failed: the "
        "agent's program crashed.",
        reading="answered for most",
        remedy="as for `rollout/stop_<reason>_fraction`",
    ),
)
EVALUATION = (*_SCORES, *_COMPLETIONS, *_TURNS)
