"""Learning curves of several objectives beside the default's: a figure, and a table of what they have reached.

    dagrpo use arithmetic_tiny_3_seeds && snakemake --cores all target
    snakemake --cores all target --config algorithm__loss__name=gspo ...     # a try for each objective
    python benchmarks/objectives.py default=results/arithmetic_tiny_3_seeds gspo=results/arithmetic_tiny_3_seeds~1f2e ... --to curves.png

The first one is drawn into every panel. All runs need the same numbers of steps and seeds, so that panels can be compared.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from dagrpo.evaluation.statistics import Floats
from dagrpo.report import style
from dagrpo.report.curves import moving_average
from dagrpo.utils.files import read_json
from dagrpo.utils.tables import read_parquet

LAST = 10  # steps that a reward at the end is the mean of
WINDOW = 10  # steps of the moving average
GREY = "#8e8e93"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What one objective has reached."""

    name: str
    rewards: Floats  # [seeds, steps]
    base: Floats  # [seeds], greedy accuracy before training
    trained: Floats  # [seeds], and after it

    @classmethod
    def of(cls, named: str) -> "Objective":
        """From NAME=FOLDER, the results of an experiment."""
        name, _, folder = named.partition("=")
        runs = sorted(Path(folder).glob("runs/seed_*"))
        if not runs:
            raise SystemExit(f"{folder} has no runs/seed_*: give NAME=FOLDER with the results of an experiment.")
        return cls(
            name=name,
            rewards=np.array([read_parquet(run / "metrics.parquet")["reward/mean"].to_pylist() for run in runs]),
            base=_greedy(runs, "base"),
            trained=_greedy(runs, "trained"),
        )

    def row(self) -> str:
        """Its row of the table: means over seeds, with the smallest and the largest."""
        last, gain = self.rewards[:, -LAST:].mean(axis=1), self.trained - self.base
        shares = " | ".join(map(_spread, (self.base, self.trained, gain)))
        return f"| {self.name} | {shares} | {last.mean():.3f} ({last.min():.3f} to {last.max():.3f}) |"


def _greedy(runs: Sequence[Path], policy: str) -> Floats:
    """The mean over tasks. [seeds]"""
    scores = [[read_json(task / policy / "scores.json") for task in sorted(run.glob("eval/*"))] for run in runs]
    return np.array([np.mean([each["greedy"]["value"] for each in of_run]) for of_run in scores])


def _spread(shares: Floats) -> str:
    return f"{shares.mean():.1%} ({shares.min():.1%} to {shares.max():.1%})"


def _panel(axes: Axes, objective: Objective, default: Objective) -> None:
    steps = np.arange(1, objective.rewards.shape[1] + 1)
    axes.plot(
        steps, moving_average(default.rewards, WINDOW).mean(axis=0), color=GREY, linestyle="--", label=default.name
    )
    for curve in moving_average(objective.rewards, WINDOW):
        axes.plot(steps, curve, color=style.BASE, linewidth=0.8, alpha=0.6)
    axes.plot(steps, moving_average(objective.rewards, WINDOW).mean(axis=0), color=style.TRAINED, label="mean of seeds")
    axes.set_title(objective.name)


def _figure(objectives: Sequence[Objective], path: Path) -> None:
    """A panel for each, three in a row, with the same axes."""
    with style.house_style():
        rows = -(-len(objectives) // 3)
        figure = style.new_figure(2.1 * rows)
        grid = figure.subplots(rows, min(3, len(objectives)), sharex=True, sharey=True, squeeze=False)
        for axes, objective in zip(grid.flat, objectives, strict=False):
            _panel(axes, objective, objectives[0])
        for axes in list(grid.flat)[len(objectives) :]:
            axes.set_axis_off()
        grid[0, 0].legend()
        figure.supxlabel("step", fontsize=8.5)
        figure.supylabel(f"reward, mean of {WINDOW} steps", fontsize=8.5)
        figure.savefig(path, dpi=200, metadata={"Software": None})


def main() -> None:
    """The table on the terminal, and the figure where --to says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--to", type=Path, help="a PNG file")
    options = parser.parse_args()
    objectives = [Objective.of(named) for named in options.results]
    print("| objective | greedy, base | greedy, trained | difference | reward, last steps |")
    print("|---|---|---|---|---|")
    for objective in objectives:
        print(objective.row())
    if options.to:
        _figure(objectives, options.to)


if __name__ == "__main__":
    main()
