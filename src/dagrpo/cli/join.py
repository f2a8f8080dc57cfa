"""`dagrpo join`: this machine's share of trainings on several nodes."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer


def join(
    node: Annotated[
        int, typer.Argument(help="number of this machine, from 1; the one that runs Snakemake is 0", min=1)
    ],
    once: Annotated[bool, typer.Option("--once", help="end after one training")] = False,
) -> None:
    """Run this machine's processes of trainings on several nodes that start in this folder, until Ctrl-C. SLURM does it by itself."""
    from dagrpo.core.errors import UserError
    from dagrpo.pipeline.nodes import LAUNCHES, SECONDS_BETWEEN_SIGNS, read_launch
    from dagrpo.utils.child_variables import QUIET
    from dagrpo.utils.console import say
    from dagrpo.utils.locks import is_silent

    if not Path(".state").is_dir():
        raise UserError(f"{Path.cwd()} has no .state: go to the project's folder, which all machines share.")
    say(f"Waiting, as node {node}, for trainings on several nodes in {Path.cwd()}.")
    tried: set[Path] = set()
    while True:
        for note in sorted({*LAUNCHES.glob("*.json")} - tried):  # the oldest first, as on every other node
            launch = read_launch(note)
            if launch is None or is_silent(note):
                continue
            tried.add(note)
            if node < launch.nodes:
                place = f"{launch.address}:{launch.port}"
                command = (sys.executable, "-m", "dagrpo.pipeline.launch", "--join", str(note), place, str(node))
                code = subprocess.run(command, env=os.environ | QUIET).returncode
                say(f"The training at {place} has ended with exit code {code}.")
                if once:
                    raise typer.Exit(code)
                break
        time.sleep(SECONDS_BETWEEN_SIGNS)
