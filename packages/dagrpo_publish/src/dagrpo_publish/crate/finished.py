"""A finished experiment, from its records alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError, nearest
from dagrpo.core.escape import brief
from dagrpo.core.experiment import as_params
from dagrpo.data.reading import file_and_column
from dagrpo.pipeline.changes.executions import ExecutionRecord, experiments, read_record
from dagrpo.pipeline.dag import expected
from dagrpo.pipeline.identity import code_digests
from dagrpo.pipeline.job_files import code_files, recorded_code
from dagrpo.pipeline.override_runs import TRY
from dagrpo.pipeline.raw_inputs import CARD, raw_recorded
from dagrpo.pipeline.record import STATES
from dagrpo.pipeline.stages import all_stages
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.utils.files import canonical_json, digest_of, read_object, sha256_of
from dagrpo.utils.provenance import File, execution_of, files_of, in_order, provenances_of
from dagrpo.utils.run_info import Account, read_accounts

if TYPE_CHECKING:
    from dagrpo_publish.crate.reading import Recorded

SUMMARY = "scores.json"
TRAIN = "train"
AUDITS = STATES / "audits"  # a file for each experiment: its last audit


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished experiment: what ran, with what, and what came out."""

    name: str  # of its folders
    params: Params  # as recorded, not today's
    records: tuple[ExecutionRecord, ...]  # producers before consumers
    accounts: Mapping[Path, Account]  # by provenance.json; logs do not travel with `dvc pull`
    code: Mapping[str, Mapping[str, str]]  # stage -> sha256 of each file; without stages whose files have changed since

    def raw(self, record: ExecutionRecord) -> list[File]:
        """Return the raw files that an execution read: its inputs that no stage made, and those of the hub with their source."""
        inputs = raw_recorded(record.inputs, record.experiment)
        cards = [read_object(Path(path)) for path in record.outputs if Path(path).name == CARD]
        others = [file for card in cards for file in raw_files(card) if file.digest not in inputs.values()]
        return [*files_of(inputs), *others]

    @property
    def digest(self) -> str:
        """Return one digest of all records."""
        return digest_of([sha256_of(each.provenance) for each in self.records])

    @property
    def audit(self) -> str:
        """Return command and result of the last `dagrpo audit` of these records; "" without one."""
        path = AUDITS / f"{self.name}.json"
        if not path.is_file():
            return ""
        last = read_object(path)
        return str(last["result"]) if last["records"] == self.digest else ""

    def record(self, stage: str) -> ExecutionRecord:
        """Return the first record of a stage."""
        return next(each for each in self.records if each.stage == stage)


def read_finished(name: str) -> Finished:
    """Read an experiment. Raises UserError if it is unknown, unfinished, or its stages ran with different parameters or inputs."""
    paths = list(provenances_of(name))
    if not paths:
        raise UserError(f"There is no record of an experiment `{name}` here: {nearest(name, experiments())}.")
    order = {execution: place for place, execution in enumerate(in_order(execution_of(read_object(p)) for p in paths))}
    records = sorted(map(read_record, paths), key=lambda each: order[execution_of(read_object(each.provenance))])
    summaries = [read_object(Path(path)) for each in records for path in each.outputs if Path(path).name == SUMMARY]
    values = recorded_params(records, oracles=any(each["oracle"] for each in summaries))
    params = parse_with_tasks(values, f"the records of {name}")
    missing = [path for path in expected(params, name) if not path.is_file()]
    if missing:
        overrides = ", with the values of --config that this run began with" if TRY in name else ""
        raise UserError(
            f"{name} is not finished: {missing[0]} is missing; run `snakemake --cores all target`{overrides}."
        )
    _require_one_run(name, records)
    code = dict[str, Mapping[str, str]]()
    for each in records:
        found = recorded_code(each.code)
        if found is None and each.stage in all_stages():  # no job was planned here with it: is it today's?
            now = code_digests(code_files(params, all_stages()[each.stage]))
            found = now if digest_of(now) == each.code else None
        code |= {} if found is None else {each.stage: found}
    accounts = read_accounts(Path("logs", name), [each.provenance for each in records])
    return Finished(name=name, params=params, records=tuple(records), accounts=accounts, code=code)


def recorded_params(records: "Sequence[ExecutionRecord] | Sequence[Recorded]", *, oracles: bool) -> dict[str, Any]:
    """Return the whole of an experiment's parameters, nested, from the parts that its stages have read.

    oracles: a score is marked as one of a policy that knows the answers, which no stage records as a parameter. Raises UserError
    naming a parameter of which stages had different values.
    """
    whole: dict[str, Any] = {}
    runtime = next((dict(each.runtime) for each in records if each.stage == TRAIN), {})
    unread = {"experiment": {"name": records[0].experiment}, "runtime": runtime}  # by any stage
    unread |= {"evaluation": {"oracles": True}} if oracles else {}
    for what, params in [*((each.what, each.params) for each in records), ("none", unread)]:
        try:
            whole = _together(whole, params)
        except _Different as different:
            raise UserError(
                f"{records[0].experiment}: {different}, since the stages ran with different ones ({what}): run "
                "`snakemake --cores all target` again."
            ) from None
    return as_params(whole)


class _Different(ValueError):
    """Two values of one parameter."""


def _together(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested parameters of two stages together. Raises _Different naming a key of which they have two values."""
    result = dict(one)
    for key, value in other.items():
        before = result.get(key, value)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[key] = _together(before, value, f"{prefix}{key}.")
        elif canonical_json(before) == canonical_json(value):
            result[key] = value
        else:
            raise _Different(f"{prefix}{key} is {brief(before)} and {brief(value)}")
    return result


def _require_one_run(name: str, records: Iterable[ExecutionRecord]) -> None:
    """Raise UserError if a stage has read another content than its maker's record has."""
    records = list(records)
    made = {path: (digest, each.what) for each in records for path, digest in each.outputs.items()}
    for each in records:
        for path, digest in each.inputs.items():
            if path in made and made[path][0] != digest:
                raise UserError(
                    f"{name}: {path} was made again by {made[path][1]} after {each.what} had read it: run `snakemake --cores all target`."
                )


def raw_files(card: Mapping[str, Any]) -> Iterator[File]:
    """Yield the raw files that a card names; pictures that a column names count as a file."""
    at = f"@{card['revision']}" if card.get("revision") else ""
    for name, digest in card["raw"].items():
        file, column = file_and_column(name) or (name, "")
        yield File(f"{card['source']}{at}/{file}{f' (pictures of {column})' if column else ''}", digest)
