"""Section `algorithm`: the objective, composed of plug-ins with their parameters."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.algorithms.corrections import CORRECTIONS
from dagrpo.algorithms.divergence import Estimator
from dagrpo.algorithms.losses import LOSSES, aggregation_of
from dagrpo.algorithms.teacher_config import Teacher
from dagrpo.algorithms.terms import TERMS, Weighed, computed
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice, Chosen, Several
from dagrpo.core.section import Section

_GRPO: Any = {"name": "grpo"}
_PPO_CLIP: Any = {"name": "ppo_clip"}
_TOKEN_TRUNCATED: Any = {"name": "token_truncated"}
_NO_TERMS: Any = {}


class Kl(Section):
    """The divergence to the initial policy."""

    coefficient: Annotated[float, Field(ge=0, le=1000)] = Field(
        0.0, description="Weight of the KL divergence to the initial policy; at 0 no reference model is loaded."
    )
    estimator: Estimator = Field(
        "k3", description="Estimator on the sampled tokens. With +: the value of that estimator and the gradient of k2."
    )
    place: Literal["loss", "reward"] = Field(
        "loss",
        description="loss: added to each token's loss; reward: subtracted from its reward before advantages are computed.",
    )
    corrected: bool = Field(
        False,
        description=(
            "Multiply each token's estimate by the ratio of the policy to the one that sampled (place loss, estimator k1 or k3), which "
            "makes value and gradient those of the divergence in all updates of a step (DeepSeek-V3.2). If false, k3 has in the "
            "first update the value of the divergence and the gradient of the reverse one, KL(initial || trained)."
        ),
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.corrected and self.place == "reward":
            raise UserError(
                "algorithm.kl.corrected applies to a divergence in the loss: set algorithm.kl.place to loss, or corrected to false"
            )
        if self.place == "reward" and self.estimator.endswith("+"):
            raise UserError(
                f"algorithm.kl.estimator is {self.estimator}, whose + selects a gradient, but a reward has none: write "
                f"{self.estimator.removesuffix('+')}, or set algorithm.kl.place to loss"
            )
        if self.corrected and self.estimator not in ("k1", "k3"):
            raise UserError(
                f"algorithm.kl.corrected multiplies by a ratio, and with algorithm.kl.estimator {self.estimator} the gradient is then not "
                "that of the divergence: set algorithm.kl.estimator to k1 or k3, or corrected to false"
            )
        if self.coefficient and self.place == "loss" and self.estimator == "k1" and not self.corrected:
            raise UserError(
                "algorithm.kl.estimator is k1, whose gradient in the loss is 0 on average: write k1+ or k3, or set "
                "algorithm.kl.corrected to true"
            )
        return self


class Algorithm(Section):
    advantage: Annotated[Choice, Chosen(ADVANTAGES)] = Field(
        _GRPO, description="Estimator of how much better a completion is than expected."
    )
    loss: Annotated[Choice, Chosen(LOSSES)] = Field(_PPO_CLIP, description="Policy loss per token.")
    aggregation: Literal[
        "default", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "prompt-mean", "constant"
    ] = Field(
        "default",
        description=(
            "How losses of tokens become that of a mini-batch. token-mean: the mean over its tokens; seq-mean-token-mean and "
            "seq-mean-token-sum: the mean over its sequences of their token mean or sum; prompt-mean: the mean over its prompts of "
            "the mean over all tokens of a prompt; constant: seq-mean-token-sum divided by rollout.max_new_tokens; default: as the loss "
            "was published."
        ),
    )
    correction: Annotated[Choice, Chosen(CORRECTIONS)] = Field(
        _TOKEN_TRUNCATED,
        description="Weight of a token's loss by the difference between the engine's logprobs and the trainer's.",
    )
    off_policy_mask: Annotated[float, Field(ge=0, le=20)] = Field(
        0.0,
        description=(
            "Mask tokens with a negative advantage in sequences whose mean logprob has fallen by more than this, in nats, since the "
            "engine sampled them (DeepSeek-V3.2); 0: mask nothing."
        ),
    )
    terms: Annotated[dict[str, Weighed], Several(TERMS)] = Field(
        _NO_TERMS, description="Terms added to the loss, each times its coefficient."
    )
    kl: Kl = Field(default_factory=Kl, description="The divergence to the initial policy.")
    teacher: Teacher = Field(default_factory=Teacher, description="Teacher model for distillation.")

    @property
    def distils(self) -> list[str]:
        """Return the keys whose plug-ins read a teacher's logprobs."""
        loss = [f"algorithm.loss {self.loss.name}"] if LOSSES.get(self.loss.name).needs_teacher else []
        return loss + [f"algorithm.terms.{name}" for name in computed(self.terms) if TERMS.get(name).needs_teacher]

    @model_validator(mode="after")
    def _check_teacher_is_used(self) -> Self:
        if self.distils and not self.teacher.is_there:
            raise UserError(
                f"{self.distils[0]} learns from a teacher, but algorithm.teacher.source names none: set it to initial, folder or hub, "
                "or choose another loss or term"
            )
        if self.teacher.is_there and not self.distils:
            raise UserError(
                f"algorithm.teacher.source is {self.teacher.source}, but nothing learns from a teacher: set it to none, take "
                "algorithm.loss: {name: on_policy_distillation}, or give algorithm.terms.distillation a coefficient"
            )
        return self

    @model_validator(mode="after")
    def _check_teacher_differs(self) -> Self:
        itself = self.teacher.source == "initial" and self.teacher.prompt == "plain"
        if itself and LOSSES.get(self.loss.name).needs_teacher:
            raise UserError(
                f"algorithm.loss {self.loss.name} learns from the teacher alone, and algorithm.teacher.source initial with prompt plain "
                "is the policy itself, so it would learn nothing but rounding errors: set algorithm.teacher.prompt to "
                "with_solution, or algorithm.teacher.source to folder or hub"
            )
        return self

    @model_validator(mode="after")
    def _check_advantage_options_used(self) -> Self:
        if not LOSSES.get(self.loss.name).needs_teacher:
            return self
        start = f"algorithm.loss {self.loss.name} reads no advantages,"
        if self.kl.coefficient > 0 and self.kl.place == "reward":
            raise UserError(
                f"{start} so algorithm.kl would have no effect in the reward: set algorithm.kl.place to loss, or "
                "algorithm.kl.coefficient to 0"
            )
        if self.off_policy_mask > 0:
            raise UserError(f"{start} but algorithm.off_policy_mask chooses tokens by their sign: set it to 0")
        return self

    @model_validator(mode="after")
    def _check_terms_differ(self) -> Self:
        added = [f"algorithm.terms.{name}" for name in computed(self.terms)]
        functions = [TERMS.get(name).function for name in computed(self.terms)]
        twins = [key for key, function in zip(added, functions, strict=True) if functions.count(function) > 1]
        twins = twins or (self.distils if len(self.distils) > 1 else [])
        if twins:
            raise UserError(
                f"{twins[0]} and {twins[1]} differ only in their factors, and would count twice: choose one of them, and set "
                f"{twins[1]}.coefficient to 0 to keep the first"
            )
        return self

    @model_validator(mode="after")
    def _check_advantage_accepts_divergence(self) -> Self:
        in_reward = self.kl.coefficient > 0 and self.kl.place == "reward"
        refusal = ADVANTAGES.get(self.advantage.name).refuses_penalty(self.advantage) if in_reward else None
        if refusal:
            raise UserError(
                f"algorithm.kl.place is reward, but algorithm.advantage {self.advantage.name} {refusal}: set algorithm.kl.place to "
                "loss, or algorithm.kl.coefficient to 0"
            )
        return self

    @model_validator(mode="after")
    def _check_aggregation(self) -> Self:
        other = LOSSES.get(self.loss.name).same_with.get(aggregation_of(self.aggregation, self.loss))
        if other:
            raise UserError(
                f"algorithm.loss {self.loss.name} with algorithm.aggregation {self.aggregation} is {other}: take that loss, or set "
                "algorithm.aggregation to default"
            )
        return self

    @model_validator(mode="after")
    def _check_corrected_once(self) -> Self:
        anchored = LOSSES.get(self.loss.name).anchored_on_rollout(self.loss)
        if anchored and CORRECTIONS.get(self.correction.name).weighs:
            raise UserError(
                f"algorithm.loss {self.loss.name} uses a ratio to the engine's logprobs, so algorithm.correction {self.correction.name} "
                "would correct the same difference twice: set algorithm.correction to {name: none}"
            )
        return self
