"""Parameters that another project's trainer cannot honour."""

from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from dagrpo.core.errors import UserError
from dagrpo.rewards.components import COMPONENTS
from dagrpo.trainer.config.backends import Planned
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.run import TrainingRun

ONLY: Mapping[str, tuple[Any, str]] = yaml.safe_load(
    Path(__file__).with_name("parameters.yaml").read_text(encoding="utf-8")
)
Sections = Planned | TrainingRun  # of params.yaml, before the stage train and in it


def value_of(sections: Sections, key: str) -> Any:
    """Return the value of a dotted key."""
    return reduce(getattr, key.split("."), sections)


def require_only(sections: Sections, only: Mapping[str, tuple[Any, str]]) -> None:
    """Raise UserError for the first parameter with another value than the trainer has."""
    for key, (value, remedy) in only.items():
        if (own := value_of(sections, key)) != value:
            text = "null" if value is None else str(value).lower()
            raise refusal(f"{key} is {str(own).lower()}", remedy or f"set it to {text}")
    if sections.training.gates != Gates():
        raise refusal("training.gates is not as by default", "leave its keys out: they are checks of our own trainer")
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
