"""Writes an example's curve.csv and curve.svg, or checks a run: `python examples/curve.py tool_agent --check`."""

import argparse
import csv
import itertools
import statistics
from pathlib import Path

EXAMPLES = Path(__file__).parent
FIGURES = ("reward/mean", "reward/accuracy", "policy/entropy", "rollout/length_mean", "tool/calls_mean")
WIDTH, HEIGHT, MARGIN = 480, 240, 40
PARTS = 4  # of a curve, whose mean rewards are compared
TOLERANCE = 0.15  # of a part's mean reward; another machine rounds otherwise, and then samples otherwise
COLOURS = {"reward/mean": "#1f77b4", "reward/accuracy": "#ff7f0e"}


def rows_of(name: str, results: Path) -> list[dict[str, str]]:
    """Return the step and the figures of each training step of the first seed."""
    with (results / name / "report/curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ["step", *(figure for figure in FIGURES if figure in rows[0])]
    return [{key: f"{float(row[key]):.6g}" for key in names} for row in rows if row["seed"] == rows[0]["seed"]]


def svg(rows: list[dict[str, str]]) -> str:
    """Draw reward and accuracy over the steps, both from 0 to their largest value."""
    top = max(1.0, *(float(row[name]) for row in rows for name in COLOURS))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{MARGIN} {MARGIN / 2} V{HEIGHT - MARGIN} H{WIDTH - 10}" fill="none" stroke="#888"/>',
        f'<text x="{WIDTH - 10}" y="{HEIGHT - 12}" text-anchor="end">step {rows[-1]["step"]}</text>',
        f'<text x="{MARGIN - 6}" y="{MARGIN / 2 + 4}" text-anchor="end">{top:.1f}</text>',
        f'<text x="{MARGIN - 6}" y="{HEIGHT - MARGIN + 4}" text-anchor="end">0</text>',
    ]
    for index, (name, colour) in enumerate(COLOURS.items()):
        points = " ".join(
            f"{MARGIN + (WIDTH - MARGIN - 10) * place / max(1, len(rows) - 1):.1f},"
            f"{HEIGHT - MARGIN - (HEIGHT - 1.5 * MARGIN) * float(row[name]) / top:.1f}"
            for place, row in enumerate(rows)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{MARGIN + 10 + 130 * index}" y="{HEIGHT - 12}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def write(name: str, results: Path) -> None:
    """Write both files into the example's folder."""
    rows = rows_of(name, results)
    with (EXAMPLES / name / "curve.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (EXAMPLES / name / "curve.svg").write_text(svg(rows))


def check(name: str, results: Path) -> None:
    """Print the largest distance of a run's rewards from curve.csv.

    Raises SystemExit if it is above TOLERANCE, or the run has another number of steps.
    """
    with (EXAMPLES / name / "curve.csv").open() as file:
        recorded_rows = list(csv.DictReader(file))
    rows = rows_of(name, results)
    if len(rows) != len(recorded_rows):
        raise SystemExit(
            f"{name}: the run has {len(rows)} steps and curve.csv {len(recorded_rows)}: run it with the example's parameters."
        )
    pairs = zip(parts_of(rows), parts_of(recorded_rows), strict=True)
    distance, part = max((abs(run - recorded), part) for part, (run, recorded) in enumerate(pairs, 1))
    found = f"{name}: the mean reward differs from curve.csv by at most {distance:.3f}, in part {part} of {PARTS}"
    if distance > TOLERANCE:
        raise SystemExit(f"{found}, more than {TOLERANCE}: look for a change in the parameters, the data or the code.")
    print(f"{found}.")


def parts_of(rows: list[dict[str, str]]) -> list[float]:
    """Return the mean rewards of PARTS equal parts of a curve."""
    rewards = [float(row["reward/mean"]) for row in rows]
    edges = [len(rewards) * part // PARTS for part in range(PARTS + 1)]
    return [statistics.fmean(rewards[first:last]) for first, last in itertools.pairwise(edges)]


def main() -> None:
    """Write or check the curve of an example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"))
    parser.add_argument("--check", action="store_true", help="compare a run with the curve that is recorded")
    given = parser.parse_args()
    (check if given.check else write)(given.name, given.results)


if __name__ == "__main__":
    main()
