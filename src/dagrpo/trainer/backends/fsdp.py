"""FSDP2 trainer of this package: exact, resumable and checked at every step."""

from typing import TYPE_CHECKING

from dagrpo.core.plugin_sections import Choice
from dagrpo.trainer.backends import Backend

if TYPE_CHECKING:
    from dagrpo.trainer.run import Report, TrainingRun


def train(run: "TrainingRun", config: Choice, *, threads: int, report: "Report", report_held_out: "Report") -> None:
    """Train in this process, together with the other ranks if there are any."""
    from dagrpo.trainer.training import train as train_in
    from dagrpo.utils.distributed import process_group
    from dagrpo.utils.machine import warn_of_slow_types

    copies = run.runtime.copies
    with process_group(threads, deterministic=run.rollout.deterministic, copies=copies) as world:
        own_engine = {} if run.runtime.engine.servers else {"rollout.dtype": run.rollout.dtype}
        warn_of_slow_types({"training.dtype": run.training.dtype, **own_engine}, world)
        train_in(run, report, world, report_held_out=report_held_out)


BACKEND = Backend(config=Choice, train=train, launches_processes=False, keeps_policies=True)
