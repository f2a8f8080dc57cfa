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
    steps: Floats  # [steps], from 1, of the longest seed
    ends: tuple[int, ...]  # [seeds], last step of each, where training.patience may have ended it
    values: Mapping[str, Floats]  # each [seeds, steps], NaN after a seed's end

    def __getitem__(self, metric: str) -> Floats:
        """Return one metric, [seeds, steps]. Raises UserError if it was not recorded."""
        if metric not in self.values:
            raise UserError(f"metrics.parquet has no column `{metric}`: run the stage train again.")
        return self.values[metric]


def curves(inputs: Inputs) -> Curves:
    """Combine the metrics of all seeds."""
    tables = [inputs.metrics[seed] for seed in inputs.seeds]
    longest = max(tables, key=lambda table: table.num_rows)["step"].to_pylist()
    names = [name for name in tables[0].column_names if name != "step"]
    values = np.full((len(names), len(tables), len(longest)), np.nan)
    for row, table in enumerate(tables):
        for place, name in enumerate(names):
            values[place, row, : table.num_rows] = np.asarray(table[name].to_pylist(), dtype=np.float64)
    return Curves(
        seeds=inputs.seeds,
        steps=np.asarray(longest, dtype=np.float64),
        ends=tuple(table.num_rows for table in tables),
        values=dict(zip(names, values, strict=True)),
    )


def moving_average(values: Floats, window: int) -> Floats:
    """Average the last `window` steps, fewer at the start; [seeds, steps] in, [seeds, steps] out. Never looks ahead.

    A step without a value (NaN) is left out; the average stays what it is after the last value, since the policy does.
    """
    known = ~np.isnan(values)
    sums, counts = (np.cumsum(np.pad(each, ((0, 0), (1, 0))), axis=1) for each in (np.where(known, values, 0.0), known))
    numbers = np.arange(1, values.shape[1] + 1)
    last = np.minimum(numbers, np.max(numbers * known, axis=1, keepdims=True))
    first = np.maximum(last - window, 0)
    in_window = [np.take_along_axis(each, last, 1) - np.take_along_axis(each, first, 1) for each in (sums, counts)]
    with np.errstate(invalid="ignore"):  # no value in the window: NaN
        means: Floats = in_window[0] / in_window[1]
    return means


def to_csv(recorded: Curves) -> str:
    """Return a CSV with the columns seed, step and every metric; one row per seed and step."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["seed", "step", *recorded.values])
    for row, seed in enumerate(recorded.seeds):
        for column, step in enumerate(recorded.steps[: recorded.ends[row]]):
            writer.writerow([seed, int(step), *(float(values[row, column]) for values in recorded.values.values())])
    return text.getvalue()
