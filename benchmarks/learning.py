"""Print what experiments learned, seed by seed, as the table of docs/benchmarks.md.

python benchmarks/learning.py results/arithmetic_tiny_3_seeds results/arithmetic_tiny_control
"""

import sys
from pathlib import Path
from typing import Any

from dagrpo.utils.files import read_json
from dagrpo.utils.tables import read_parquet

LAST = 10  # steps that the last reward is the mean of


def main() -> None:
    print(
        "| experiment | seed | task | greedy, base | greedy, trained | mean@k, base | mean@k, trained | reward, first and last steps |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for experiment in map(Path, sys.argv[1:]):
        for run in sorted(experiment.glob("runs/seed_*")):
            for task in sorted(run.glob("eval/*")):
                print(_row(experiment.name, run, task))


def _row(experiment: str, run: Path, task: Path) -> str:
    base, trained = (read_json(task / policy / "scores.json") for policy in ("base", "trained"))
    rewards = read_parquet(run / "metrics.parquet")["reward/mean"].to_pylist()
    first, last = sum(rewards[:LAST]) / len(rewards[:LAST]), sum(rewards[-LAST:]) / len(rewards[-LAST:])
    scores = [_percent(scores[kind]) for kind in ("greedy", "mean_at_k") for scores in (base, trained)]
    seed = run.name.removeprefix("seed_")
    return f"| {experiment} | {seed} | {task.name} | {' | '.join(scores)} | {first:.3f}, {last:.3f} |"


def _percent(estimate: dict[str, Any]) -> str:
    return f"{estimate['value']:.1%} ({estimate['low']:.1%} to {estimate['high']:.1%})"


if __name__ == "__main__":
    main()
