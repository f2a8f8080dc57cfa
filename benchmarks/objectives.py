"""Compare curves and scores of objectives in a figure and a table.

    dagrpo use arithmetic_tiny && snakemake --cores all target --config sweep=losses
    python benchmarks/objectives.py ppo_clip=results/arithmetic_tiny~1f2e gspo=results/arithmetic_tiny~3a4b ... --to curves.png
    python benchmarks/objectives.py ... --metrics policy/entropy rollout/length_mean

The first one is drawn into every panel. All runs need the same numbers of steps and seeds, so that panels can be compared.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from dagrpo.evaluation.statistics import Floats
from dagrpo.report import style
from dagrpo.report.curves import moving_average
from dagrpo.utils.files import read_json
from dagrpo.utils.tables import read_parquet

LAST = 10  # steps that a metric at the end is the mean of
REWARD = "reward/mean"
WINDOW = 10  # steps of the moving average
GREY = "#8e8e93"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Curves and scores of the seeds that trained with one objective."""

    name: str
    curves: Mapping[str, Floats]  # [seeds, steps] of each metric
    base: Floats  # [seeds], greedy accuracy before training
    trained: Floats  # [seeds], and after it

    @classmethod
    def read(cls, named: str, metrics: Sequence[str]) -> "Objective":
        """Return the runs of NAME=FOLDER, the results of an experiment; raise SystemExit where there are none."""
        name, _, folder = named.partition("=")
        runs = sorted(Path(folder).glob("runs/seed_*"))
        if not runs:
            raise SystemExit(f"{folder} has no runs/seed_*: give NAME=FOLDER with the results of an experiment.")
        tables = [read_parquet(run / "metrics.parquet") for run in runs]
        return cls(
            name=name,
            curves={metric: np.array([table[metric].to_pylist() for table in tables]) for metric in metrics},
            base=_greedy(runs, "base"),
            trained=_greedy(runs, "trained"),
        )

    def row(self) -> str:
        """Return the row of the table: means over seeds, with the smallest and the largest."""
        shares = " | ".join(_spread(each, ".1%") for each in (self.base, self.trained, self.trained - self.base))
        at_end = " | ".join(_spread(curve[:, -LAST:].mean(axis=1), ".3f") for curve in self.curves.values())
        return f"| {self.name} | {shares} | {at_end} |"


def _greedy(runs: Sequence[Path], policy: str) -> Floats:
    """Return the greedy accuracy of each run, the mean over its tasks. [seeds]"""
    scores = [[read_json(task / policy / "scores.json") for task in sorted(run.glob("eval/*"))] for run in runs]
    return np.array([np.mean([each["greedy"]["value"] for each in of_run]) for of_run in scores])


def _spread(values: Floats, form: str) -> str:
    return f"{values.mean():{form}} ({values.min():{form}} to {values.max():{form}})"


def _panel(axes: Axes, objective: Objective, default: Objective, metric: str) -> None:
    own, others = (moving_average(each.curves[metric], WINDOW) for each in (objective, default))
    steps = np.arange(1, own.shape[1] + 1)
    axes.plot(steps, others.mean(axis=0), color=GREY, linestyle="--", label=default.name)
    for curve in own:
        axes.plot(steps, curve, color=style.BASE, linewidth=0.8, alpha=0.6)
    axes.plot(steps, own.mean(axis=0), color=style.TRAINED, label="mean of seeds")
    axes.set_title(objective.name)


def _figure(objectives: Sequence[Objective], metric: str, path: Path) -> None:
    """Draw a panel for each objective, three in a row, with the same axes."""
    with style.house_style():
        rows = -(-len(objectives) // 3)
        figure = style.new_figure(2.1 * rows)
        grid = figure.subplots(rows, min(3, len(objectives)), sharex=True, sharey=True, squeeze=False)
        for axes, objective in zip(grid.flat, objectives, strict=False):
            _panel(axes, objective, objectives[0], metric)
        for axes in list(grid.flat)[len(objectives) :]:
            axes.set_axis_off()
        grid[0, 0].legend()
        figure.supxlabel("step", fontsize=8.5)
        figure.supylabel(f"{metric}, mean of {WINDOW} steps", fontsize=8.5)
        figure.savefig(path, dpi=200, metadata={"Software": None})


def main() -> None:
    """Print the table; draw the first of --metrics where --to is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--metrics", nargs="+", default=[REWARD], help="columns of metrics.parquet")
    parser.add_argument("--to", type=Path, help="a PNG file")
    options = parser.parse_args()
    objectives = [Objective.read(named, options.metrics) for named in options.results]
    print(f"| objective | greedy, base | greedy, trained | difference | {' | '.join(options.metrics)} |")
    print("|---|---|---|---|" + "---|" * len(options.metrics))
    for objective in objectives:
        print(objective.row())
    if options.to:
        _figure(objectives, options.metrics[0], options.to)


if __name__ == "__main__":
    main()
