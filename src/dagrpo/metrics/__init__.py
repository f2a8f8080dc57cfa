"""Every figure that runs record: its name, its unit and what it is; one file for each group.

A figure is named `<group>/<figure>` where it is computed, and a test compares those names with the ones here. Shares end in
`_fraction` and times in `_seconds`, unless the field has a word of its own for them. The report's words and docs/metrics.md, which
says how to read each and what to do about it, take their definitions from here.
"""

from dagrpo.metrics.definition import Metric
from dagrpo.metrics.evaluation import EVALUATION
from dagrpo.metrics.gate import GATE
from dagrpo.metrics.held_out import HELD_OUT
from dagrpo.metrics.policy import POLICY
from dagrpo.metrics.reward import REWARD
from dagrpo.metrics.rollout import ROLLOUT
from dagrpo.metrics.sft import SFT
from dagrpo.metrics.timing import TIMING
from dagrpo.metrics.tool import TOOL

__all__ = ["METRICS", "Metric", "definition_of", "meaning_of"]

METRICS = (*REWARD, *POLICY, *ROLLOUT, *TOOL, *GATE, *TIMING, *SFT, *HELD_OUT, *EVALUATION)


def definition_of(name: str) -> Metric | None:
    """That of a figure that a run has written: its own before one of a whole family. None for those of somebody's plug-in."""
    found = [metric for metric in METRICS if metric.covers(name)]
    return min(found, key=lambda metric: "<" in metric.name, default=None)


def meaning_of(name: str) -> str:
    """What a figure is, by the name that it has here."""
    (metric,) = (metric for metric in METRICS if metric.name == name)
    return metric.meaning
