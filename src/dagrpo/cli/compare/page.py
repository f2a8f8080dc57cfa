"""A comparison as one HTML file without scripts."""

from itertools import groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dagrpo import report
from dagrpo.cli.compare.comparison import Comparison
from dagrpo.cli.compare.wording import NOTHING_DIFFERS, RUNTIME_TITLE, others, scope, verdict
from dagrpo.core.escape import visible
from dagrpo.report import format

TEMPLATE = "page.html.j2"


def render(comparison: Comparison) -> str:
    """Return the whole text; every value is escaped by the template."""
    styles = Path(report.__file__).parent
    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parent, styles]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    groups = [(group, list(found)) for group, found in groupby(comparison.differences, lambda each: each.group)]
    html = environment.get_template(TEMPLATE).render(
        comparison=comparison,
        groups=groups,
        verdict=verdict,
        others=others,
        scope=scope,
        words=format,
        nothing_differs=NOTHING_DIFFERS,
        runtime_title=RUNTIME_TITLE,
    )
    return visible(html)
