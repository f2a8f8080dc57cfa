"""Megatron-LM's examples/rl: its trainer in a separate environment, by files."""

from typing import TYPE_CHECKING

from pydantic import Field

from dagrpo.core.plugin_sections import Choice
from dagrpo.core.section import Unchecked
from dagrpo.trainer.backends import Backend, Planned

if TYPE_CHECKING:
    from dagrpo.trainer.run import Report, TrainingRun


class Config(Choice):
    """Megatron-LM d98e8a6, which trains one-turn tasks of text; runtime.backend.source names its folder, .python its Python."""

    settings: Unchecked = Field(
        {},
        description="Further arguments of its train_rl.py, such as {expert-model-parallel-size: 2}; those "
        "that follow from other parameters are refused.",
    )


def check(config: Config, params: Planned) -> None:
    """Raise UserError for the first parameter that Megatron-LM cannot honour."""
    from dagrpo_megatron.backend.mapping import refuse

    refuse(params, config.settings)


def train(run: "TrainingRun", config: Config, *, threads: int, report: "Report", report_held_out: "Report") -> None:
    """Train in Megatron-LM's processes, and take its checkpoint back."""
    from dagrpo_foreign.nodes import nodes_of
    from dagrpo_megatron.backend.running import train_with_megatron_lm

    with nodes_of(run.runtime.nodes, run.state) as nodes:
        if nodes.world.is_rank_zero:
            train_with_megatron_lm(run, config.settings, report, nodes)
        else:
            nodes.follow()


BACKEND = Backend(config=Config, train=train, check=check, takes_nodes=True)
