"""Recorded times of an experiment's stages, which replace estimates.

A stage counts if it has read the parameters that it would read today; the number of training steps may differ.
"""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from dagrpo.config.overlay import flat
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.changes.executions import ExecutionRecord, read_record
from dagrpo.pipeline.job_files import own_params
from dagrpo.pipeline.stages import all_stages, train
from dagrpo.utils.provenance import provenances_of
from dagrpo.utils.run_info import GROUP, SECONDS, read_accounts, read_times, step_seconds

LOGS, RESULTS, TRAIN = Path("logs"), Path("results"), train.STAGE.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Recorded times; empty if the experiment has not run here."""

    stages: Mapping[str, float] = field(default_factory=dict)  # mean seconds of one run, by stage
    steps: Mapping[str, float] = field(default_factory=dict)  # mean seconds of a training step, by part
    number: int = 0  # of the steps that these are means of
    beside_steps: float | None = None  # mean seconds of a training run that are no step's: starting, loading, saving


def measured(params: Params) -> Measured:
    """Return the recorded times of the experiment that these parameters name."""
    name = params.experiment.name
    current = dict[Path, ExecutionRecord]()
    for path in provenances_of(name):
        with suppress(UserError):  # damaged: `dagrpo status` says so
            if _is_the_same(params, record := read_record(path)):
                current[path] = record
    seconds_by_stage, beside = defaultdict[str, list[float]](list), list[float]()
    for account in read_accounts(LOGS / name, list(current)).values():
        if account.stage == TRAIN and account.seed is not None and not account.is_taken_over:
            beside.append(account.seconds - sum(map(step_seconds, _steps(name, account.seed))))
        elif not account.is_taken_over:
            seconds_by_stage[account.stage].append(account.seconds)
    seeds = sorted({each.seed for each in current.values() if each.stage == TRAIN and each.seed is not None})
    # All steps but the first, which warms up; the first one if it is the only one.
    steps = [step for seed in seeds for step in (_steps(name, seed)[1:] or _steps(name, seed))]
    names = sorted({name for step in steps for name in step if name.endswith(SECONDS)})
    # A part that a step lacks counts as 0.
    means = {name: mean(step.get(name, 0.0) for step in steps) for name in names}
    parts = {n.removeprefix(GROUP).removesuffix(SECONDS).replace("_", " "): value for n, value in means.items()}
    # One that was resumed has taken steps before; where they are few, this is too little.
    whole = [seconds for seconds in beside if seconds > 0]
    return Measured(
        stages={stage: mean(seconds) for stage, seconds in seconds_by_stage.items()},
        steps=parts,
        number=len(steps),
        beside_steps=mean(whole) if whole else None,
    )


def _is_the_same(params: Params, record: ExecutionRecord) -> bool:
    stage = all_stages().get(record.stage)
    if stage is None:
        return False
    left_out = tuple(stage.extends) if stage.name == TRAIN else ()
    then, today = (flat(values) for values in (dict(record.params), own_params(params, stage)))
    return all(
        then.get(key) == today.get(key) for key in then.keys() | today.keys() if not key.startswith(left_out or ("\0",))
    )


def _steps(experiment: str, seed: int) -> list[dict[str, float]]:
    """Return the seconds by part of each step of a seed."""
    metrics = RESULTS / experiment / "runs" / f"seed_{seed}" / "metrics.parquet"
    if not metrics.is_file():
        return []
    return read_times(LOGS / experiment / f"seed_{seed}", metrics) or []
