"""Figures of the report; each function draws one and captions it."""

from collections.abc import Sequence

from dagrpo.report import style
from dagrpo.report.comparison import TaskComparison
from dagrpo.report.components import Correlations
from dagrpo.report.conversations import Conversations
from dagrpo.report.curves import Curves
from dagrpo.report.figures.comparison import base_vs_trained
from dagrpo.report.figures.components import reward_components
from dagrpo.report.figures.conversations import call_shares, turns_and_calls
from dagrpo.report.figures.held_out import HeldOutCurve, held_out_accuracy
from dagrpo.report.figures.parts import ReportFigure
from dagrpo.report.figures.training import completion_length, learning_curve, logprob_difference, reward_distribution
from dagrpo.report.rollouts import Phases

__all__ = ["NAMES", "ReportFigure", "draw_all", "draw_components", "draw_conversations", "draw_held_out"]

NAMES = ("base_vs_trained", "learning_curve", "reward_distribution", "completion_length", "logprob_difference")


def draw_all(
    curves: Curves, phases: Phases | None, comparisons: Sequence[TaskComparison], window: int
) -> list[ReportFigure]:
    """Draw every figure of NAMES, in the report's order. `window`: steps of the moving average."""
    with style.house_style():
        return [
            base_vs_trained(comparisons),
            learning_curve(curves, window),
            reward_distribution(phases),
            completion_length(curves, phases, window),
            logprob_difference(curves),
        ]


def draw_components(curves: Curves, correlations: Correlations | None, window: int) -> list[ReportFigure]:
    """Draw the components of the reward; [] for a single one."""
    with style.house_style():
        figure = reward_components(curves, correlations, window)
        return [] if figure is None else [figure]


def draw_conversations(talk: Conversations, curves: Curves, window: int) -> list[ReportFigure]:
    """Draw turns and calls: over training, and of each evaluated task that has any."""
    with style.house_style():
        figures = [turns_and_calls(curves, window), call_shares(talk.shares)]
        return [each for each in figures if each is not None]


def draw_held_out(curves: Sequence[HeldOutCurve]) -> list[ReportFigure]:
    """Draw the held-out accuracy; [] if training evaluated nothing."""
    with style.house_style():
        return [held_out_accuracy(curves)] if curves else []
