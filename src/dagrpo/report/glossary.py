"""Explanation of each metric in the report.

A metric of a run is explained in the words of its definition.
"""

from dagrpo.core.metrics import meaning_of

GLOSSARY = (
    ("Greedy accuracy", f"{meaning_of('eval/<task>/greedy')} Interval: Wilson's score interval."),
    ("mean@k", meaning_of("eval/<task>/mean_at_<k>")),
    ("pass@k", meaning_of("eval/<task>/pass_at_<k>")),
    ("maj@k", meaning_of("eval/<task>/maj_at_<k>")),
    (
        "Interval",
        "A percentile bootstrap over problems (and over seeds, when there are several), if not said otherwise. "
        "Problems, not single completions, are resampled: completions of one problem are not independent.",
    ),
    ("Trained minus base", meaning_of("eval/<task>/<score>_difference")),
    ("Cut at the limit", meaning_of("eval/<task>/truncation_rate_<kind>")),
    ("No answer read", meaning_of("eval/<task>/missing_answer_rate_<kind>")),
    ("Not verifiable in time", meaning_of("eval/<task>/unverifiable_rate_<kind>")),
    ("Mean reward", meaning_of("reward/mean")),
    ("Entropy", meaning_of("policy/entropy")),
    ("Prompts whose samples differ in reward", f"All but these: {meaning_of('rollout/groups_without_spread')}"),
    ("Trainer against engine", meaning_of("policy/logprob_difference_mean")),
    (
        "Digest",
        "The sha256 of a file's bytes; a checkpoint's is that of its manifest, which lists the digest of each of "
        "its files. Equal digests are equal contents.",
    ),
)

# Only where the policy answered held-out problems while it was trained.
OF_HELD_OUT = (("Held-out problems", meaning_of("held_out/<task>/greedy")),)

# Only where problems were attempted without their pictures.
OF_PICTURES = (("Greedy accuracy without pictures", meaning_of("eval/<task>/greedy_without_pictures")),)

# Only where attempts have several turns, or call tools.
OF_CONVERSATIONS = (
    (
        "Turn",
        "One answer of the policy. After it come the results of the tools that it called, or a simulated user's reply, "
        "and the next turn; none of these are tokens that the policy is trained on.",
    ),
    ("Call status", meaning_of("eval/<task>/call_<status>_<kind>")),
    ("How attempts end", meaning_of("eval/<task>/stop_<reason>_<kind>")),
    ("Excluded", meaning_of("eval/<task>/excluded_<kind>")),
)
