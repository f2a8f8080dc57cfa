"""The group `policy/`, first part: the update of a step.

Losses, corrections and terms add metrics to this group; a user's plug-in defines its own.
"""

from dagrpo.core.metrics.definition import Metric, Plot

_UPDATE = (
    Metric(
        name="policy/loss",
        unit="loss",
        meaning="Minimised objective, all terms included; mean over mini-batches.",
        reading="around 0 without a trend for most losses, since advantages have mean 0: not a measure of progress",
        remedy="only matters if it is not finite: see `gate/skipped_updates`",
    ),
    Metric(
        name="policy/kl",
        unit="nats per token",
        meaning="Divergence of the policy from the reference, by algorithm.kl.estimator; 0 without a reference.",
        reading="grows with training, usually to a few hundredths; a jump means that the policy has left familiar language",
        remedy="grows without reward: raise `algorithm.kl.coefficient` or lower `training.learning_rate`",
    ),
    Metric(
        name="policy/entropy",
        unit="nats per token",
        label="Entropy",
        plot=Plot(figure="learning_curve"),
        meaning="Average uncertainty of the policy about its next token, before the update. Near 0 all samples of a prompt are "
        "alike, and the policy learns nothing more from them.",
        reading="falls slowly; a collapse within a few steps ends exploration",
        remedy="collapses: use a higher upper clip bound (preset dapo), an entropy term or a lower learning rate. Rises without "
        "end: the policy degenerates, so do the opposite",
    ),
    Metric(
        name="policy/grad_norm",
        unit="norm",
        meaning="Norm of the gradient before clipping, mean over mini-batches.",
        reading="steady, often below 1; 0 in a step without any advantage",
        remedy="spikes: lower `training.max_grad_norm` or the learning rate, and check `policy/off_policy_weight_max` at the same "
        "step",
    ),
    Metric(
        name="policy/vision_grad_norm",
        unit="norm",
        meaning="Norm of the gradient of the vision tower. 0 means that the pictures contribute nothing to learning; missing if "
        "the tower is not trained.",
        reading="a steady share of `policy/grad_norm`",
        remedy="far above that: lower `training.vision_learning_rate`, or set `training.vision: frozen`",
    ),
    Metric(
        name="policy/loss_scale",
        unit="factor",
        meaning="Factor that multiplies the loss in float16, after the step; missing for other dtypes.",
        reading="a power of two, initially 65,536",
        remedy="falls below 1: gradients are too large for float16; train in bfloat16",
    ),
    Metric(
        name="policy/learning_rate",
        unit="learning rate",
        meaning="Learning rate of the step's last update.",
        reading="warm-up as in params.yaml, then constant",
        remedy="set `training.learning_rate`",
    ),
    Metric(
        name="policy/advantage_mean",
        unit="advantage",
        meaning="Average advantage of the trajectories of the update.",
        reading="0 for advantages within groups of equal size; otherwise it drifts with the baseline",
        remedy="far from 0: most groups have lost trajectories (`rollout/left_out`), or the baseline does not fit",
    ),
    Metric(
        name="policy/advantage_std",
        unit="advantage",
        meaning="Standard deviation of the advantages of the update's trajectories.",
        reading="near 1 if advantages are divided by their deviation; falls with the share of groups without spread",
        remedy="near 0: the policy learns nothing, see `rollout/groups_without_spread`",
    ),
)
_TEACHER = (
    Metric(
        name="policy/teacher_kl",
        unit="nats per token",
        better="lower",
        meaning="Divergence KL(policy, teacher), estimated as the mean of logprob - teacher logprob over the sampled tokens.",
        reading="falls as the policy learns",
        remedy="flat from the start: the teacher equals the policy, or the learning rate is too small; several nats: the teacher "
        "writes in another format or uses another template",
    ),
    Metric(
        name="policy/teacher_far_fraction",
        unit="share of tokens",
        better="lower",
        meaning="Tokens whose logprob under the policy exceeds that under the teacher by more than 2 nats.",
        reading="a small share with a large divergence is a matter of format, such as how an answer ends",
        remedy="look at the tokens (`teacher_logprobs` of the rollouts)",
    ),
)
_PLUGINS = (
    Metric(
        name="policy/clip_fraction",
        unit="share of tokens",
        meaning="Tokens at which the loss clips or masks the ratio to the old policy.",
        reading="0 with one mini-batch per step, where the ratio is 1; otherwise a few percent",
        remedy="above 0.2: use fewer `training.mini_batches` or a lower learning rate. 0 with several: the bounds never bind",
    ),
    Metric(
        name="policy/dual_clip_fraction",
        unit="share of tokens",
        meaning="Tokens with a negative advantage at which dual_clip of ppo_clip bounds the loss.",
        reading="near 0",
        remedy="above 0.01: the update moves far from the sampling policy; use fewer mini-batches",
    ),
    Metric(
        name="policy/selected_fraction",
        unit="share of tokens",
        meaning="Tokens that clip_cov, kl_cov or top_entropy select.",
        reading="the share that the loss's parameters request",
        remedy="another share: the step has too few tokens for it",
    ),
    Metric(
        name="policy/sequence_weight",
        unit="weight",
        meaning="Average over tokens of their sequence's weight in vespo.",
        reading="near 1",
        remedy="far below: sequences are off-policy, see `policy/off_policy_chi2_sequence`",
    ),
    Metric(
        name="policy/correction_truncated_fraction",
        unit="share of tokens",
        better="lower",
        meaning="Tokens whose weight algorithm.correction truncates to its bound.",
        reading="below 0.01 in bfloat16, 0 in float32",
        remedy="above 0.05: engine and trainer compute different policies; see `policy/off_policy_k3_kl`",
    ),
    Metric(
        name="policy/correction_masked_fraction",
        unit="share of tokens",
        better="lower",
        meaning="Tokens that algorithm.correction masks out of the loss.",
        reading="below 0.01 in bfloat16, 0 in float32; for sequence corrections it grows with the length",
        remedy="above 0.2 for a sequence correction: use wider bounds, or a token correction",
    ),
    Metric(
        name="policy/correction_below_fraction",
        unit="share of tokens",
        better="lower",
        meaning="Tokens that algorithm.correction masks because their weight is below the minimum.",
        reading="about equal to the share above the maximum",
        remedy="on one side only: a systematic shift, so temperature, template or weights differ",
    ),
    Metric(
        name="policy/correction_above_fraction",
        unit="share of tokens",
        better="lower",
        meaning="Tokens that algorithm.correction masks because their weight is above the maximum.",
        reading="about equal to the share below the minimum",
        remedy="on one side only: a systematic shift, so temperature, template or weights differ",
    ),
    Metric(
        name="policy/off_policy_masked_fraction",
        unit="share of tokens",
        better="lower",
        meaning="Tokens that algorithm.off_policy_mask masks out; recorded if it is set.",
        reading="rises over the mini-batches of a step",
        remedy="above 0.1: lower the learning rate or use fewer mini-batches",
    ),
    Metric(
        name="policy/squared_log_ratio",
        unit="nats squared",
        better="lower",
        meaning="Average of log(w) squared during the update: the quantity that the term squared_log_ratio penalises.",
        reading="small and steady",
        remedy="grows: raise the term's coefficient",
    ),
    Metric(
        name="policy/<term>_coefficient",
        unit="coefficient",
        meaning="Coefficient of a term of algorithm.terms; an adaptive term changes it from step to step.",
        reading="constant, except for adaptive_entropy, where it rises while entropy is below its target",
        remedy="at its limit for many steps: the target is out of reach",
    ),
)
POLICY = (*_UPDATE, *_TEACHER, *_PLUGINS)
