"""The group `sft/`: supervised fine-tuning before GRPO."""

from dagrpo.core.metrics.definition import Metric

SFT = (
    Metric(
        name="sft/loss", unit="nats per token", meaning="Mean negative logprob of the tokens that are to be learned."
    ),
    Metric(name="sft/grad_norm", unit="norm", meaning="The gradient's norm before clipping."),
    Metric(name="sft/learning_rate", unit="learning rate", meaning="That of the step's update."),
)
