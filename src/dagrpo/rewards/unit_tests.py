"""Sections `reward.unit_tests` and `evaluation.scoring.unit_tests`: limits of programs, and where they run."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import MOST_PROCESSES, Seconds, Section
from dagrpo.core.urls import mistake_in_server
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
    sandbox_fusion: str | None = Field(
        None, description="URL of a Sandbox Fusion server, such as http://127.0.0.1:8080; null: local sandboxes."
    )

    @model_validator(mode="after")
    def _server_is_named_right(self) -> Self:
        if self.sandbox_fusion is not None and (mistake := mistake_in_server(self.sandbox_fusion)):
            raise UserError(f"the address in unit_tests.sandbox_fusion {mistake}: write it as http://127.0.0.1:8080")
        return self

    def limits(self) -> ProgramLimits:
        """Return these limits; null for `parallel` becomes what this machine's cores and memory admit."""
        fitting = max(1, memory_of_machine() // (self.memory_mb << 20))
        here = processors() if self.sandbox_fusion else min(processors(), fitting)
        return ProgramLimits(
            seconds=self.seconds,
            memory_mb=self.memory_mb,
            processes=self.processes,
            parallel=self.parallel or here,
            sandbox_fusion=self.sandbox_fusion,
        )
