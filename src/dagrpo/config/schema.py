"""The whole of params.yaml, parsed with actionable error messages."""

from collections.abc import Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.config.mistakes import mistakes
from dagrpo.core.errors import UserError
from dagrpo.core.escape import sentences
from dagrpo.core.experiment import Experiment
from dagrpo.core.section import Section
from dagrpo.data.config import Data
from dagrpo.evaluation.config import Difficulty, Evaluation
from dagrpo.models.config import Model
from dagrpo.report.config import Report
from dagrpo.rewards.config import Reward
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.trainer.config.sft import Sft
from dagrpo.trainer.config.training import Training
from dagrpo.utils.yaml_text import read_yaml


class Params(Section):
    """The whole of params.yaml. Every section but `runtime` changes results; output folders are nowhere in it."""

    experiment: Experiment = Field(Experiment(), description="Name, seeds and tasks of the experiment.")
    data: Data = Field(Data(), description="Where raw data comes from.")
    model: Model = Field(Model(), description="The policy before any training.")
    sft: Sft = Field(Sft(), description="Supervised fine-tuning before GRPO.")
    difficulty: Difficulty = Field(Difficulty(), description="How hard each train problem is, by pass rate.")
    checkpoint: Checkpoint = Field(Checkpoint(), description="The format of the trainer's checkpoints.")
    rollout: Rollout = Field(Rollout(), description="How completions are sampled during training.")
    reward: Reward = Field(Reward(), description="The reward of a completion.")
    algorithm: Algorithm = Field(Algorithm(), description="The GRPO objective.")
    training: Training = Field(Training(), description="Steps, batches and the optimizer of GRPO.")
    evaluation: Evaluation = Field(Evaluation(), description="How the base and the trained policy are compared.")
    report: Report = Field(Report(), description="Contents of the report.")
    runtime: Runtime = Field(
        Runtime(), description="Speed, memory and place; results change only to rounding (docs/exactness.md)."
    )

    @model_validator(mode="after")
    def _check_sections(self) -> Self:
        """Let each section and each plug-in check the sections that its `check` names: it alone knows what it requires."""
        for part in _parts(self):
            if check := getattr(part, "check", None):
                check(**{name: getattr(self, name) for name in signature(check).parameters})
        return self


def _parts(section: Section) -> Iterator[Section]:
    """Yield all sections in a section; of plug-ins by name those that count."""
    for _, value in section:
        parts = value.values() if isinstance(value, Mapping) else [value]
        for part in parts:
            if isinstance(part, Section) and getattr(part, "counts", True):
                yield part
                yield from _parts(part)


def _keys(section: Section, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a section, including those of its parts."""
    for name in type(section).model_fields:
        yield prefix + name
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _keys(value, f"{prefix}{name}.")
        if isinstance(value, Mapping):
            for each, part in value.items():
                if isinstance(part, Section):
                    yield from _keys(part, f"{prefix}{name}.{each}.")


def all_keys() -> list[str]:
    """List every dotted key of params.yaml with its defaults, in the schema's order."""
    return list(_keys(Params()))


def parse(values: Mapping[str, Any], source: str = "params.yaml") -> Params:
    """Check values against the schema. Raises UserError with one message per mistake, or the first ones and their number."""
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        faults = list(mistakes(error.errors(include_url=False)))
    known = all_keys()
    raise UserError(sentences((mistake.sentence(source, known) for mistake in faults), len(faults)))


def read_params(path: Path) -> Params:
    """Read and check a params.yaml."""
    return parse(read_yaml(path), str(path))
