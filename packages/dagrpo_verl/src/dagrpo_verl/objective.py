"""Objective of section algorithm as keys of verl's configuration.

tests/oracles computes the same batches with verl's own functions: what a row maps is equal there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagrpo.algorithms.config import Algorithm, Kl
from dagrpo.algorithms.losses import aggregation_of
from dagrpo.core.plugin_sections import Choice
from dagrpo.trainer.foreign.parameters import refusal

ARR = "actor_rollout_ref"
ACTOR = f"{ARR}.actor"
CORRECTION = "algorithm.rollout_correction"
NO_LIMIT = 1e8  # where verl has a limit and the parameters have none
Keys = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """Plug-in of verl that computes the same: its name, its keys for ours, and the values of ours that it cannot have."""

    name: str
    keys: Mapping[str, str] = field(default_factory=dict)  # ours -> verl's
    only: Mapping[str, Any] = field(default_factory=dict)  # ours -> the one value that verl has


_CLIP = {"clip_low": f"{ACTOR}.clip_ratio_low", "clip_high": f"{ACTOR}.clip_ratio_high"}
_POLICY_LOSS = f"{ACTOR}.policy_loss"
LOSSES: Mapping[str, Equal] = {
    "ppo_clip": Equal(name="vanilla", keys={**_CLIP, "dual_clip": f"{ACTOR}.clip_ratio_c"}),
    "gspo": Equal(name="gspo", keys=_CLIP),
    "gmpo": Equal(name="geo_mean", keys=_CLIP),
    "cispo": Equal(name="cispo", only={"anchor": "old"}),
    "sapo": Equal(
        name="sapo",
        keys={
            "temperature_positive_advantage": f"{ACTOR}.tau_pos",
            "temperature_negative_advantage": f"{ACTOR}.tau_neg",
        },
    ),
    "gpg": Equal(name="gpg"),
    "clip_cov": Equal(
        name="clip_cov",
        keys={
            **_CLIP,
            "share": f"{_POLICY_LOSS}.clip_cov_ratio",
            "covariance_low": f"{_POLICY_LOSS}.clip_cov_lb",
            "covariance_high": f"{_POLICY_LOSS}.clip_cov_ub",
        },
        only={"dual_clip": None},
    ),
    "kl_cov": Equal(
        name="kl_cov",
        keys={"share": f"{_POLICY_LOSS}.kl_cov_ratio", "coefficient": f"{_POLICY_LOSS}.ppo_kl_coef"},
    ),
    "dro": Equal(name="dro", keys={"beta": f"{_POLICY_LOSS}.dro_beta"}),
}
_BY_STD = {"normalize_by_std": "algorithm.norm_adv_by_std_in_grpo"}
ADVANTAGES: Mapping[str, Equal] = {
    "grpo": Equal(name="grpo", keys=_BY_STD),
    "grpo_passk": Equal(name="grpo_passk", keys=_BY_STD),
    "rloo": Equal(name="rloo"),
    "opo": Equal(name="opo"),
    "reinforce_plus_plus": Equal(name="reinforce_plus_plus", keys={"gamma": "algorithm.gamma"}),
    "reinforce_plus_plus_baseline": Equal(name="reinforce_plus_plus_baseline"),
}
AGGREGATIONS = {
    "token-mean": "token-mean",
    "seq-mean-token-mean": "seq-mean-token-mean",
    "seq-mean-token-sum": "seq-mean-token-sum",
    "constant": "seq-mean-token-sum-norm",
}
CORRECTIONS = (
    "none",
    "token_truncated",
    "sequence_truncated",
    "token_masked",
    "sequence_masked",
)  # not geometric_masked: verl's rejections leave the means of its aggregations
KL_TYPES = {
    "k1": "kl",
    "abs": "abs",
    "k2": "mse",
    "k3": "low_var_kl",
    "k1+": "kl+",
    "abs+": "abs+",
    "k3+": "low_var_kl+",
}


def objective(algorithm: Algorithm, max_new_tokens: int) -> Keys:
    """Return verl's keys for the whole section. Raises UserError, with what verl can do, for a part that it cannot compute."""
    loss = _equal_keys("algorithm.loss", algorithm.loss, LOSSES, f"{_POLICY_LOSS}.loss_mode")
    if algorithm.loss.name == "cispo":
        minimum, maximum = (getattr(algorithm.loss, name) for name in ("minimum", "maximum"))
        loss |= {f"{ACTOR}.clip_ratio_low": 1 - minimum, f"{ACTOR}.clip_ratio_high": maximum - 1}
    return {
        **_equal_keys("algorithm.advantage", algorithm.advantage, ADVANTAGES, "algorithm.adv_estimator"),
        **{name: NO_LIMIT if value is None else value for name, value in loss.items()},
        **_aggregation(algorithm, max_new_tokens),
        **_correction(algorithm.correction),
        **_kl(algorithm.kl),
        **_terms(algorithm),
    }


