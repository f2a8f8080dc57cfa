"""Stand-in for verl's registries: the names of 0.9.1, which test_real_verl.py compares."""

LOSSES = [
    "vanilla",
    "dppo_tv",
    "dppo_kl",
    "gspo",
    "sapo",
    "gpg",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "dro",
    "cispo",
    "bypass_mode",
]
ADVANTAGES = [
    "gae",
    "grpo",
    "grpo_vectorized",
    "gdpo",
    "grpo_passk",
    "reinforce_plus_plus_baseline",
    "rloo",
    "opo",
    "reinforce_plus_plus",
    "remax",
    "gpg",
    "rloo_vectorized",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
]


def get_policy_loss_fn(name: str) -> str:
    """Return the name. Raises ValueError for an unknown one."""
    if name not in LOSSES:
        raise ValueError(f"Unsupported loss mode: {name}")
    return name


def get_adv_estimator_fn(name: str) -> str:
    """Return the name. Raises ValueError for an unknown one."""
    if name not in ADVANTAGES:
        raise ValueError(f"Unknown advantage estimator: {name}")
    return name
