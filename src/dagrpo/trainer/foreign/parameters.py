"""Parameters that another project's trainer cannot honour."""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.rewards.components import COMPONENTS
from dagrpo.trainer.config.backends import Planned
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.run import TrainingRun

GATES = "training.gates"
# The one value that such a trainer has, and what to do, if that is not to set it.
ONLY: Mapping[str, tuple[Any, str]] = {
    "rollout.deterministic": (False, ""),
    "rollout.head_dtype": (None, ""),
    "reward.permuted": (False, ""),
    "algorithm.teacher.source": ("none", ""),
    "training.moments_dtype": ("float32", ""),
    "training.vision": ("trained", "leave it out"),
    "training.vision_learning_rate": (None, ""),
    "training.lora.rank": (0, ""),
    "training.zero_variance_filter": (False, ""),
    "training.retire_at": (None, ""),
    "training.evaluate_every": (0, "set it to 0: evaluate scores the trained policy"),
    "training.digests_every": (None, "leave it out"),
    GATES: (Gates(), "leave its keys out: they are checks of our own trainer"),
    "runtime.training.save_every_minutes": (
        None,
        "set it to null, and runtime.training.save_every to a number of steps",
    ),
    "runtime.training.shard_within": ("all", ""),
    "runtime.engine.servers": ([], "leave it out: the trainer starts its own"),
    "runtime.engine.own_gpus": (False, ""),
}


Sections = Planned | TrainingRun  # of params.yaml, before the stage train and in it


def value_of(sections: Sections, key: str) -> Any:
    """Return the value of a dotted key."""
    return reduce(getattr, key.split("."), sections)


def require_only(sections: Sections, only: Mapping[str, tuple[Any, str]]) -> None:
    """Raise UserError for the first parameter with another value than the trainer has."""
    for key, (value, remedy) in only.items():
        if (own := value_of(sections, key)) != value:
            shown = "not as by default" if key == GATES else str(own).lower()
            text = "null" if value is None else str(value).lower()
            raise refusal(f"{key} is {shown}", remedy or f"set it to {text}")
    for name, config in sections.reward.components.items():
        if config.final_weight is not None:
            raise refusal(f"reward.components.{name}.final_weight changes a weight over steps", "set it to null")
        if config.counts and COMPONENTS.get(name).open is not None:
            raise refusal(
                f"reward.components has {name}, which asks a model about many responses at once", "leave it out"
            )


def refusal(what: str, remedy: str) -> UserError:
    """Return the error of a parameter that the trainer cannot honour."""
    return UserError(
        f"{what}, which the trainer of training.backend cannot do: {remedy}, or train with training.backend: {{name: fsdp}}"
    )


def refuse_settings(settings: Iterable[str], keys: Iterable[str]) -> None:
    """Raise UserError for a setting that holds a key of `keys`: those that follow from other parameters."""
    for setting in settings:
        twice = next((key for key in sorted(keys) if f"{key}.".startswith(f"{setting}.")), None)
        if twice is not None:
            raise UserError(
                f"training.backend.settings has {setting}, and {twice} follows from other parameters: leave it out"
            )