def _equal_keys(key: str, config: Choice, known: Mapping[str, Equal], place: str) -> Keys:
    """Return the keys of verl's plug-in that computes the same as one of ours. `place`: the key for its name."""
    if config.name not in known:
        raise refusal(f"{key} is {config.name}", f"choose one of {', '.join(known)}")
    equal = known[config.name]
    for name, value in equal.only.items():
        if (own := getattr(config, name)) != value:
            raise refusal(f"{key}.{name} is {own}", f"set it to {'null' if value is None else value}")
    return {place: equal.name, **{theirs: getattr(config, ours) for ours, theirs in equal.keys.items()}}


def _aggregation(algorithm: Algorithm, max_new_tokens: int) -> Keys:
    name = aggregation_of(algorithm.aggregation, algorithm.loss)
    if name not in AGGREGATIONS:
        raise refusal(f"algorithm.aggregation is {name}", f"choose one of {', '.join(AGGREGATIONS)}")
    scale = {f"{ACTOR}.loss_scale_factor": max_new_tokens} if name == "constant" else {}
    return {f"{ACTOR}.loss_agg_mode": AGGREGATIONS[name], **scale}


def _correction(config: Choice) -> Keys:
    if config.name not in CORRECTIONS:
        raise refusal(f"algorithm.correction is {config.name}", f"choose one of {', '.join(CORRECTIONS)}")
    if config.name == "none":
        return {f"{CORRECTION}.rollout_is": None}
    minimum, maximum = (getattr(config, name, None) for name in ("minimum", "maximum"))
    level = "sequence" if config.name.startswith("sequence") else "token"
    bound = maximum if minimum is None else f"{minimum}_{maximum}"
    return {f"{CORRECTION}.rollout_is": level, f"{CORRECTION}.rollout_is_threshold": bound}


def _kl(kl: Kl) -> Keys:
    is_loss = kl.place == "loss"
    on = {
        f"{ACTOR}.use_kl_loss": bool(kl.coefficient) and is_loss,
        "algorithm.use_kl_in_reward": bool(kl.coefficient) and not is_loss,
    }
    if not kl.coefficient:
        return on
    kind, coefficient = (
        (f"{ACTOR}.kl_loss_type", f"{ACTOR}.kl_loss_coef")
        if is_loss
        else ("algorithm.kl_penalty", "algorithm.kl_ctrl.kl_coef")
    )
    return on | {kind: KL_TYPES[kl.estimator], coefficient: kl.coefficient}


def _terms(algorithm: Algorithm) -> Keys:
    weighed = {name: term for name, term in algorithm.terms.items() if term.coefficient}
    if others := sorted(weighed.keys() - {"entropy"}):
        raise refusal(f"algorithm.terms.{others[0]} has a coefficient", "set it to 0; the term entropy exists")
    return {f"{ACTOR}.entropy_coeff": weighed["entropy"].coefficient if weighed else 0.0}
