"""Definition of a metric: name, unit, direction, plot and words."""

import re
from dataclasses import dataclass
from typing import Literal

Direction = Literal["higher", "lower"]
Figure = Literal["learning_curve", "completion_length", "logprob_difference", "turns_and_calls"]  # of the report


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Curve of a metric over the training steps."""

    figure: Figure
    complement: str = ""  # label of 1 - x, if the report draws that instead of x
    in_dvc: bool = True  # False for a metric that few experiments record: DVC would draw an empty plot


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
    plot: Plot | None = None

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
