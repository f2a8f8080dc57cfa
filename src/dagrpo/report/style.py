"""Style of all figures: Okabe-Ito colours, no chart junk.

Colour-blind readers can tell these colours apart. Every colour is one of the names here, so that the page can swap them for its
own when the background is dark.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK = "#1c1c1e"
PAPER = "#ffffff"
BASE = "#0072b2"  # before training: base policy, first steps
TRAINED = "#d55e00"  # after training: trained policy, last steps
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # one per seed, then again from the first
WIDTH = 7.2  # inches

_RC = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same bytes everywhere
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.0,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.borderaxespad": 0.2,
    "figure.facecolor": PAPER,
    "savefig.facecolor": "auto",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched, and set in the page's own face
}


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the style while drawing and saving; the user's matplotlib configuration has no effect."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield


def new_figure(height: float) -> Figure:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def to_svg(figure: Figure, name: str, *, transparent: bool = False) -> str:
    """Return the figure as SVG text; `name` salts its ids, so that they are the same each time."""
    buffer = BytesIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with house_style():
        matplotlib.rcParams["svg.hashsalt"] = name
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # each layout begins from the last one's ticks, and would move the axes
        figure.savefig(buffer, format="svg", metadata=metadata, transparent=transparent)
    return buffer.getvalue().decode()
