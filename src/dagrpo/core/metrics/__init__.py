"""Definitions of all recorded metrics, one module per group.

The code that computes a metric names it `<group>/<figure>`; its definition here is the only other place to edit. The report's
figures and glossary, the plots in dvc.yaml, the table of metrics in MLflow and docs/metrics.md derive from the definitions. A
test compares them with the names that runs record. Names of shares end in `_fraction` and names of times in `_seconds`, unless
the field has an established word.
"""

from dagrpo.core.metrics.definition import Figure, Metric
from dagrpo.core.metrics.evaluation import EVALUATION
from dagrpo.core.metrics.gate import GATE
from dagrpo.core.metrics.held_out import HELD_OUT
from dagrpo.core.metrics.off_policy import OFF_POLICY
from dagrpo.core.metrics.policy import POLICY
from dagrpo.core.metrics.reward import REWARD
from dagrpo.core.metrics.rollout import ROLLOUT
from dagrpo.core.metrics.sft import SFT
from dagrpo.core.metrics.timing import TIMING
from dagrpo.core.metrics.tool import TOOL

__all__ = ["METRICS", "Figure", "Metric", "all_metrics", "definition_of", "plotted"]

METRICS = (*REWARD, *POLICY, *OFF_POLICY, *ROLLOUT, *TOOL, *GATE, *TIMING, *SFT, *HELD_OUT, *EVALUATION)


def all_metrics() -> tuple[Metric, ...]:
    """Return every definition, by group, in the order of docs/metrics.md."""
    return METRICS


def definition_of(name: str) -> Metric | None:
    """Return the definition of a recorded metric, an exact name before a family; None for a metric of a user's plug-in."""
    matches = [metric for metric in all_metrics() if metric.covers(name)]
    return min(matches, key=lambda metric: "<" in metric.name, default=None)


def plotted(figure: Figure | None = None) -> list[Metric]:
    """Return the metrics with a curve in one figure of the report, or in any (None), in the order of their definitions."""
    return [each for each in all_metrics() if each.plot is not None and figure in (None, each.plot.figure)]
