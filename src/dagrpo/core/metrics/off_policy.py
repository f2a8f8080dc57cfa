"""The group `policy/`, second part: engine against trainer.

w is the trainer's probability of a sampled token before the update, divided by the engine's when it sampled, before any
correction.
"""

from dagrpo.core.metrics.definition import Metric, Plot

_LOGPROBS = (
    Metric(
        name="policy/logprob_difference_max",
        unit="nats",
        better="lower",
        label="Largest logprob difference",
        plot=Plot(figure="logprob_difference"),
        meaning="Largest absolute difference between the engine's and the trainer's logprob of a token in the step.",
        reading="up to 1e-4 in float32; in bfloat16 single tokens may differ by 0.5",
        remedy="rises while the mean stays: look at the tokens",
    ),
    Metric(
        name="policy/logprob_difference_mean",
        unit="nats",
        better="lower",
        label="Mean logprob difference",
        plot=Plot(figure="logprob_difference"),
        meaning="Absolute difference between the logprob that the engine sampled with and the one that the trainer computes for "
        "the same token, averaged over tokens. Without training.staleness it stays at rounding error.",
        reading="up to about 1e-6 in float32, 1e-3 to 5e-2 in bfloat16",
        remedy="above that: `training.staleness`, another precision or another tokenization; `training.gates` stops the run in "
        "the worst cases",
    ),
)
_DIVERGENCE = (
    Metric(
        name="policy/off_policy_kl",
        unit="nats per token",
        meaning="Mean of -log w: an estimate of KL(engine, trainer).",
        reading="near 0, of either sign: rounding",
        remedy="steadily above 1e-3 in bfloat16 or 1e-5 in float32: temperature, template or weights differ",
    ),
    Metric(
        name="policy/off_policy_k3_kl",
        unit="nats per token",
        better="lower",
        meaning="Mean of w - log w - 1: an estimate of KL(engine, trainer) with less noise, never negative.",
        reading="the best one to plot; its trend matters more than its level",
        remedy="rises: engine and trainer drift apart; find what changed together with the weights",
    ),
    Metric(
        name="policy/off_policy_trainer_perplexity",
        unit="perplexity",
        meaning="Trainer's perplexity: exp of each trajectory's mean -logprob, averaged over trajectories.",
        reading="rises and falls with the engine's",
        remedy="differs from the engine's: the engine is wrong",
    ),
    Metric(
        name="policy/off_policy_rollout_perplexity",
        unit="perplexity",
        meaning="Engine's perplexity: exp of each trajectory's mean -logprob, averaged over trajectories.",
        reading="rises and falls with the trainer's",
        remedy="differs from the trainer's: the engine is wrong",
    ),
    Metric(
        name="policy/off_policy_perplexity_ratio",
        unit="ratio",
        meaning="Trainer's perplexity of each trajectory divided by the engine's, averaged over trajectories.",
        reading="1; above 1 the engine is more certain of its samples than the trainer",
        remedy="steadily off by 0.01: as for `policy/off_policy_kl`",
    ),
    Metric(
        name="policy/off_policy_chi2_token",
        unit="variance",
        better="lower",
        meaning="Mean of w^2, minus 1.",
        reading="the variance of token weights, dominated by a few large ones",
        remedy="above 0.1: prefer a correction that masks",
    ),
    Metric(
        name="policy/off_policy_chi2_sequence",
        unit="variance",
        better="lower",
        meaning="Mean over trajectories of the squared product of w, minus 1.",
        reading="grows with length",
        remedy="above 1: sequence corrections have too much variance; use a token correction",
    ),
)
_WEIGHTS = (
    Metric(
        name="policy/off_policy_weight_mean",
        unit="weight",
        meaning="Mean of w over tokens.",
        reading="1, apart from noise",
        remedy="another mean is an error: weights or temperature of engine and trainer differ",
    ),
    Metric(
        name="policy/off_policy_weight_min",
        unit="weight",
        better="higher",
        meaning="Smallest w of the step's tokens.",
        reading="the token that the engine overrates most",
        remedy="near 0 in float32: look at that token",
    ),
    Metric(
        name="policy/off_policy_weight_max",
        unit="weight",
        better="lower",
        meaning="Largest w of the step's tokens.",
        reading="the reason for truncation",
        remedy="above 2 in float32: look at that token; in bfloat16 choose a correction with a bound",
    ),
    Metric(
        name="policy/off_policy_weight_std",
        unit="weight",
        better="lower",
        meaning="Standard deviation of w over tokens.",
        reading="the noise that corrections add to the loss",
        remedy="above 0.3: use a correction that masks",
    ),
    Metric(
        name="policy/off_policy_effective_sample_size",
        unit="share of tokens",
        better="higher",
        meaning="(sum of w)^2 / (n * sum of w^2): the share of the n tokens that would carry as much information with equal "
        "weights.",
        reading="0.9 means that a tenth of the batch is lost",
        remedy="below 0.9: use larger batches, or fix the difference between engine and trainer",
    ),
    Metric(
        name="policy/off_policy_outside_fraction",
        unit="share of tokens",
        better="lower",
        meaning="Tokens with w outside 0.5 to 2.",
        reading="shows tokens that a mean hides",
        remedy="above 0.001: look at the tokens (`rollout_logprobs` and `logprob_differences` of the rollouts)",
    ),
    Metric(
        name="policy/off_policy_probability_correlation",
        unit="correlation",
        better="higher",
        meaning="Pearson correlation between the engine's and the trainer's probabilities of the sampled tokens.",
        reading="above 0.999",
        remedy="below 0.99: the engine does not compute this policy",
    ),
)
OFF_POLICY = (*_LOGPROBS, *_DIVERGENCE, *_WEIGHTS)
