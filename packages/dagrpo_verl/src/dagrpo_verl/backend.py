"""verl (arXiv 2409.19256): its trainer in a separate environment, by files."""

from typing import TYPE_CHECKING

from pydantic import Field

from dagrpo.core.plugin_sections import Choice
from dagrpo.core.section import Unchecked
from dagrpo.trainer.backends import Backend, Planned

if TYPE_CHECKING:
    from dagrpo.trainer.run import Report, TrainingRun


class Config(Choice):
    """verl 0.9.1 (arXiv 2409.19256), which trains tasks of text and of pictures; runtime.backend.python names its Python."""

    settings: Unchecked = Field(
        {},
        description="Further keys of verl's configuration, such as {actor_rollout_ref.rollout.gpu_memory_utilization: 0.6}; those that "
        "follow from other parameters are refused.",
    )


def check(config: Config, params: Planned) -> None:
    """Raise UserError for the first parameter that verl cannot honour."""
    from dagrpo_verl.mapping import planned

    planned(params, config.settings)


def train(run: "TrainingRun", config: Config, *, threads: int, report: "Report", report_held_out: "Report") -> None:
    """Train in verl's processes, and take its checkpoint back."""
    from dagrpo_foreign.nodes import nodes_of
    from dagrpo_verl.running import train_with_verl

    with nodes_of(run.runtime.nodes, run.state) as nodes:
        if nodes.world.is_rank_zero:
            train_with_verl(run, config.settings, report, nodes)
        else:
            nodes.follow()


BACKEND = Backend(config=Config, train=train, check=check, takes_nodes=True)
