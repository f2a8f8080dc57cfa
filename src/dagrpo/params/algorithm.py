"""Section `algorithm`: the objective, made of plug-ins with parameters of their own."""

from typing import Annotated, Any, Literal

from pydantic import Field

from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.algorithms.losses import LOSSES
from dagrpo.params.base import Section
from dagrpo.params.plugged import Choice, Chosen

_GRPO: Any = {"name": "grpo"}
_PPO_CLIP: Any = {"name": "ppo_clip"}


class Algorithm(Section):
    advantage: Annotated[Choice, Chosen(ADVANTAGES)] = Field(
        _GRPO, description="How much better a completion is than expected."
    )
    loss: Annotated[Choice, Chosen(LOSSES)] = Field(_PPO_CLIP, description="What the policy minimises on each token.")
    aggregation: Literal["default", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant"] = Field(
        "default",
        description=(
            "How tokens are added up: the mean over the tokens of a mini-batch; the mean over its sequences of their token "
            "mean or sum; constant: that sum divided by rollout.max_new_tokens; default: what the loss was published with."
        ),
    )
    kl_coefficient: Annotated[float, Field(ge=0, le=1000)] = Field(
        0.0, description="Weight of the k3 KL divergence to the initial policy; at 0 no reference model is loaded."
    )
