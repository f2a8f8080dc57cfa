"""Command `dagrpo replay`."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dagrpo.cli.shared import Run, Seed
from dagrpo.cli.show.command import run_folder
from dagrpo.core.errors import UserError
from dagrpo.utils.console import VisibleConsole
from dagrpo.utils.environment import has_avx2
from dagrpo.utils.portable import PORTABLE_CPU, VARIABLES, compute_portably

if TYPE_CHECKING:
    from dagrpo.trainer.state.digest_table import Computed
    from dagrpo_replay.recorded_run import RecordedRun

STEPS = "numbers and ranges of steps, such as 3,17 or 1-5"
MOST_IN_A_RANGE = 1_000_000


def replay(
    run: Run,
    steps: Annotated[str | None, typer.Option(help=f"{STEPS}; by default the last one")] = None,
    seed: Seed = None,
) -> None:
    """Recompute steps of a run from its rollouts; exit code 1 if gradients or weights differ from the recorded ones."""
    from dagrpo_replay.recorded_run import read_run

    folder = Path(run)
    is_seed = folder.is_dir() and folder.name.startswith("seed_")
    recorded = read_run(folder if is_seed else run_folder(run, seed))
    numbers = require_recorded(recorded, [recorded.steps] if steps is None else steps_of(steps))
    computed = recorded.computed(numbers)
    restart_portably(computed.device == PORTABLE_CPU)
    compute_portably(computed.device == PORTABLE_CPU)
    if computed.processes > 1 and "WORLD_SIZE" not in os.environ:
        raise typer.Exit(_in_processes(computed, recorded.folder, numbers))
    _replay(recorded, numbers, computed)


def restart_portably(on: bool) -> None:
    """Begin this command again with portable arithmetic, as numpy is imported; within another program than dagrpo do nothing."""
    is_program = sys.argv[0].endswith(("/dagrpo", "/dagrpo/__main__.py"))
    if on and is_program and has_avx2() and not VARIABLES.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-P", "-m", "dagrpo", *sys.argv[1:]], os.environ | VARIABLES)


def steps_of(text: str) -> list[int]:
    """Return the steps that an option names, ascending. "3,17": [3, 17]; "1-3": [1, 2, 3]. Raises UserError for other texts."""
    steps: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) <= 9 for end in ends):
            raise UserError(f"--steps {text}: `{part}` is no step: give {STEPS}.")
        start, stop = map(int, ends)
        if not 1 <= start <= stop <= start + MOST_IN_A_RANGE:
            raise UserError(
                f"--steps {text}: `{part}` is no range of steps: they count from 1, and the smaller one is first."
            )
        steps |= set(range(start, stop + 1))
    return sorted(steps)


def require_recorded(run: "RecordedRun", steps: Sequence[int]) -> Sequence[int]:
    """Return `steps`. Raises UserError if the run has not finished one of them, or has recorded no digests."""
    if run.steps == 0:
        raise UserError(f"{run.folder} has not finished a step yet: wait for its first.")
    if steps[-1] > run.steps:
        raise UserError(f"{run.folder} has no step {steps[-1]}: it has the steps 1 to {run.steps}.")
    if not any(run.digests[step].are_recorded for step in steps):
        recorded = [step for step in range(1, run.steps + 1) if run.digests[step].are_recorded]
        remedy = (
            f"ask for one of every {recorded[0]}, such as {recorded[-1]}"
            if recorded
            else "train again with a lower one"
        )
        named = f"step {steps[0]}" if len(steps) == 1 else f"the steps {steps[0]} to {steps[-1]}"
        raise UserError(
            f"{run.folder} has recorded nothing of what it computed in {named} (training.digests_every): {remedy}."
        )
    return steps


def _in_processes(computed: "Computed", folder: Path, steps: Sequence[int]) -> int:
    """Run this command in as many processes as trained the policy; return the exit code."""
    import dagrpo.cli.application as application

    own = ("replay", str(folder), "--steps", ",".join(map(str, steps)))
    command = (sys.executable, "-m", "dagrpo.pipeline.launch", str(computed.processes), str(application.__file__), *own)
    environment = os.environ | {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": str(computed.threads)}
    return subprocess.run(command, env=environment, check=False).returncode


def _replay(run: "RecordedRun", steps: Sequence[int], computed: "Computed") -> None:
    from dagrpo.trainer.state.digests import computed_by
    from dagrpo.utils.determinism import explained
    from dagrpo.utils.distributed import process_group
    from dagrpo_replay import recomputation

    deterministic, copies = run.rollout.deterministic, computed.copies
    with explained(), process_group(computed.threads, deterministic=deterministic, copies=copies) as world:
        here = computed_by(world, computed.budget, computed.hashed_by)
        checks = recomputation.replay(run, steps, world)
    if not world.is_rank_zero:
        return
    console = VisibleConsole(highlight=False, markup=False, emoji=False)
    console.print(recomputation.table(run, [check for check in checks if check.step in steps or check.difference]))
    console.print(recomputation.basis(run, checks, here))
    if difference := recomputation.explain_difference(checks):
        raise UserError(difference)
