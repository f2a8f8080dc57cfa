"""Definitions of every recorded metric: name, unit and meaning, by group.

A metric is named `<group>/<figure>` where it is computed, and a test compares those names with the ones here. Shares end in
`_fraction` and times in `_seconds`, unless the field has its own word. The report's words and docs/metrics.md, which
says how to read each and what to do about it, take their definitions from here.
"""

from dagrpo.core.metrics.definition import Metric
from dagrpo.core.metrics.evaluation import EVALUATION
from dagrpo.core.metrics.gate import GATE
from dagrpo.core.metrics.held_out import HELD_OUT
from dagrpo.core.metrics.policy import POLICY
from dagrpo.core.metrics.reward import REWARD
from dagrpo.core.metrics.rollout import ROLLOUT
from dagrpo.core.metrics.sft import SFT
from dagrpo.core.metrics.timing import TIMING
from dagrpo.core.metrics.tool import TOOL

__all__ = ["METRICS", "Metric", "definition_of", "meaning_of"]

METRICS = (*REWARD, *POLICY, *ROLLOUT, *TOOL, *GATE, *TIMING, *SFT, *HELD_OUT, *EVALUATION)


def definition_of(name: str) -> Metric | None:
    """Return the definition of a recorded metric: its own before that of a family. None for a plug-in's metric."""
    found = [metric for metric in METRICS if metric.covers(name)]
    return min(found, key=lambda metric: "<" in metric.name, default=None)


def meaning_of(name: str) -> str:
    """Return the meaning of a metric that is defined here."""
    (metric,) = (metric for metric in METRICS if metric.name == name)
    return metric.meaning
