"""Tables of docs/metrics.md, generated from the definitions."""

import re

from dagrpo.core.errors import UserError
from dagrpo.core.metrics import all_metrics
from dagrpo.core.suggest import nearest

PATH = "docs/metrics.md"
HEAD = "| metric | meaning | how to read it | what to do |\n|---|---|---|---|\n"
_TABLE = re.compile(r"^(## (\w+)/\n(?:(?!\n## ).)*?\n)\| metric \|.*?\n(?!\|)", re.MULTILINE | re.DOTALL)


def with_tables(page: str) -> str:
    """Return docs/metrics.md with the table below each heading `## <group>/` replaced by the group's definitions.

    Raises UserError if a group has no heading.
    """
    headings = re.findall(r"^## (\w+)/$", page, re.MULTILINE)
    missing = next((each for each in all_metrics() if each.group not in headings), None)
    if missing is not None:
        near = nearest(missing.group, headings)
        raise UserError(
            f"{PATH} has no heading `## {missing.group}/`, the group of the metric {missing.name}: {near}. "
            "Correct the name, or add the heading."
        )
    return _TABLE.sub(lambda match: f"{match[1]}{HEAD}{_rows(match[2])}", page)


def _rows(group: str) -> str:
    return "".join(
        f"| `{each.name}` | {each.meaning} ({each.facts}) | {each.reading} | {each.remedy} |\n"
        for each in all_metrics()
        if each.group == group
    )
