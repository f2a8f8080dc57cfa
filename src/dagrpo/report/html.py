"""HTML pages and other texts rendered from templates."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dagrpo.core.escape import visible


def render_html(template: Path, **values: Any) -> str:
    """Render a template, which may include those of this folder.

    Every value is escaped, model output first of all, except figures. Control and bidi characters are made visible everywhere:
    titles, parameters and file names are user input too.
    """
    return visible(render_text(template, escape=True, **values))


def render_text(template: Path, *, escape: bool = False, **values: Any) -> str:
    """Render a template of Jinja, of a text that is no HTML without `escape`. Raises UndefinedError for a name without a value."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template.name).render(**values)
