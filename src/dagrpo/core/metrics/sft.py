"""The group `sft/`: supervised fine-tuning before GRPO."""

from dagrpo.core.metrics.definition import Metric

SFT = (
    Metric(
        name="sft/loss",
        unit="nats per token",
        better="lower",
        meaning="Mean negative logprob of the target tokens.",
        reading="falls, then flattens once the policy has learned the format",
        remedy="flat from the start: change the learning rate. Near 0: the policy memorises, so lower `sft.steps`",
    ),
    Metric(
        name="sft/grad_norm",
        unit="norm",
        meaning="Norm of the gradient before clipping.",
        reading="falls with the loss",
        remedy="spikes: lower `sft.learning_rate` or `sft.max_grad_norm`",
    ),
    Metric(
        name="sft/learning_rate",
        unit="learning rate",
        meaning="Learning rate of the step's update.",
        reading="warm-up and decay as in params.yaml",
        remedy="set `sft.learning_rate`",
    ),
)
