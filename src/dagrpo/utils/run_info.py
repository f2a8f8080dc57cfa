"""Accounts of finished executions, beside the logs of their stages.

Time, memory, machine and commit of an execution, and times of a training's steps.

No output depends on them: outputs of identical bytes may come from another time, machine and commit. So each names by digest the file
that its execution wrote (provenance.json, or the metrics of a training), and is ignored for any other.
"""

import logging
import resource
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.utils.environment import environment_tags, version_of
from dagrpo.utils.files import read_object, sha256_of, write_json

SUFFIX = ".execution.json"
FACTS = ("git.", "version.", "hardware.", "environment.", "mlflow.source.")  # tags of the environment that are recorded
KIBIBYTE = 1024
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The record of one finished execution."""

    stage: str
    seed: int | None
    started: str  # ISO 8601, UTC
    seconds: float  # of the last attempt: a training that was resumed has taken longer
    attempt: int  # 1, or more after crashes
    memory: int  # bytes: the peak of the stage's own process
    memory_of_children: int  # bytes: the peak of its largest child process that it waited for; 0 without one
    is_taken_over: bool  # a cache hit: outputs of another experiment or seed
    facts: Mapping[str, str]  # commit, versions, hardware


class Stopwatch:
    """Measures an execution from its start, where it also notes the commit, which may change before the end."""

    def __init__(self, root: Path) -> None:
        tags = environment_tags(root)
        self.facts = {name: value for name, value in tags.items() if name.startswith(FACTS)}
        self.facts |= {"version.dagrpo": version} if (version := version_of("dagrpo")) else {}
        self._started = datetime.now(UTC)
        self._since = time.monotonic()

    def account(self, stage: str, seed: int | None, attempt: int, *, is_taken_over: bool) -> Account:
        """Return the account of the execution that ends now."""
        return Account(
            stage=stage,
            seed=seed,
            started=self._started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._since, 3),
            attempt=attempt,
            memory=_peak(resource.RUSAGE_SELF),
            memory_of_children=_peak(resource.RUSAGE_CHILDREN),
            is_taken_over=is_taken_over,
            facts=self.facts,
        )


def _peak(whose: int) -> int:
    """Return the largest resident set in bytes; for children that of the largest one, not their sum (getrusage(2))."""
    return resource.getrusage(whose).ru_maxrss * KIBIBYTE


def write_account(
    log: Path, provenance: Path, account: Account, configuration: Mapping[str, Any], note: str = ""
) -> None:
    """Write the account beside the stage's log. A full disk costs the account, not the stage.

    configuration: of the whole experiment, for the history of runs; note: the name of the execution's note in it.
    """
    about = {"provenance": sha256_of(provenance), "configuration": dict(configuration), "note": note}
    try:
        write_json(log.with_suffix(SUFFIX), about | asdict(account))
    except OSError as error:
        logger.warning("how this execution went is not recorded: %s", error)


def name_provenance(log: Path, former: str, provenance: Path) -> None:
    """Name provenance.json by its new digest in the account beside a stage's log, if that named it by the `former` one."""
    with suppress(OSError, UserError):  # missing or damaged
        about = read_object(log.with_suffix(SUFFIX))
        if about["provenance"] == former:
            write_json(log.with_suffix(SUFFIX), about | {"provenance": sha256_of(provenance)})


def read_accounts(logs: Path, provenance: Sequence[Path]) -> dict[Path, Account]:
    """Read the accounts in an experiment's folder of logs, by the provenance.json that each execution wrote."""
    written = {sha256_of(path): path for path in provenance}
    accounts = {}
    for file in sorted(logs.rglob(f"*{SUFFIX}")):
        try:
            content = read_object(file)
        except UserError:  # damaged: ignored
            continue
        if content["provenance"] in written:
            accounts[written[content["provenance"]]] = Account(**{name: content[name] for name in Account.__slots__})
    return accounts


FILE = "train.times.json"
GROUP = "timing/"
SECONDS = "_seconds"  # suffix of the names of a step's parts


def times_of(curve: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the times among all figures of each step."""
    return [{name: value for name, value in figures.items() if name.startswith(GROUP)} for figures in curve]


def step_seconds(times: Mapping[str, float]) -> float:
    """Return a step's duration, the sum of its parts."""
    return sum(value for name, value in times.items() if name.endswith(SECONDS))


def write_times(folder: Path, metrics: Path, times: Sequence[Mapping[str, float]]) -> None:
    """Write the times of each step, from the first on, to the folder of the stage's log. `metrics`: the run's metrics.parquet."""
    write_json(folder / FILE, {"metrics": sha256_of(metrics), "steps": [dict(step) for step in times]})


def read_times(folder: Path, metrics: Path) -> list[dict[str, float]] | None:
    """Read the times of this run; None if they are missing, damaged or of another run."""
    try:
        content = read_object(folder / FILE)
    except UserError:
        return None
    return content["steps"] or None if content["metrics"] == sha256_of(metrics) else None
