"""Renders docs/benchmarks.md from benchmarks/figures.json.

python -m benchmarks.figures                                   # render the page
python -m benchmarks.figures "Staleness" --table table.md      # first replace a table's rows by those of a Markdown table
"""

import argparse
import json
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu.table import BEGIN, END

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "benchmarks/figures.json"
PAGE = ROOT / "docs/benchmarks.md"
HEAD = """# Benchmarks

Rendered from `benchmarks/figures.json` by `python -m benchmarks.figures`; each table names its command, its machine and the commit at
which it was recorded. Times on a shared machine vary by a factor of two from run to run; compare ratios within one table. Scores
belong to the code of their commit.
"""
ON_A_GPU = """## On a GPU

`make gpu-check` writes this section and `docs/gpu_baseline.json`: tests, shapes and all of GSM8K in 30 minutes
([on a GPU](gpu.md#the-check)).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One measured table."""

    section: str
    title: str
    about: str
    command: str  # "": none
    machine: str
    commit: str  # that recorded it
    date: str
    columns: list[str]
    rows: list[list[str]]
    image: str = ""  # beside the page; "": none

    def markdown(self) -> str:
        """Return the table below its title and description."""
        measured = [*([f"`{self.command}`"] if self.command else []), self.machine, f"{self.commit} of {self.date}"]
        lines = [
            f"### {self.title}",
            "",
            self.about,
            "",
            *(_line(cells) for cells in (self.columns, ["---"] * len(self.columns), *self.rows)),
            "",
            *([f"![{self.title}]({self.image})", ""] if self.image else []),
            f"*{'; '.join(measured)}.*",
            "",
        ]
        return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def read() -> list[Table]:
    """Read every table, in the order of the page."""
    return [Table(**values) for values in json.loads(FIGURES.read_text())]


def write(tables: list[Table]) -> None:
    """Write the tables, a row of figures on one line."""
    texts = []
    for table in tables:
        values = asdict(table)
        rows = ",\n   ".join(json.dumps(row, ensure_ascii=False) for row in values.pop("rows"))
        fields = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
        texts.append("{\n" + ",\n".join(fields) + f',\n  "rows": [\n   {rows}\n  ]\n }}')
    FIGURES.write_text("[\n " + ",\n ".join(texts) + "\n]\n")


def replaced(tables: list[Table], title: str, markdown: str, machine: str) -> list[Table]:
    """Return the tables with the rows of one taken from a Markdown table. Raises SystemExit if no table has the title."""
    if title not in {table.title for table in tables}:
        raise SystemExit(f"No table is called {title!r}: {', '.join(table.title for table in tables)}.")
    columns, _, *rows = [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        for line in markdown.splitlines()
        if line.startswith("|")
    ]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    measured = {
        "columns": columns,
        "rows": rows,
        "machine": machine,
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    return [Table(**(asdict(table) | measured)) if table.title == title else table for table in tables]


def page(tables: list[Table], on_a_gpu: str) -> str:
    """Return the whole page. `on_a_gpu`: the text that `make gpu-check` writes between its marks."""
    parts, section = [HEAD], ""
    for table in tables:
        if table.section != section:
            section = table.section
            parts.append(f"## {section}\n")
        parts.append(table.markdown())
    return "\n".join([*parts, ON_A_GPU, f"{BEGIN}{on_a_gpu}{END}\n"])


def main() -> None:
    """Replace a table if one is named, then render the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("title", nargs="?")
    parser.add_argument("--table", type=Path, help="a file with the Markdown table that a benchmark printed")
    parser.add_argument("--machine", default="two CPU cores, 24 GiB")
    given = parser.parse_args()
    tables = read()
    if given.title:
        tables = replaced(tables, given.title, given.table.read_text(), given.machine)
        write(tables)
    PAGE.write_text(page(tables, PAGE.read_text().partition(BEGIN)[2].partition(END)[0]))


if __name__ == "__main__":
    main()
