"""Sections `reward.unit_tests` and `evaluation.scoring.unit_tests`: limits of programs."""

from typing import Annotated

from pydantic import Field

from dagrpo.core.section import MOST_PROCESSES, Seconds, Section
from dagrpo.utils.machine import memory_of_machine, processors
from dagrpo_answers.verifier import ProgramLimits


class UnitTests(Section):
    """Limits of programs under test (verifier unit_tests)."""

    seconds: Seconds = Field(
        4.0,
        description="Processor time for one test, rounded up to whole seconds, where the row states none; on the clock 4 times that.",
    )
    memory_mb: Annotated[int, Field(ge=64, le=1 << 20)] = Field(
        1024, description="Memory of one test in MiB; a row that states less has less."
    )
    processes: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] = Field(
        16, description="Most processes and threads of a program."
    )
    parallel: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] | None = Field(
        None, description="Tests that run at the same time; null: as many as there are CPU cores."
    )

    def limits(self) -> ProgramLimits:
        """Return these limits; null for `parallel` becomes what this machine's cores and memory admit."""
        fitting = max(1, memory_of_machine() // (self.memory_mb << 20))
        return ProgramLimits(
            seconds=self.seconds,
            memory_mb=self.memory_mb,
            processes=self.processes,
            parallel=self.parallel or min(processors(), fitting),
        )
