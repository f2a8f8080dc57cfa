"""Matplotlib SVG for an HTML page: the page's colours, unique ids."""

import re
from html import escape

from dagrpo.report.style import INK, PAPER, SERIES

_OPENING = re.compile(r"<svg [^>]*>")
_ID = re.compile(r'(id="|url\(#|href="#)')
_FACE = re.compile(r"font-family: [^;\"]+")
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def inline(svg: str, name: str, title: str, description: str) -> str:
    """Return the <svg> element for a page that defines --paper and --series-1 .. --series-6; `name` prefixes every id."""
    opening = _OPENING.search(svg)
    view_box = re.search(r'viewBox="([^"]+)"', svg)
    assert opening is not None, "matplotlib wrote an <svg> element"
    assert view_box is not None, "matplotlib wrote a viewBox"
    body = _METADATA.sub("", svg[opening.end() :]).replace("xlink:href=", "href=")
    body = _ID.sub(rf"\1{name}-", body)
    body = _FACE.sub("font-family: var(--sans)", _themed(body))
    head = (
        f'<svg viewBox="{view_box.group(1)}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    )
    return head + body.strip()


def _themed(svg: str) -> str:
    svg = svg.replace(INK, "currentColor").replace(PAPER, "var(--paper)")
    for number, colour in enumerate(SERIES, start=1):
        svg = svg.replace(colour, f"var(--series-{number})")
    return svg
