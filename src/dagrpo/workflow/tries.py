"""A try: an experiment with parameters that params.yaml does not hold, such as `--config training__steps=3`.

It has folders of its own, `data|models|results|logs/<name>~<digest>/`, so that it never touches what the experiment has
made. DVC does not record it. The digest is that of all its parameters, so the same try goes on where it stopped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dagrpo.files import digest_of
from dagrpo.params.experiment import Experiment
from dagrpo.params.overlay import flat
from dagrpo.params.schema import Params
from dagrpo.tracking.variations import TRY

DIGITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """What tells a run from the experiment of params.yaml. Section runtime changes no result and is no part of it."""

    folder: str  # name of the experiment, or <name>~<digest>
    overrides: Mapping[str, Any]  # by dotted key; empty for the experiment itself

    @property
    def is_one(self) -> bool:
        return bool(self.overrides)


def try_of(params: Params, held: Params) -> Try:
    """How the parameters of a run differ from those that params.yaml holds."""
    own, other = (flat(each.model_dump(exclude={"runtime"})) for each in (params, held))
    overrides = {key: value for key, value in own.items() if key not in other or other[key] != value}
    overrides |= {key: None for key in other if key not in own}
    digest = configuration_digest(params) if overrides else ""
    return Try(folder=_folder(params.experiment, digest), overrides=overrides)


def configuration_digest(params: Params) -> str:
    """The same for all runs of the same parameters; section runtime, which changes no result, is no part of it."""
    return digest_of(params.model_dump(exclude={"runtime"}))[:DIGITS]


def _folder(experiment: Experiment, digest: str) -> str:
    return f"{experiment.name}{TRY}{digest}" if digest else experiment.name
