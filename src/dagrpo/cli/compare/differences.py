"""Differences between experiments: parameters, data, code, environment and runtime.

All are read from provenance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dagrpo.config.overlay import flat
from dagrpo.pipeline import dag
from dagrpo.pipeline.changes.executions import ExecutionRecord, all_records
from dagrpo.pipeline.job_files import recorded_code
from dagrpo.pipeline.record import in_any_experiment
from dagrpo.utils.files import canonical_json

RUNTIME = "runtime"
GROUPS = ("parameters", "data", "code", "environment", RUNTIME)
DIGITS = 12
LAST = "report"  # the stage with which an experiment is finished
ABSENT = "\N{EM DASH}"
Facts = dict[tuple[str, str], str]  # (group, name) -> text


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key whose value differs between the experiments."""

    group: str  # one of GROUPS
    name: str  # a dotted key, a file, a stage, a package
    values: tuple[str, ...]  # one for each experiment


def differences(names: Sequence[str]) -> list[Difference]:
    """Return every recorded value that differs between the experiments, by group. Raises UserError for a damaged record.

    If one of them is unfinished, these are values of the stages that all of them have.
    """
    records = [all_records(name) for name in names]
    if any(map(_is_unfinished, records)):
        shared = set[str].intersection(*map(_stages, filter(None, records)))
        records = [[each for each in own if each.stage in shared] for own in records]
    facts = _with_files([_facts(each) for each in records], records)
    keys = sorted({key for each in facts for key in each}, key=lambda key: (GROUPS.index(key[0]), key[1]))
    rows = [
        Difference(group=group, name=name, values=tuple(each.get((group, name), ABSENT) for each in facts))
        for group, name in keys
    ]
    return [each for each in rows if len(set(each.values)) > 1]


def unfinished(names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence on each experiment that lacks stages, with those that another one has. Raises UserError for a damaged record."""
    records = [all_records(name) for name in names]
    made = set[str].union(*map(_stages, records))
    for name, own in zip(names, records, strict=True):
        if _is_unfinished(own):
            wanted = (made | {LAST}) - _stages(own)
            lacking = ", ".join(stage.name for stage in dag.in_order() if stage.name in wanted)
            yield f"{name} is unfinished, without {lacking} yet: the differences are those of stages that all have."


def _is_unfinished(records: Sequence[ExecutionRecord]) -> bool:
    return bool(records) and LAST not in _stages(records)


def _stages(records: Sequence[ExecutionRecord]) -> set[str]:
    return {each.stage for each in records}


def _facts(records: Sequence[ExecutionRecord]) -> Facts:
    """Return every recorded value by its group and name; several where stages of an experiment ran with different ones."""
    values: dict[tuple[str, str], set[str]] = {}
    for key, text in (fact for each in records for fact in _of_record(each)):
        values.setdefault(key, set()).add(text)
    return {key: ", ".join(sorted(texts)) for key, texts in values.items()}


def _of_record(record: ExecutionRecord) -> Iterator[tuple[tuple[str, str], str]]:
    for key, value in flat(record.params).items():
        yield ("parameters", key), canonical_json(value)
    for key, value in flat(record.runtime).items():
        yield (RUNTIME, f"runtime.{key}"), canonical_json(value)
    for path, digest in record.outputs.items() if record.stage == "prepare" else ():
        yield ("data", in_any_experiment(path, record.experiment).removeprefix("data/*/")), digest[:DIGITS]
    for name, version in record.environment.items():
        if name != "device" or record.stage == "train":  # other stages use the CPU anyway
            yield ("environment", name), str(version)
    yield ("code", f"stage {record.stage}"), record.code[:DIGITS]


def _with_files(facts: Sequence[Facts], records: Sequence[Sequence[ExecutionRecord]]) -> list[Facts]:
    """Replace a stage whose code differs by the files that differ, if the digest of each is recorded."""
    result = [dict(each) for each in facts]
    stages = {name for each in facts for group, name in each if group == "code"}
    for stage in stages:
        if len({each.get(("code", stage)) for each in facts}) == 1:
            continue
        files = [_files_of(each, stage.removeprefix("stage ")) for each in records]
        if all(digests is not None for digests in files):
            for own, digests in zip(result, files, strict=True):
                del own["code", stage]
                own.update({("code", file): digest[:DIGITS] for file, digest in (digests or {}).items()})
    return result


def _files_of(records: Sequence[ExecutionRecord], stage: str) -> Mapping[str, str] | None:
    each = next((each for each in records if each.stage == stage), None)
    return None if each is None else recorded_code(each.code)
