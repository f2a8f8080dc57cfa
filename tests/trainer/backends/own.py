"""The backend, as somebody's own repository would offer it: `training.backend: {name: tests.trainer.backends.own:BACKEND}`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from tests.trainer.backends import adding

from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice
from dagrpo.trainer.backends import Backend

if TYPE_CHECKING:
    from dagrpo.trainer.backends import Planned
    from dagrpo.trainer.run import Report, TrainingRun

NAME = f"{__name__}:BACKEND"


class Config(Choice):
    added: float = Field(1.0, description="Number that each step adds to every weight.")


def check(config: Config, params: "Planned") -> None:
    if params.training.staleness:
        raise UserError("training.staleness is not known to the backend that adds: set it to 0")


def train(run: "TrainingRun", config: Config, *, threads: int, report: "Report", report_held_out: "Report") -> None:
    from dagrpo.trainer.backend_files import run_program, take_checkpoint, write_job, write_tables

    run.state.mkdir(parents=True, exist_ok=True)
    job, trained = run.state / adding.JOB, run.state / adding.OUT
    write_job(run, job)
    command = [sys.executable, str(Path(adding.__file__)), str(job), str(trained), str(config.added)]
    metrics = run_program(command, run.state / adding.METRICS, run.server_log, report)
    take_checkpoint(run, trained)
    write_tables(run, metrics)


BACKEND = Backend(config=Config, train=train, check=check)
