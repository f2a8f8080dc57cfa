"""Writes an example's curve.csv and curve.svg from its results: `python examples/curve.py tool_agent`."""

import csv
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent
FIGURES = ("reward/mean", "reward/accuracy", "policy/entropy", "rollout/length_mean", "tool/calls_mean")
WIDTH, HEIGHT, MARGIN = 480, 240, 40
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


def main(name: str, results: Path) -> None:
    """Write both files into the example's folder."""
    rows = rows_of(name, results)
    with (EXAMPLES / name / "curve.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (EXAMPLES / name / "curve.svg").write_text(svg(rows))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "results"))
