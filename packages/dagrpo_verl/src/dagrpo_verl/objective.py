"""Objective of section algorithm as keys of verl's configuration.

tests/oracles computes the same batches with verl's own functions: what mapping.yaml maps is equal there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dagrpo.algorithms.config import Algorithm, Kl
from dagrpo.algorithms.losses import aggregation_of
from dagrpo.core.plugin_sections import Choice
from dagrpo_foreign.parameters import refusal

ARR = "actor_rollout_ref"
ACTOR = f"{ARR}.actor"
CORRECTION = "algorithm.rollout_correction"
NO_LIMIT = 1e8  # where verl has a limit and the parameters have none
Keys = dict[str, Any]


TABLE: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("mapping.yaml").read_text(encoding="utf-8"))


def objective(algorithm: Algorithm, max_new_tokens: int) -> Keys:
    """Return verl's keys for the whole section. Raises UserError, with what verl can do, for a part that it cannot compute."""
    loss = _equal_keys("algorithm.loss", algorithm.loss, TABLE["losses"], f"{ACTOR}.policy_loss.loss_mode")
    if algorithm.loss.name == "cispo":
        minimum, maximum = (getattr(algorithm.loss, name) for name in ("minimum", "maximum"))
        loss |= {f"{ACTOR}.clip_ratio_low": 1 - minimum, f"{ACTOR}.clip_ratio_high": maximum - 1}
    return {
        **_equal_keys("algorithm.advantage", algorithm.advantage, TABLE["advantages"], "algorithm.adv_estimator"),
        **{name: NO_LIMIT if value is None else value for name, value in loss.items()},
        **_aggregation(algorithm, max_new_tokens),
        **_correction(algorithm.correction),
        **_kl(algorithm.kl),
        **_terms(algorithm),
    }


def _equal_keys(key: str, config: Choice, known: Mapping[str, Any], place: str) -> Keys:
    """Return the keys of verl's plug-in that computes the same as one of ours. `place`: the key for its name."""
    if config.name not in known:
        raise refusal(f"{key} is {config.name}", f"choose one of {', '.join(known)}")
    equal = known[config.name]
    for name, value in equal.get("only", {}).items():
        if (own := getattr(config, name)) != value:
            raise refusal(f"{key}.{name} is {own}", f"set it to {'null' if value is None else value}")
    return {place: equal["name"], **{theirs: getattr(config, ours) for ours, theirs in equal.get("keys", {}).items()}}


def _aggregation(algorithm: Algorithm, max_new_tokens: int) -> Keys:
    name = aggregation_of(algorithm.aggregation, algorithm.loss)
    known = TABLE["aggregations"]
    if name not in known:
        raise refusal(f"algorithm.aggregation is {name}", f"choose one of {', '.join(known)}")
    scale = {f"{ACTOR}.loss_scale_factor": max_new_tokens} if name == "constant" else {}
    return {f"{ACTOR}.loss_agg_mode": known[name], **scale}


def _correction(config: Choice) -> Keys:
    if config.name not in TABLE["corrections"]:
        raise refusal(f"algorithm.correction is {config.name}", f"choose one of {', '.join(TABLE['corrections'])}")
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
    return on | {kind: TABLE["kl_types"][kl.estimator], coefficient: kl.coefficient}


def _terms(algorithm: Algorithm) -> Keys:
    weighed = {name: term for name, term in algorithm.terms.items() if term.coefficient}
    if others := sorted(weighed.keys() - {"entropy"}):
        raise refusal(f"algorithm.terms.{others[0]} has a coefficient", "set it to 0; the term entropy exists")
    return {f"{ACTOR}.entropy_coeff": weighed["entropy"].coefficient if weighed else 0.0}
