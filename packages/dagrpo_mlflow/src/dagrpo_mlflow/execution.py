"""Executions of stages, read from results and notes."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from dagrpo.config.overlay import configuration_of, merged
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.core.experiment import as_params
from dagrpo.utils.console import say
from dagrpo.utils.environment import user
from dagrpo.utils.files import digest_of, read_object, sha256_of
from dagrpo.utils.locks import Process
from dagrpo.utils.provenance import PROVENANCE, execution_of, in_order, provenances_of
from dagrpo.utils.run_info import SUFFIX
from dagrpo_mlflow.attempt import FOLDER
from dagrpo_mlflow.curve import last_change
from dagrpo_mlflow.variations import experiment_name, variation_name

SHARED = "shared"  # the seed of stages that all seeds share
LOGS = Path("logs")
COMPLETIONS = "completions.parquet"
BEHIND = ("manifest.json", "test.parquet")  # inputs of completions that their scores are about, too
DIGEST = "manifest.sha256"  # the tag of a model with the checkpoint that is evaluated
TRAINER_DIGEST = "manifest.trainer.sha256"  # the same policy's, as the trainer has it
PLACES = {  # folder of a checkpoint: the policy, the folder in which it is evaluated, the tag of its model
    "sft": ("base", "sft", DIGEST),
    "initial": ("base", "sft", TRAINER_DIGEST),
    "policy": ("trained", "exported", TRAINER_DIGEST),
    "exported": ("trained", "exported", DIGEST),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A manifest that a stage reads or writes: results/<experiment>/runs/seed_<seed>/<folder>/manifest.json."""

    policy: str  # base, trained
    seed: str
    digest: str
    evaluated: str  # the folder in which the policy is evaluated
    tag: str  # under which its model has the digest


def checkpoints_in(digests: Mapping[str, str]) -> list[Checkpoint]:
    """Return the checkpoints of a run's seeds among {path: sha256}."""
    checkpoints = []
    for path, digest in sorted(digests.items()):
        parts = PurePosixPath(path).parts
        if len(parts) == 6 and parts[2] == "runs" and parts[5] == "manifest.json" and parts[4] in PLACES:
            policy, evaluated, tag = PLACES[parts[4]]
            folder, seed = str(PurePosixPath(*parts[:4], evaluated)), parts[3].removeprefix("seed_")
            checkpoints.append(Checkpoint(policy=policy, seed=seed, digest=digest, evaluated=folder, tag=tag))
    return checkpoints


