"""Learning curves: arrays over seeds and steps, and their DVC table."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dagrpo.core.errors import UserError
from dagrpo.evaluation.statistics import Floats
from dagrpo.report.inputs import Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Training metrics of every seed."""

    seeds: tuple[int, ...]
    steps: Floats  # [steps], from 1
    values: Mapping[str, Floats]  # each [seeds, steps]

    def __getitem__(self, metric: str) -> Floats:
        """Return one metric, [seeds, steps]. Raises UserError if it was not recorded."""
        if metric not in self.values:
            raise UserError(f"metrics.parquet has no column `{metric}`: run the stage train again.")
        return self.values[metric]


def curves(inputs: Inputs) -> Curves:
    """Combine the metrics of all seeds. Raises UserError if their steps or columns differ."""
    tables = [inputs.metrics[seed] for seed in inputs.seeds]
    for seed, table in zip(inputs.seeds, tables, strict=True):
        if table.num_rows == 0 or table.schema != tables[0].schema or table["step"] != tables[0]["step"]:
            raise UserError(
                f"seed_{seed}/metrics.parquet has other steps or columns than that of seed {inputs.seeds[0]}: "
                "run the stage train again for both."
            )
    names = [name for name in tables[0].column_names if name != "step"]
    return Curves(
        seeds=inputs.seeds,
        steps=np.asarray(tables[0]["step"].to_pylist(), dtype=np.float64),
        values={name: np.array([table[name].to_pylist() for table in tables], dtype=np.float64) for name in names},
    )


def moving_average(values: Floats, window: int) -> Floats:
    """Average the last `window` steps, fewer at the start; [seeds, steps] in, [seeds, steps] out. Never looks ahead.

    A step without a value (NaN) is left out.
    """
    known = ~np.isnan(values)
    sums, counts = (np.cumsum(np.pad(each, ((0, 0), (1, 0))), axis=1) for each in (np.where(known, values, 0.0), known))
    last = np.arange(1, values.shape[1] + 1)
    first = np.maximum(last - window, 0)
    with np.errstate(invalid="ignore"):  # no value in the window: NaN
        means: Floats = (sums[:, last] - sums[:, first]) / (counts[:, last] - counts[:, first])
    return means


def to_csv(recorded: Curves) -> str:
    """Return a CSV with the columns seed, step and every metric; one row per seed and step."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["seed", "step", *recorded.values])
    for row, seed in enumerate(recorded.seeds):
        for column, step in enumerate(recorded.steps):
            writer.writerow([seed, int(step), *(float(values[row, column]) for values in recorded.values.values())])
    return text.getvalue()
