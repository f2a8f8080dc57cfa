"""Definitions of all recorded metrics, from metrics.yaml.

The code that computes a metric names it `<group>/<figure>`; its entry in metrics.yaml is the only other place to edit. The report's
figures and glossary, the plots in dvc.yaml, the table of metrics in MLflow and docs/metrics.md derive from the definitions. A
test compares them with the names that runs record.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

Direction = Literal["higher", "lower"]
Figure = Literal[
    "learning_curve", "completion_length", "logprob_difference", "turns_and_calls", "by_task"
]  # of the report
SAMPLES_SEEN = "rollout/samples_seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Everything that the report, DVC, MLflow and docs/metrics.md say about a metric or a family of metrics."""

    name: str  # <group>/<figure>; <label> and the like stand for names that the run chooses, such as a reward component
    unit: str
    meaning: str  # plain text, readable alone
    reading: str  # typical values and trends; Markdown
    remedy: str  # action if the values are not as they should be; Markdown
    better: Direction | None = None  # None: neither direction is better by itself
    label: str = ""  # name on the report's page and in plots; "": the page does not mention the metric
    figure: Figure | None = None  # draws its curve over the training steps
    complement: str = ""  # label of 1 - x, if the report draws that instead of x

    @property
    def group(self) -> str:
        """Part of the name before the slash; the heading of the metric's table in docs/metrics.md."""
        return self.name.partition("/")[0]

    @property
    def is_share(self) -> bool:
        """True for a number from 0 to 1 that axes and tables show in percent."""
        return self.unit.startswith("share of")

    @property
    def title(self) -> str:
        """Label with its unit, for plots: `Entropy, nats per token`. Shares have percent signs on their axes instead."""
        return self.label if self.is_share or self.unit in self.label.lower() else f"{self.label}, {self.unit}"

    @property
    def facts(self) -> str:
        """Unit and direction in words: `share of problems; higher is better`."""
        return f"{self.unit}; {self.better} is better" if self.better else self.unit

    def covers(self, name: str) -> bool:
        """Return True if a recorded metric has this name, or belongs to this family, in which <k> is a number."""
        pattern = re.sub(r"<\w+>", "[^/]+", re.escape(self.name).replace("<k>", r"\d+"))
        return re.fullmatch(pattern, name) is not None


def _defined() -> tuple[Metric, ...]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if libyaml is there
    entries = yaml.load(Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8"), loader)
    return tuple(Metric(name=name, **entry) for name, entry in entries.items())


METRICS = _defined()  # by group, in the order of docs/metrics.md


def definition_of(name: str) -> Metric | None:
    """Return the definition of a recorded metric, an exact name before a family; None for a metric of a user's plug-in."""
    matches = [metric for metric in METRICS if metric.covers(name)]
    return min(matches, key=lambda metric: "<" in metric.name, default=None)
