"""Comparison of a crate with a run of it here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from dagrpo.config.overlay import flat
from dagrpo.pipeline.changes.executions import ExecutionRecord, named
from dagrpo.pipeline.identity import code_digests
from dagrpo.pipeline.record import in_any_experiment
from dagrpo.pipeline.stages.report import STAGE as REPORT
from dagrpo.utils.file_names import is_below
from dagrpo.utils.files import canonical_json, read_object
from dagrpo_publish.crate.reading import Crate, Recorded

MOST_FILES = 5  # of code that are named
ABSENT = "nothing"
OF_THE_MACHINE = ("hardware.", "git.commit", "version.dagrpo")  # beginnings of facts
PASS = "pass_at_k"  # of scores.json: a figure for each k


class Verdict(StrEnum):
    """The place of a score beside the recorded one."""

    EQUAL = "equal"
    WITHIN = "within its interval"
    OUTSIDE = "outside its interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """The outputs of one execution."""

    what: str  # the job in words
    equal: int  # outputs
    outputs: int
    begins: bool  # its inputs are equal, so that the difference is its own
    reasons: tuple[str, ...]  # what differs of its circumstances

    @property
    def is_equal(self) -> bool:
        """Return True if all outputs have the recorded bytes."""
        return self.equal == self.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One figure of an evaluation, as shares between 0 and 1."""

    name: str  # seed, task, policy and metric
    value: float
    recorded: float
    low: float  # of the recorded interval
    high: float

    @property
    def verdict(self) -> Verdict:
        """Return whether the value is the recorded one, or lies within its interval."""
        if self.value == self.recorded:
            return Verdict.EQUAL
        return Verdict.WITHIN if self.low <= self.value <= self.high else Verdict.OUTSIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """The comparison of a crate with a run."""

    stages: tuple[StageResult, ...]  # in the order of the pipeline
    scores: tuple[Score, ...]
    machine: tuple[str, ...]  # differences of hardware and commit


def compare(
    crate: Crate, records: Sequence[ExecutionRecord], experiment: str, facts: Mapping[str, str]
) -> Reproduction:
    """Compare the records of a crate with those of a run here. `facts`: hardware and commit of this machine."""
    digests = _anywhere(experiment, *(each.outputs for each in records))
    makers = {in_any_experiment(path, experiment): each for each in records for path in each.outputs}
    stages = [
        _stage(crate, each, digests, makers) for each in crate.records if each.stage != REPORT.name
    ]  # which names its experiment
    return Reproduction(
        stages=tuple(stages),
        scores=tuple(_scores(crate, records, experiment)),
        machine=tuple(each for each in _differing(crate.facts, facts) if each.startswith(OF_THE_MACHINE)),
    )


def _anywhere(experiment: str, *files: Mapping[str, str]) -> dict[str, str]:
    return {in_any_experiment(path, experiment): digest for each in files for path, digest in each.items()}


def _stage(
    crate: Crate, then: Recorded, digests: Mapping[str, str], makers: Mapping[str, ExecutionRecord]
) -> StageResult:
    outputs, inputs = _anywhere(crate.experiment, then.outputs), _anywhere(crate.experiment, then.inputs)
    equal = sum(digests.get(path) == digest for path, digest in outputs.items())
    same_inputs = all(digests.get(path, digest) == digest for path, digest in inputs.items())
    begins = same_inputs and equal < len(outputs)
    now = next((makers[path] for path in outputs if path in makers), None)
    reasons = () if not begins or now is None else tuple(_reasons(crate, then, now))
    what = named(then.stage, then.seed, next(iter(then.outputs), ""))
    return StageResult(what=what, equal=equal, outputs=len(outputs), begins=begins, reasons=reasons)


def _reasons(crate: Crate, then: Recorded, now: ExecutionRecord) -> Iterator[str]:
    yield from _differing(then.environment, now.environment)
    if then.code != now.code:
        yield _code(crate.code.get(then.stage, {}))
    yield from _differing(_texts(then.params), _texts(now.params))
    yield from (f"runtime.{each}" for each in _differing(_texts(then.runtime), _texts(now.runtime), ("reuse",)))


def _code(then: Mapping[str, str]) -> str:
    now = code_digests([file for file in then if is_below(file)])  # a crate is not trusted with other places
    changed = [file for file, digest in then.items() if now.get(file) != digest]
    if not changed:
        return "the code of the stage"
    more = f" and {len(changed) - MOST_FILES} more" if len(changed) > MOST_FILES else ""
    return f"code: {', '.join(changed[:MOST_FILES])}{more}"


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: canonical_json(value) for key, value in flat(values).items()}


def _differing(then: Mapping[str, str], now: Mapping[str, str], but: Sequence[str] = ()) -> Iterator[str]:
    for name in sorted({*then, *now} - set(but)):
        if then.get(name) != now.get(name):
            yield f"{name}: {then.get(name, ABSENT)} there, {now.get(name, ABSENT)} here"


def _scores(crate: Crate, records: Sequence[ExecutionRecord], experiment: str) -> Iterator[Score]:
    here = {in_any_experiment(path, experiment): path for each in records for path in each.outputs}
    for path, then in crate.scores.items():
        own = here.get(in_any_experiment(path, crate.experiment))
        if own is None:
            continue
        now = dict(_estimates(read_object(Path(own))))
        *_, seed, _, task, policy, _ = ("", "", "", "", "", *Path(path).parts)
        for name, (value, low, high) in _estimates(then):
            if name in now:
                yield Score(
                    name=f"{task}, {policy}, {seed}: {name}", value=now[name][0], recorded=value, low=low, high=high
                )


def _estimates(summary: Mapping[str, Any]) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """Yield each figure of a scores.json that has an interval, by name; those of the main scorer alone."""
    for name, each in summary.items():
        match each:
            case {"value": float(value), "low": float(low), "high": float(high)}:
                yield name if "k" not in each else _at_k(name, each["k"]), (value, low, high)
            case {} if name == PASS:
                yield from ((_at_k(name, key), at[1]) for key, inner in each.items() for at in _estimates({key: inner}))


def _at_k(name: str, k: object) -> str:
    """Return the name of a metric with its k: mean_at_k, 4 -> mean@4."""
    return f"{name.partition('_')[0]}@{k}"
