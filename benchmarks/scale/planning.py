"""What DVC and Snakemake spend on other experiments' entries in dvc.lock.

    python -m benchmarks.scale planning --experiments 1 10 50 180 > table.md

Runs in a clone in which one experiment is complete, and leaves dvc.lock as it was. The entries of the experiment are copied under
other names, not executed.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.scale.measuring import cost_of, exponent, markdown, seconds_of

from dagrpo.config.schema import read_params
from dagrpo.pipeline.dvc.private import LOCK, record_outputs
from dagrpo.pipeline.dvc.recording import require_readable_lock
from dagrpo.pipeline.override_runs import PARAMS

COLUMNS = (
    "experiments",
    "stages",
    "dvc.lock, MB",
    "bytes a stage",
    "`dvc status`",
    "`dvc repro`, no-op",
    "`snakemake`, no-op",
    "record a stage",
    "the same by `dvc repro`",
)
RECORDED = "convert@"


def table(arguments: Sequence[str]) -> str:
    """Measure at each number of experiments and return the table, with exponents in its last row."""
    parser = argparse.ArgumentParser(prog="planning", description=__doc__)
    parser.add_argument("--experiments", type=int, nargs="+", default=[1, 10, 50])
    counts = parser.parse_args(arguments).experiments
    record_outputs(lambda address, outs: False)  # imports DVC
    measured = []
    for count in counts:
        with _entries_of(count) as entries:
            measured.append((count, entries, LOCK.stat().st_size, *_costs()))
    rows = [
        [
            count,
            entries,
            f"{size / 1e6:.2f}",
            f"{size / entries:,.0f}",
            *costs[:3],
            *(f"{each:.2f} s" for each in costs[3:]),
        ]
        for count, entries, size, *costs in measured
    ]
    seconds = [[getattr(cost, "seconds", cost) for cost in costs] for _, _, _, *costs in measured]
    grown = [f"{exponent(counts, column):.2f}" for column in zip(*seconds, strict=True)]
    return markdown(COLUMNS, [*rows, ["exponent", "", "", "", *grown]])


@contextmanager
def _entries_of(experiments: int) -> Iterator[int]:
    """Give dvc.lock the entries of more experiments; yield how many there are then."""
    whole, name = LOCK.read_text(), read_params(PARAMS).experiment.name
    head, key, entries = whole.partition("stages:\n")
    copies = (entries.replace(name, f"{name}_{number}") for number in range(1, experiments))
    try:
        LOCK.write_text(head + key + entries + "".join(copies))
        yield entries.count("\n    cmd:") * experiments
    finally:
        LOCK.write_text(whole)


def _costs() -> tuple[Any, ...]:
    here = Path.cwd()
    commands = (("dvc", "status"), ("dvc", "repro"), ("snakemake", "--cores", "1", "target"))
    costs = [cost_of(command, here) for command in commands]
    return *costs, seconds_of(_record), seconds_of(_record_as_dvc)


def _record() -> None:
    require_readable_lock()
    record_outputs(lambda address, outs: address.startswith(RECORDED))


def _record_as_dvc() -> None:
    """Write dvc.lock as `dvc repro` does after each stage that it runs."""
    from dvc.dvcfile import Lockfile
    from dvc.repo import Repo

    with Repo(".") as repo, repo.lock:
        stage = next(stage for stage in repo.index.stages if stage.addressing.startswith(RECORDED))
        Lockfile(repo, str(LOCK.resolve())).dump_stages([stage])