def _policies_in(paths: Iterable[str]) -> set[str]:
    return {checkpoint.policy for checkpoint in checkpoints_in(dict.fromkeys(paths, ""))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a stage, finished or not."""

    source: Path  # its provenance.json, or the note of one that works or has failed
    record: Mapping[str, Any]  # of provenance.json: stage, experiment, seed, params, code, key, inputs
    places: tuple[str, ...]  # paths of all outputs, provenance.json too
    outputs: Mapping[str, str]  # {path: sha256}; {} unless finished
    configuration: Mapping[str, Any]  # digest, seeds and changed parameters of the whole experiment
    facts: Mapping[str, str]  # tags: commit, versions, hardware
    started: int  # milliseconds since 1970
    ended: int | None
    status: str  # RUNNING, FINISHED, FAILED, KILLED
    error: str = ""
    log: Path | None = None  # None where another machine made the results
    process: Process | None = None  # of an execution that has no provenance.json
    note: str = ""  # the name of its note, without suffix, where it is known
    is_outdated: bool = False  # it has a note, though its outputs are there: made by it, or by a later execution

    @property
    def stage(self) -> str:
        return str(self.record["stage"])

    @property
    def key(self) -> str:
        return str(self.record["key"])

    @property
    def experiment(self) -> str:
        """The name of its experiment in MLflow, with which the folder of an override run begins."""
        return experiment_name(self.record)

    @property
    def variation(self) -> str:
        """The override run or DVC experiment that it belongs to; empty: the experiment itself."""
        return variation_name(self.record["experiment"])

    @property
    def seed(self) -> str:
        """The seed as text: `0`, `1`, ..., or `shared`."""
        seed = self.record.get("seed")
        return SHARED if seed is None else str(seed)

    @property
    def identity(self) -> str:
        """A digest shared by all executions that write the same files: two of them never run at once."""
        own = [self.experiment, self.variation, self.record.get("seed"), self.stage, sorted(self.places)]
        return digest_of(own)

    @property
    def trains(self) -> bool:
        """True if it makes a policy that it has not read: the curves of its steps are the seed's."""
        return bool(_policies_in(self.places) - _policies_in(self.record["inputs"]))

    @property
    def converts(self) -> bool:
        """True if it writes a policy that it reads, in the other layout."""
        return bool(_policies_in(self.places) & _policies_in(self.record["inputs"]))

    @property
    def read(self) -> dict[str, str]:
        """{path: sha256} of its inputs, and of the policy and problems of any completions among them."""
        return {**self.record["inputs"], **self.behind}

    @property
    def behind(self) -> dict[str, str]:
        """{path: sha256} of the policy and the problems of completions among the inputs."""
        digests: dict[str, str] = {}
        for path in map(Path, self.record["inputs"]):
            provenance = path.with_name(f"completions.{PROVENANCE}")
            if path.name == COMPLETIONS and provenance.is_file():
                digests |= read_object(provenance)["inputs"]
        return {path: digest for path, digest in digests.items() if Path(path).name in BEHIND}

    @property
    def place(self) -> str:
        """The execution's task, policy or model; empty for a stage that runs once per experiment or seed."""
        experiment = self.record["experiment"]
        place = posixpath.commonpath([posixpath.dirname(path) for path in self.places]) if self.places else ""
        run = f"results/{experiment}/runs/seed_{self.record.get('seed')}"
        for folder in (f"{run}/eval", f"{run}/validation", f"data/{experiment}", f"models/{experiment}"):
            if place.startswith(f"{folder}/"):
                inside = place.removeprefix(f"{folder}/")
                return "" if inside == self.stage else inside
        return ""


def finished(names: Iterable[str]) -> Iterator[Execution]:
    """Yield the execution of each provenance.json of these experiments and override runs, in the order of the DAG.

    An experiment with a damaged file is left out, with a line on the screen.
    """
    for name in names:
        try:
            yield from list(_of_folder(name))
        except UserError as error:
            say(f"{name} is not recorded in MLflow: {error}")


def _of_folder(name: str) -> Iterator[Execution]:
    """Yield a folder's executions. Without an account, times are those of the files, shifted forward to follow the DAG."""
    records = {path: read_object(path) for path in provenances_of(name)}
    files = {execution_of(record): path for path, record in records.items()}
    accounts = {}
    for file in sorted((LOGS / name).rglob(f"*{SUFFIX}")):
        account = read_object(file)
        accounts[account["provenance"]] = file.with_name(file.name.removesuffix(SUFFIX) + ".log"), account
    fallback = _configuration(records.values())
    time = 0
    for each in in_order(files):
        path, record = files[each], records[files[each]]
        time = max(time + 1, path.stat().st_mtime_ns // 1_000_000)
        versions = {f"version.{name}": str(value) for name, value in record.get("environment", {}).items()}
        execution = Execution(
            source=path,
            record=record,
            places=(*record["outputs"], str(path)),
            outputs=record["outputs"],
            configuration=fallback,
            facts={**versions, "rebuilt": "from provenance.json"},
            started=time,
            ended=time,
            status="FINISHED",
        )
        own = accounts.get(sha256_of(path))
        yield execution if own is None else _with_account(execution, *own)


def _with_account(execution: Execution, log: Path, account: Mapping[str, Any]) -> Execution:
    """Return the execution with the times, facts and configuration of the account beside its log."""
    started = round(datetime.fromisoformat(account["started"]).timestamp() * 1000)
    return replace(
        execution,
        log=log,
        note=account.get("note", ""),
        started=started,
        ended=started + round(account["seconds"] * 1000),
        facts={"mlflow.user": user(), **account["facts"]},
        configuration=account.get("configuration") or execution.configuration,
    )


def _configuration(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Combine the parameters of the whole experiment; {} if the schema has changed since."""
    values: dict[str, Any] = {}
    for record in records:
        name = {"experiment": {"name": experiment_name(record)}}
        values = merged(merged(values, record.get("params", {})), name)
    try:
        return configuration_of(parse(as_params(values), PROVENANCE))
    except UserError:
        return {}


def unfinished() -> Iterator[Execution]:
    """Yield the noted executions that are at work or have failed, oldest first."""
    for note in sorted(FOLDER.glob("[0-9]*.json")):
        try:
            execution = of_note(note)
        except UserError:
            if note.exists():
                raise
            continue  # its stage has ended well meanwhile
        is_here = execution.process is not None and execution.process.is_here
        is_unclear = execution.status != "FAILED" and not (execution.status == "RUNNING" and is_here)
        if is_unclear and _has_results(execution):
            yield replace(execution, status="KILLED", is_outdated=True)
        else:
            yield execution


def _has_results(execution: Execution) -> bool:
    provenance = Path(execution.places[-1])
    try:
        is_new = provenance.stat().st_mtime_ns // 1_000_000 >= execution.started
        return is_new and read_object(provenance).get("key") == execution.key
    except (FileNotFoundError, UserError):  # missing or damaged
        return False


def of_note(note: Path) -> Execution:
    """Return a note's execution; KILLED if its process is gone without a record. Raises UserError if the note is missing or damaged."""
    content = read_object(note)
    log, process = Path(content["log"]), Process(**content["process"])
    is_lost = content["status"] == "RUNNING" and process.is_gone
    return Execution(
        source=note,
        record=content["record"],
        places=tuple(content["record"]["outputs"]),
        outputs={},
        configuration=content["configuration"],
        facts=content["facts"],
        started=content["started"],
        ended=max(content["started"], last_change(log)) if is_lost else content["ended"],
        status="KILLED" if is_lost else content["status"],
        error=content["error"],
        log=log,
        process=process,
        note=note.stem,
    )
