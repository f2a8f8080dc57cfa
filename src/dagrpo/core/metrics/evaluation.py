"""The group `eval/<task>/`: scores of a policy on a task.

A score comes with its interval, `<score>_low` and `<score>_high`. <kind> is greedy or sampled. A task with an oracle is
called <task>_oracle.
"""

from dagrpo.core.metrics.definition import Metric

_SCORES = (
    Metric(
        name="eval/<task>/greedy",
        unit="share of problems",
        meaning="Share of problems whose one completion at temperature 0 is right.",
    ),
    Metric(
        name="eval/<task>/greedy_without_pictures",
        unit="share of problems",
        meaning="The same when each problem's pictures are left out, of a task that has some: what the text alone gives. A policy "
        "that looks is well above it.",
    ),
    Metric(
        name="eval/<task>/mean_at_<k>",
        unit="share of completions",
        meaning="Share of right answers among k completions sampled per problem, averaged over problems: what to expect of a "
        "single sample.",
    ),
    Metric(
        name="eval/<task>/pass_at_<k>",
        unit="chance",
        meaning="Chance that at least one of k samples is right, by the unbiased estimator of Chen et al. (2021). It rewards "
        "variety: training can raise mean@k and lower pass@k.",
    ),
    Metric(
        name="eval/<task>/maj_at_<k>",
        unit="share of problems",
        meaning="Whether the most frequent answer of k samples is right. Completions without an answer do not vote; among "
        "tied answers the expected value of picking one at random is taken.",
    ),
    Metric(
        name="eval/<task>/<score>_difference",
        unit="share",
        meaning="What the trained policy scores above the base policy. Both answered the same problems with the same sampling "
        "seeds; the difference is taken problem by problem, so it is known better than either score.",
    ),
)
_COMPLETIONS = (
    Metric(
        name="eval/<task>/truncation_rate_<kind>",
        unit="share of completions",
        meaning="Share of completions that reached the token limit before they ended. A cut completion rarely has an answer, "
        "so a high share measures the limit rather than the policy.",
    ),
    Metric(
        name="eval/<task>/missing_answer_rate_<kind>",
        unit="share of completions",
        meaning="Share of completions in which the extractor found no answer. They count as wrong.",
    ),
    Metric(
        name="eval/<task>/unverifiable_rate_<kind>",
        unit="share of completions",
        meaning="Share of completions whose answer could not be compared with the ground truth within the time allowed. They do "
        "not count as right; the true score lies between the one shown and that plus this share.",
    ),
    Metric(
        name="eval/<task>/mean_completion_tokens_<kind>",
        unit="tokens",
        meaning="Average number of tokens that the policy wrote.",
    ),
)
_TURNS = (
    Metric(name="eval/<task>/turns_<kind>", unit="turns", meaning="Average number of turns in an attempt."),
    Metric(name="eval/<task>/calls_<kind>", unit="calls", meaning="Average number of calls in an attempt."),
    Metric(name="eval/<task>/called_<kind>", unit="share of attempts", meaning="Attempts with at least one call."),
    Metric(
        name="eval/<task>/excluded_<kind>",
        unit="share of attempts",
        meaning="Share of attempts that something broke which the policy has no part in, such as a search server. Nothing is learned "
        "from them; in an evaluation they do not count as right and are part of the answers that could not be verified, so "
        "the true score lies between the one shown and that plus this share.",
    ),
    Metric(
        name="eval/<task>/call_<status>_<kind>",
        unit="share of calls",
        meaning="How a call went: ok; failed or timed_out (the tool said so); unknown_tool, wrong_arguments, missing_name, unclosed "
        "or undecodable (as the policy wrote it, it could not be carried out); not_run (the attempt was over). Every call "
        "is counted, and the policy is told what was wrong.",
    ),
    Metric(
        name="eval/<task>/stop_<reason>_<kind>",
        unit="share of attempts",
        meaning="answered: the policy called nothing more. user_done: the user had nothing more to say. turn_length: a turn was cut at "
        "its token limit. max_turns, max_tokens, seconds: a limit of rollout.agent was reached. program_failed: the agent's "
        "program died.",
    ),
)
EVALUATION = (*_SCORES, *_COMPLETIONS, *_TURNS)
