"""How to read each metric of the report."""

GLOSSARY = (
    (
        "Greedy accuracy",
        "Share of problems whose one completion at temperature 0 is right. Interval: Wilson's score interval.",
    ),
    (
        "mean@k",
        "Share of right answers among k completions sampled per problem, averaged over problems: what to expect of a "
        "single sample.",
    ),
    (
        "pass@k",
        "Chance that at least one of k samples is right, by the unbiased estimator of Chen et al. (2021). It rewards "
        "variety: training can raise mean@k and lower pass@k.",
    ),
    (
        "maj@k",
        "Whether the most frequent answer of k samples is right. Completions without an answer do not vote; among "
        "tied answers the expected value of picking one at random is taken.",
    ),
    (
        "Interval",
        "A percentile bootstrap over problems (and over seeds, when there are several), if not said otherwise. "
        "Problems, not single completions, are resampled: completions of one problem are not independent.",
    ),
    (
        "Trained minus base",
        "Both policies answered the same problems with the same sampling seeds; the difference is taken problem by "
        "problem, so it is known better than either score.",
    ),
    (
        "Cut at the limit",
        "Share of completions that reached the token limit before they ended. A cut completion rarely has an answer, "
        "so a high share measures the limit rather than the policy.",
    ),
    (
        "No answer read",
        "Share of completions in which the extractor found no answer. They count as wrong.",
    ),
    (
        "Not verifiable in time",
        "Share of completions whose answer could not be compared with the ground truth within the time allowed. They do "
        "not count as right; the true score lies between the one shown and that plus this share.",
    ),
    (
        "Mean reward",
        "Average reward of the completions sampled in a training step, on training problems: evidence of learning, "
        "not of generalisation.",
    ),
    (
        "Entropy",
        "Average uncertainty of the policy over its next token, in nats. Near 0 all samples of a prompt are alike "
        "and nothing more can be learned from them.",
    ),
    (
        "Trainer against engine",
        "The gap between the logprobs with which the engine sampled and those which the trainer computes for the "
        "same tokens. It should stay at rounding error.",
    ),
    (
        "Digest",
        "The sha256 of a file's bytes; a checkpoint's is that of its manifest, which lists the digest of each of "
        "its files. Equal digests are equal contents.",
    ),
)

# Only where attempts have several turns, or call tools.
OF_CONVERSATIONS = (
    (
        "Turn",
        "One answer of the policy. After it come the results of the tools that it called, or a simulated user's reply, "
        "and the next turn; none of these are tokens that the policy is trained on.",
    ),
    (
        "Call status",
        "How a call went: ok; failed or timed_out (the tool said so); unknown_tool, wrong_arguments, missing_name, unclosed "
        "or undecodable (as the policy wrote it, it could not be carried out); not_run (the attempt was over). Every call "
        "is counted, and the policy is told what was wrong.",
    ),
    (
        "How attempts end",
        "answered: the policy called nothing more. user_done: the user had nothing more to say. turn_length: a turn was cut at "
        "its token limit. max_turns, max_tokens, seconds: a limit of rollout.agent was reached. program_failed: the agent's "
        "program died.",
    ),
    (
        "Excluded",
        "Share of attempts that something broke which the policy has no part in, such as a search server. Nothing is learned "
        "from them; in an evaluation they do not count as right and are part of the answers that could not be verified, so "
        "the true score lies between the one shown and that plus this share.",
    ),
)
