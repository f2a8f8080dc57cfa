"""Contents of an execution's MLflow run, ready to be written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagrpo.report.attempt import Attempt
from dagrpo.tracking.curve import Step

EVALUATION = "evaluation"  # the context of a data set that policies are scored on
STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file to look at beside the run."""

    name: str
    content: bytes
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A file that the stage reads or writes, named by its sha256."""

    name: str  # such as gsm8k/test
    digest: str
    path: Path
    context: str  # training, evaluation, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The contents for the run of a seed, or of all seeds (None), from tracking.summaries."""

    seed: int | None
    content: Mapping[str, Any]
    curves: pa.Table | None


@dataclass(slots=True, kw_only=True)
class Contents:
    """The contents of an execution's run beside its parameters and digests."""

    steps: list[Step] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    tables: dict[str, pa.Table] = field(default_factory=dict)  # the first rows, to read in the UI
    data_sets: list[DataSet] = field(default_factory=list)
    problems: list[tuple[DataSet, dict[str, Any]]] = field(default_factory=list)  # as problems.problems_of gives them
    traces: list[list[Attempt]] = field(default_factory=list)  # of each table of attempts
    summaries: list[Summary] = field(default_factory=list)
    missing: str = ""  # why none of these is there
