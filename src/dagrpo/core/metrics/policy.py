"""The group `policy/`: a step's update, and engine against trainer.

w is the trainer's probability of a sampled token before the step over the engine's when it sampled, before any correction.
Losses, corrections and terms put their own metrics into this group; a user's plug-in defines its own.
"""

from dagrpo.core.metrics.definition import Metric

_UPDATE = (
    Metric(name="policy/loss", unit="loss", meaning="What was minimised, all terms included, mean over mini-batches."),
    Metric(
        name="policy/kl",
        unit="nats per token",
        meaning="Divergence of the policy from the initial one, by algorithm.kl.estimator; 0 where there is no reference.",
    ),
    Metric(
        name="policy/entropy",
        unit="nats per token",
        meaning="Average uncertainty of the policy over its next token, before the update. Near 0 all samples of a prompt are alike "
        "and nothing more can be learned from them.",
    ),
    Metric(
        name="policy/grad_norm", unit="norm", meaning="The gradient's norm before clipping, mean over mini-batches."
    ),
    Metric(
        name="policy/vision_grad_norm",
        unit="norm",
        meaning="That of the vision tower's part of it. At 0 the pictures say nothing that is learned; missing where no tower is "
        "trained.",
    ),
    Metric(
        name="policy/loss_scale",
        unit="factor",
        meaning="What the loss is multiplied by in float16, after the step; missing in other types.",
    ),
    Metric(name="policy/learning_rate", unit="learning rate", meaning="That of the step's last update."),
    Metric(name="policy/advantage_mean", unit="advantage", meaning="Average over the attempts that are learned from."),
    Metric(name="policy/advantage_std", unit="advantage", meaning="Standard deviation over these attempts."),
)
_TEACHER = (
    Metric(
        name="policy/teacher_kl",
        unit="nats per token",
        meaning="Divergence KL(policy, teacher), estimated as the mean of logprob - teacher logprob over the sampled tokens.",
    ),
    Metric(
        name="policy/teacher_far_fraction",
        unit="share of tokens",
        meaning="Tokens that the policy finds likelier than the teacher by more than 2 nats.",
    ),
)
_PLUGINS = (
    Metric(
        name="policy/clip_fraction",
        unit="share of tokens",
        meaning="Tokens at which the loss holds the ratio to the old policy at a bound, or masks it.",
    ),
    Metric(
        name="policy/dual_clip_fraction",
        unit="share of tokens",
        meaning="Tokens with a negative advantage whose loss is held at the bound of ppo_clip's dual_clip.",
    ),
    Metric(
        name="policy/selected_fraction",
        unit="share of tokens",
        meaning="Tokens that clip_cov, kl_cov or top_entropy choose.",
    ),
    Metric(
        name="policy/sequence_weight", unit="weight", meaning="Average weight of vespo, over tokens, of their sequence."
    ),
    Metric(
        name="policy/correction_truncated_fraction",
        unit="share of tokens",
        meaning="Tokens whose weight algorithm.correction cuts to its bound.",
    ),
    Metric(
        name="policy/correction_masked_fraction",
        unit="share of tokens",
        meaning="Tokens that algorithm.correction leaves out of the loss.",
    ),
    Metric(
        name="policy/correction_below_fraction",
        unit="share of tokens",
        meaning="Those of them whose weight is below the minimum.",
    ),
    Metric(
        name="policy/correction_above_fraction",
        unit="share of tokens",
        meaning="Those of them whose weight is above the maximum.",
    ),
    Metric(
        name="policy/off_policy_masked_fraction",
        unit="share of tokens",
        meaning="Tokens that algorithm.off_policy_mask leaves out, where it is set.",
    ),
    Metric(
        name="policy/squared_log_ratio",
        unit="nats squared",
        meaning="Average of log(w) squared under the policy as it is updated: what the term of that name makes small.",
    ),
    Metric(
        name="policy/<term>_coefficient",
        unit="coefficient",
        meaning="What a term of algorithm.terms was multiplied by; an adaptive one changes from step to step.",
    ),
)
_ENGINE = (
    Metric(
        name="policy/logprob_difference_mean",
        unit="nats",
        meaning="The gap between the logprobs with which the engine sampled and those which the trainer computes for the "
        "same tokens, averaged over tokens. Without training.staleness it should stay at rounding error.",
    ),
    Metric(name="policy/logprob_difference_max", unit="nats", meaning="The largest such gap of the step's tokens."),
    Metric(
        name="policy/off_policy_kl",
        unit="nats per token",
        meaning="Mean of -log w, an estimate of KL(engine, trainer).",
    ),
    Metric(
        name="policy/off_policy_k3_kl",
        unit="nats per token",
        meaning="Mean of w - log w - 1: the same divergence with less noise, and never negative.",
    ),
    Metric(
        name="policy/off_policy_trainer_perplexity",
        unit="perplexity",
        meaning="exp of the mean of -logprob of each trajectory for the trainer, mean over trajectories.",
    ),
    Metric(name="policy/off_policy_rollout_perplexity", unit="perplexity", meaning="The same for the engine."),
    Metric(
        name="policy/off_policy_perplexity_ratio",
        unit="ratio",
        meaning="Trainer's over engine's perplexity in each trajectory, mean over trajectories.",
    ),
    Metric(name="policy/off_policy_chi2_token", unit="variance", meaning="Mean of w^2, less 1."),
    Metric(
        name="policy/off_policy_chi2_sequence",
        unit="variance",
        meaning="The same of the product of w over each trajectory.",
    ),
    Metric(name="policy/off_policy_weight_mean", unit="weight", meaning="Mean of w over tokens."),
    Metric(name="policy/off_policy_weight_min", unit="weight", meaning="The smallest w of the step's tokens."),
    Metric(name="policy/off_policy_weight_max", unit="weight", meaning="The largest w of the step's tokens."),
    Metric(name="policy/off_policy_weight_std", unit="weight", meaning="Standard deviation of w over tokens."),
    Metric(
        name="policy/off_policy_effective_sample_size",
        unit="share of tokens",
        meaning="(sum of w)^2 / (n * sum of w^2): how many of the n tokens would be worth as much if all weighed the same.",
    ),
    Metric(
        name="policy/off_policy_outside_fraction", unit="share of tokens", meaning="Tokens with w outside 0.5 to 2."
    ),
    Metric(
        name="policy/off_policy_probability_correlation",
        unit="correlation",
        meaning="Pearson's, of both probabilities of the sampled tokens.",
    ),
)
POLICY = (*_UPDATE, *_TEACHER, *_PLUGINS, *_ENGINE)
