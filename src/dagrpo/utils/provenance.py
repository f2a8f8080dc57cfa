"""Executions read from provenance.json files.

A file is named by its path and the sha256 of its content; a checkpoint by its manifest.json.
`dagrpo.pipeline.lineage` adds MLflow's history of runs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from dagrpo.utils.files import read_object

PROVENANCE = "provenance.json"
TOPS = ("data", "models", "results")  # what stages write: each has a folder per experiment


class File(NamedTuple):
    """A path with one particular content."""

    path: str  # relative to the project's root
    digest: str  # sha256, 64 hex digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a stage: the files it read and the files it wrote."""

    stage: str
    experiment: str
    seed: int | None  # None for stages that all seeds share
    key: str  # digest of parameters, seed, code and inputs
    inputs: tuple[File, ...]  # sorted by path
    outputs: tuple[File, ...]  # sorted by path


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageRow:
    """One output file of one execution, for a table."""

    stage: str
    seed: int | None
    output: str
    digest: str
    inputs: tuple[File, ...]


def files_of(digests: Mapping[str, str]) -> tuple[File, ...]:
    """{path: sha256} as files, sorted by path."""
    return tuple(File(path, digests[path]) for path in sorted(digests))


def provenances_of(experiment: str) -> Iterator[Path]:
    """Yield every provenance file of an experiment, except those being written."""
    for top in TOPS:
        for path in sorted(Path(top, experiment).rglob(f"*{PROVENANCE}")):
            if not any(part.startswith(".") for part in path.parts):
                yield path


def read_execution(provenance: Path) -> Execution:
    """Return the execution of a provenance.json. Raises UserError naming the file if it is missing or damaged."""
    return execution_of(read_object(provenance))


def are_digests(value: object) -> bool:
    """Return True if the value is {path: sha256}."""
    return isinstance(value, dict) and all(isinstance(digest, str) for digest in value.values())


def execution_of(record: Mapping[str, Any]) -> Execution:
    """Return a provenance record as an execution."""
    return Execution(
        stage=record["stage"],
        experiment=record["experiment"],
        seed=record.get("seed"),
        key=record["key"],
        inputs=files_of(record["inputs"]),
        outputs=files_of(record["outputs"]),
    )


def in_order(executions: Iterable[Execution]) -> list[Execution]:
    """Producers before consumers; among equals by seed (shared stages first), then by output path.

    An edge joins a path with the same content on both sides: content alone would make a circle of a checkpoint that
    is passed through unchanged.
    """
    by_place = sorted(executions, key=_place)
    producer = {file: number for number, execution in enumerate(by_place) for file in execution.outputs}
    sorter = TopologicalSorter(
        {
            number: {producer[file] for file in execution.inputs if file in producer}
            for number, execution in enumerate(by_place)
        }
    )
    sorter.prepare()
    ordered: list[Execution] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        ordered += [by_place[number] for number in ready]
        sorter.done(*ready)
    return ordered


def lineage_rows(provenance_files: Sequence[Path]) -> list[LineageRow]:
    """Return one row per output file, producers before consumers. UserError names a provenance file that is not one."""
    return [
        LineageRow(
            stage=execution.stage,
            seed=execution.seed,
            output=output.path,
            digest=output.digest,
            inputs=execution.inputs,
        )
        for execution in in_order(read_execution(path) for path in provenance_files)
        for output in execution.outputs
    ]


def _place(execution: Execution) -> tuple[int, tuple[File, ...], str]:
    return (-1 if execution.seed is None else execution.seed, execution.outputs, execution.key)
